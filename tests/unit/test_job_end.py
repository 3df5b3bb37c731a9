"""The end of a job comes to those who wait for it, whatever goes wrong while it is told."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.spark import job_runner as of_a_job
from penstock.spark.job_handle import JobHandle
from penstock.spark.job_runner import JobRunner
from penstock.status.events import Event, JobEnded, RunFailed
from penstock.status.journal import JournalReader, JournalWriter
from penstock.status.live import Progress, Status
from penstock.status.observer import Observer
from penstock.storage import LocalStorage


class OddError(Exception):
    """Of a user's own class."""

    def __str__(self) -> str:
        raise AttributeError("no such field")


def test_an_error_without_a_text_is_told() -> None:
    """Its class is, and that it has none."""
    told: list[Event] = []
    observer = Observer(tell=told.append)
    error = OddError()
    error.__notes__ = None  # type: ignore[assignment]
    observer.run_failed(error, strategy="s", delay_s=1.0, decision="again")
    observer.ended("failed", error)
    failed, ended = told
    assert isinstance(failed, RunFailed)
    assert isinstance(ended, JobEnded)
    assert failed.error == ended.error == "OddError"
    assert "AttributeError in its __str__" in failed.why


def test_an_error_with_very_many_notes_does_not_hide_the_journal(tmp_path: Path) -> None:
    """A part that is too large would not be read at all."""
    storage = LocalStorage(tmp_path)
    writer = JournalWriter(storage)
    observer = Observer(tell=writer.tell)
    error = OSError("down")
    for _ in range(1000):
        error.add_note("\x00" * 4000)
    observer.run_failed(error, strategy="s", delay_s=1.0, decision="again")
    writer.close()
    read = JournalReader(storage).read()
    assert (len(read.events), read.unreadable) == (1, 0)


class _Reporter:
    """What people see: one that fails at the first word."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, BaseException | None]] = []

    def run_failed(self, *_: object) -> None:
        raise RuntimeError("telling failed")

    def ended(self, how: str, met: BaseException | None) -> None:
        self.ends.append((how, met))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_the_end_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the job ends with an error of ours; the job has failed, with its own, and its pages are closed."""
    monkeypatch.setattr(of_a_job, "quiet_logs", lambda _: nullcontext())
    error = OddError()

    def fail() -> None:
        raise error

    runner = object.__new__(JobRunner)
    reporter = _Reporter()
    for name, value in {
        "job": SimpleNamespace(name="views"),
        "compiled": SimpleNamespace(session=None),
        "reporter": reporter,
        "failure": None,
        "ended": threading.Event(),
        "_run_until_done": fail,
    }.items():
        setattr(runner, name, value)
    working = threading.Thread(target=runner._work)
    working.start()
    working.join()
    assert runner.ended.is_set()
    assert runner.failure is error
    assert reporter.ends == [("failed", error)]


@pytest.mark.parametrize(
    ("checkpoint", "shown"),
    [
        (7, "<JobHandle of 'views': finished, newest checkpoint 7>"),
        (-1, "<JobHandle of 'views': finished, no checkpoint>"),
    ],
)
def test_a_handle_says_how_the_job_is(checkpoint: int, shown: str) -> None:
    """`print(job.run())` shows the job's name, its status and its newest checkpoint."""
    runner = object.__new__(JobRunner)
    runner.job = SimpleNamespace(name="views")  # type: ignore[assignment]
    runner.status, runner.observer = (
        Status.FINISHED,
        Observer(progress=Progress(run=1, at=0.0, status="finished", checkpoint=checkpoint)),
    )
    assert repr(JobHandle(runner)) == shown
