"""Whether everything that is known to be in the sources is committed."""

from __future__ import annotations

from typing import Any

import pytest

from builders.stored_jobs import PLAN
from penstock.status.live import Progress, SinkLive, SourceLive
from penstock.status.view import CaughtUp, JobState, JobView, is_caught_up

SAID = {"clicks": SourceLive(behind=0), "shops": SourceLive(behind=0)}


def view(state: JobState = JobState.RUNNING, **said: Any) -> JobView:
    live = Progress(**{"run": 1, "at": 10.0, "status": "running", "sources": SAID, **said})
    return JobView(id="", name="views", storage="", place="", state=state, now=10.0, plan=PLAN, live=live)


def test_nothing_is_left() -> None:
    """All sources are read, all rows are in a checkpoint, all transactions are committed."""
    assert is_caught_up(view()).answer is CaughtUp.YES


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"sources": {**SAID, "clicks": SourceLive(behind=3)}}, "3 rows to read from clicks"),
        ({"sources": {"clicks": SourceLive(), "shops": SourceLive(behind=1)}}, "1 row to read from shops"),
        ({"rows_since_checkpoint": 1}, "1 row in no checkpoint yet"),
        ({"sinks": {"table": SinkLive(waiting=2)}}, "2 transactions of table to commit"),
    ],
)
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.RESTARTING, JobState.DIED])
def test_something_is_left(state: JobState, said: dict[str, Any], why: str) -> None:
    """What is known to be left makes it no, whatever else nobody knows, and whether the job runs or not."""
    found = is_caught_up(view(state, **said))
    assert (found.answer, found.why) == (CaughtUp.NO, why)


def test_a_batch_under_way() -> None:
    """Of a job that runs something is left then; of one that does not, no batch is under way, whatever it said last."""
    found = is_caught_up(view(JobState.RUNNING, batch_since=9.0))
    assert (found.answer, found.why) == (CaughtUp.NO, "a batch is being processed")
    assert is_caught_up(view(JobState.FINISHED, batch_since=9.0)).answer is CaughtUp.UNKNOWN


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState.RUNNING, {"sources": {"clicks": SourceLive(behind=0), "shops": SourceLive()}}),
        (JobState.RUNNING, {"sources": {"clicks": SourceLive(behind=0)}}),
        (JobState.RUNNING, {"sources": {}}),
        (JobState.RUNNING, {"up_since": 9.0}),
        (JobState.RESTARTING, {}),
        (JobState.FINISHED, {}),
    ],
)
def test_nobody_knows(state: JobState, said: dict[str, Any]) -> None:
    """A source that cannot say it, or has not since the restart, and a job of which no run is up, are not taken for yes."""
    found = is_caught_up(view(state, **said))
    assert found.answer is CaughtUp.UNKNOWN
    assert found.why


def test_a_job_that_has_said_nothing() -> None:
    """It is not known."""
    silent = JobView(id="", name="v", storage="", place="", state=JobState.STARTING, now=1.0)
    assert is_caught_up(silent).answer is CaughtUp.UNKNOWN
