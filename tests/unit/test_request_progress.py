"""What somebody sees who waits for a running job: how far it is, as the job says it in its live record."""

from __future__ import annotations

import pytest

from builders.stored_jobs import PLAN
from penstock.cli.request_commands import RequestProgress
from penstock.errors import UnavailableError
from penstock.ids import RunId
from penstock.long_work import working
from penstock.ownership.claim import Claimant, claim
from penstock.status.journal import write_live
from penstock.status.listeners import Listeners
from penstock.status.live import Progress
from penstock.status.reporter import JobReporter
from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.testing.virtual import VirtualClock, VirtualStorage


class Line:
    """Remembers what was drawn."""

    columns = 60

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def draw(self, text: str) -> None:
        self.drawn.append(text)

    def erase(self) -> None:
        self.drawn.append("")


def said(storage: Storage, run: RunId, doing: str) -> None:
    write_live(storage, Progress(run=run, at=1.0, status="running", doing=doing))


def test_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line is drawn over itself once a second, fits, obeys no control character, and is gone before anything else is said."""
    clock, storage, line = VirtualClock(), VirtualStorage(), Line()
    run = claim(storage, 1.0).run
    shown = RequestProgress(storage, line, clock)
    said(storage, run, "making the savepoint: 1 of 4 subtasks")
    shown.look(run)
    assert line.drawn == [], "not before a second is over"
    for doing in ("making the savepoint: 1 of 4 subtasks", "\x1b[2J" + "x" * 100, ""):
        said(storage, run, doing)
        clock.sleep(1.0)
        shown.look(run)
    assert line.drawn[0] == "making the savepoint: 1 of 4 subtasks"
    assert line.drawn[1].startswith("\N{REPLACEMENT CHARACTER}[2Jxxx")
    assert len(line.drawn[1]) == 60
    assert line.drawn[2] == ""
    shown.tell("run 1 is at it")
    assert line.drawn[3] == ""
    assert capsys.readouterr().err == "run 1 is at it\n"


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Each piece of work is said once, whatever it counts, and of the run that owns the job now."""
    clock, storage = VirtualClock(), VirtualStorage()
    asked = claim(storage, 1.0).run
    shown = RequestProgress(storage, None, clock)
    for done in (1, 2):
        said(storage, asked, f"making the savepoint: {done} of 4 subtasks")
        clock.sleep(1.0)
        shown.look(asked)
    said(storage, claim(storage, 2.0).run, "loading: 1 of 2 rows")
    clock.sleep(1.0)
    shown.look(asked)
    shown.close()
    assert capsys.readouterr().err == "making the savepoint: 1 of 4 subtasks\nloading: 1 of 2 rows\n"


class Away(ForwardingStorage):
    """Does not answer."""

    def names(self, folder: str = "") -> list[str]:
        raise UnavailableError(f"{folder} is away")


def test_storage_that_is_away_is_nobodys_business_here() -> None:
    """Whoever waits for the answer tells that; nothing is drawn."""
    clock, line = VirtualClock(), Line()
    shown = RequestProgress(Away(VirtualStorage()), line, clock)
    clock.sleep(1.0)
    shown.look(RunId(1))
    assert line.drawn == [""]


def test_the_job_says_what_it_does() -> None:
    """What takes long in a job stands in its live record while it lasts, whoever does it: that is what askers are shown."""
    reporter = JobReporter(
        VirtualStorage(),
        Claimant(),
        PLAN,
        status=lambda: "running",
        coordinator=lambda: None,
        listeners=Listeners(),
    )
    with working("making the savepoint", unit="subtask", job="views") as reached:
        reached(1, 4)
        assert reporter.look().doing == "making the savepoint: 1 of 4 subtasks"
    assert reporter.look().doing == ""
    reporter.ended("stopped", None)
