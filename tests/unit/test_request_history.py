"""What a job was asked for, from outside and by its own program, and what people are told came of it."""

from __future__ import annotations

from typing import NoReturn

import pytest

from builders.job_views import NOW, RUNS, healthy
from builders.parsed_pages import FRAME, Parsed
from penstock.dashboard import pages
from penstock.errors import ConfigError
from penstock.requests.request_files import PROGRAM, Kind, Request
from penstock.requests.request_server import LocalRequests
from penstock.status.events import Answered, Asked, Event
from penstock.status.job_watcher import asked_for
from penstock.status.observer import Observer


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def wishes(told: list[Event]) -> LocalRequests:
    observer = Observer(tell=told.append)
    return LocalRequests(observer.asked, observer.answered)


def refuse(_token: str, wish: Request) -> NoReturn:
    raise ConfigError(f"{wish.to} is taken")


def states(*events: Event, present: int) -> dict[str, str]:
    return {one.request: one.state for one in asked_for(events, RUNS, present)}


def test_what_the_program_itself_asks_for_is_told_with_its_outcome(
    wishes: LocalRequests, told: list[Event]
) -> None:
    """As if it had come through storage: done with what was made, or failed with the reason, which is raised, too."""
    made = wishes.perform(
        Kind.SAVEPOINT, lambda _, wish: {"checkpoint": 7, "savepoint": str(wish.to)}, 60.0, "/there"
    )
    assert made == {"checkpoint": 7, "savepoint": "/there"}
    with pytest.raises(ConfigError):
        wishes.perform(Kind.SAVEPOINT, refuse, 60.0, "/there")
    failed, done = asked_for(told, (), 0)
    assert (done.what, done.by, done.state, done.checkpoint, done.folder) == (
        "savepoint",
        PROGRAM,
        "done",
        7,
        "/there",
    )
    assert (failed.state, failed.folder) == ("failed", "")
    assert "/there is taken" in failed.error


def test_a_stop_is_answered_with_the_end(wishes: LocalRequests, told: list[Event]) -> None:
    """One that is refused at once; behind the end nobody is told of anything."""
    with pytest.raises(ConfigError):
        wishes.stop(refuse, savepoint=True, to="/there", drain=False)
    wishes.stop(lambda *_: None, savepoint=True, to="/here", drain=False)
    assert [type(event) for event in told] == [Asked, Answered, Asked]
    wishes.ended({"status": "stopped", "checkpoint": 9, "savepoint": "/here"})
    wishes.cancel(lambda: None)
    stopped, refused = asked_for(told, (), 0)
    assert (stopped.state, stopped.checkpoint, stopped.folder) == ("done", 9, "/here")
    assert refused.state == "failed"


def test_what_nobody_has_answered() -> None:
    """It is under way as long as the process that has taken it on lives, over all its runs; then nobody knows."""
    before, of_this_process = (Asked(at=NOW - run, run=run, request=str(run), what="stop") for run in (1, 2))
    again = Asked(at=NOW, run=3, request="1", what="stop")
    assert states(before, of_this_process, present=3) == {"1": "unknown", "2": "under way"}
    assert states(before, of_this_process, present=0) == {"1": "unknown", "2": "unknown"}
    assert states(before, again, present=3) == {"1": "under way"}


def test_a_page_shows_outcomes() -> None:
    """Of what was asked from outside and by the program: what was made, why it failed, and that it is under way."""
    page = Parsed(pages.actions(healthy(), None, FRAME)).text
    assert "anna on laptop-3 requested: savepoint. Done 30 s later, with checkpoint 4801." in page
    assert "The program itself requested: savepoint. It failed 10 s later." in page
    assert "/backups/views is not empty" in page
    assert "The program itself requested: checkpoint. The job is working on it." in page
