"""A job that cannot come up because a sink is away, and somebody who has had enough of it."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ledger import Ledger

import penstock as ps
from penstock.clock import SYSTEM_CLOCK
from penstock.ownership.heartbeat import refuse_if_running
from penstock.requests.request_client import RequestClient
from penstock.requests.request_files import Facts, Kind
from penstock.status.health import concerns
from penstock.status.job_watcher import look_at
from penstock.status.jobs import find_jobs
from penstock.status.view import JobState
from services.patience import PATIENCE_S, tries

pytestmark = pytest.mark.spark


class Away(ps.sinks.Files):
    """Does not answer when recovery asks what is left; from the second time on it waits for the test before it says so."""

    def __init__(self, path) -> None:
        super().__init__(path)
        self.asked, self.answer = threading.Event(), threading.Event()
        self.first = True

    def __getstate__(self):
        return {**super().__getstate__(), "asked": None, "answer": None}

    def find_transactions(self, job, sink):
        if not self.first:
            self.asked.set()
            self.answer.wait()
        self.first = False
        raise ps.UnavailableError("the server is away")


@pytest.fixture
def away(spark, tmp_path):
    ledger, sink = Ledger(tmp_path), Away(tmp_path / "out")
    job = ledger.job(restart=ps.fixed_delay(attempts=100, delay="10ms"))
    job.read(ledger.log.read(spark), uid="clicks").write_to(sink, uid="out")
    handle = job.start()
    sink.asked.wait()
    yield handle, sink
    sink.answer.set()


def test_what_is_seen(away, caplog) -> None:
    """Page, `status` and log name the sink that does not answer, say since when, and count the restarts; nobody may start the job meanwhile."""
    handle, sink = away
    storage = handle._runner.job.storage
    (found,) = find_jobs([Path(urlsplit(storage.uri).path).parent])
    for _ in tries(0.05):  # it is written down every second
        view = look_at(found, SYSTEM_CLOCK.wall())
        if view.live is not None:
            break
    assert (view.state, view.restarts) == (JobState.RESTARTING, 1)
    (need,) = concerns(view)
    assert need.text.startswith(
        "UnavailableError: the sink out does not answer: the server is away. Down for "
    )
    with pytest.raises(ps.errors.RunningAlreadyError):
        refuse_if_running(storage, SYSTEM_CLOCK.wall())
    end_by(handle.cancel, handle, sink)
    (said,) = {record.getMessage() for record in caplog.get_records("setup")}
    assert "failed (UnavailableError: the sink out does not answer: the server is away); it goes back" in said


def end_by(call, handle, sink) -> None:
    """Call it while recovery waits for the sink; then the sink says that it is away."""
    waiting = threading.Thread(target=call)
    waiting.start()
    while not handle._runner._stopping.is_set():
        waiting.join(0.01)
    sink.answer.set()
    waiting.join()


def test_cancel(away) -> None:
    """It ends cancelled, not failed for good: the strategy had attempts left, and the user wanted none of them."""
    handle, sink = away
    end_by(handle.cancel, handle, sink)
    assert handle.status.value == "cancelled"
    assert handle.failure is None


def test_stop(away, caplog) -> None:
    """It ends, and the log says that there is no last checkpoint."""
    handle, sink = away
    end_by(handle.stop, handle, sink)
    assert handle.status.value == "stopped"
    assert "there is no last checkpoint" in caplog.text
    assert "the server is away" in caplog.text


def test_the_checkpoint_of_an_earlier_run(spark, tmp_path, caplog) -> None:
    """A run that never came up names the checkpoint from which the next start continues, in the log and in the answer to a cancel."""
    ledger = Ledger(tmp_path)
    ledger.append(0, "a", 3)
    job = ledger.job()
    job.read(ledger.log.read(spark), uid="clicks").write_to(ps.sinks.Files(tmp_path / "out"), uid="out")
    newest = job.run(available_now=True).progress.checkpoint
    assert newest >= 0
    sink = Away(tmp_path / "out")
    job = ledger.job(restart=ps.fixed_delay(attempts=100, delay="10ms"))
    job.read(ledger.log.read(spark), uid="clicks").write_to(sink, uid="out")
    caplog.clear()
    caplog.set_level("INFO", "penstock.job")
    handle = job.start()
    sink.asked.wait()
    end_by(handle.cancel, handle, sink)
    assert repr(handle).endswith(f"cancelled, newest checkpoint {newest}>")
    assert f"0 batches, 0 rows in, last checkpoint {newest}" in caplog.text


class NeverReturns(Away):
    """Asked what is left, it does not return before the test is over; before that it may say once that it is away."""

    def find_transactions(self, job, sink):
        if self.first:
            return super().find_transactions(job, sink)
        self.asked.set()
        self.answer.wait()
        return ()


@pytest.fixture
def never(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.checkpoint.sink_lanes.LEAVE_AFTER_S", 0.2)
    ledger, sink = Ledger(tmp_path), NeverReturns(tmp_path / "out")
    job = ledger.job(restart=ps.fixed_delay(attempts=100, delay="10ms"))
    job.read(ledger.log.read(spark), uid="clicks").write_to(sink, uid="out")
    yield job, sink
    sink.answer.set()


def test_a_sink_that_never_returns_while_the_job_goes_back(never, caplog) -> None:
    """A stop waits for it, a cancel ends the job without it: the log names the sink, and the next start is not refused."""
    job, sink = never
    handle = job.start()
    sink.asked.wait()
    handle.stop(wait=False)
    assert not handle.wait(0.5)
    handle.cancel()
    assert (handle.status.value, handle.failure) == ("cancelled", None)
    assert "the sink out does not answer: a call has not returned" in caplog.text
    refuse_if_running(job.storage, SYSTEM_CLOCK.wall())


def test_a_sink_that_never_returns_at_the_first_start(never) -> None:
    """A request to cancel is taken on before `start()` has returned, and ends the job."""
    job, sink = never
    sink.first = False
    told: list[Facts] = []

    def cancel() -> None:
        sink.asked.wait()
        told.append(RequestClient(job.storage).ask(Kind.CANCEL, timeout_s=PATIENCE_S))

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    handle = job.start()
    assert handle.wait()
    cancelling.join()
    assert (handle.status.value, told[0]["status"]) == ("cancelled", "cancelled")
