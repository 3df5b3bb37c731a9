"""What the driver makes of the answers of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from penstock.checkpoint.model import PreCommitted
from penstock.errors import UnavailableError
from penstock.ids import CheckpointId, RunId
from penstock.run.acknowledgements import acknowledged
from penstock.run.assignment import Assignment, BadCount, OperatorAnswer, RunPlace, SinkAnswer
from penstock.snapshot.mailbox import Address
from penstock.state.backends import FilesystemBackend
from penstock.storage import LocalStorage

NONE: frozenset[str] = frozenset()


@pytest.fixture
def plan(tmp_path: Path) -> Assignment:
    place = RunPlace(
        "job",
        RunId(1),
        2,
        128,
        LocalStorage(tmp_path),
        FilesystemBackend(),
        tmp_path,
        True,
        cast("Address", None),
    )
    return Assignment(
        place, CheckpointId(7), {}, NONE, NONE, {}, NONE, frozenset(), False, frozenset(), False
    )


def wrote(uid: str, subtask: int, attempt: int, rows: int = 10, bad: int = 1) -> SinkAnswer:
    transaction = PreCommitted(uid, 7, subtask, {"attempt": attempt}, rows) if rows else None
    return SinkAnswer(uid, subtask, attempt, transaction, BadCount(bad, rows + bad, "no"))


def test_what_the_tasks_of_sinks_say_is_added_up(plan: Assignment) -> None:
    """Sinks have tasks of the same numbers; a task without rows has no transaction."""
    done = acknowledged(
        plan, (), [wrote("a", 0, 1), wrote("a", 1, 2), wrote("b", 0, 3), wrote("b", 1, 4, rows=0)]
    )
    assert [one.transaction["attempt"] for one in done.transactions] == [1, 2, 3]
    assert {uid: bad.rows for uid, bad in done.bad_records.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize("rows", [10, 0])
def test_a_sink_that_wrote_a_subtask_twice_ends_the_batch(plan: Assignment, rows: int) -> None:
    """Spark runs a task again whose executor is gone, and keeps the answers of both: their rows, or bad rows, would count twice."""
    again = [wrote("a", 0, 1, rows), wrote("a", 1, 2, rows), wrote("a", 0, 3, rows)]
    with pytest.raises(UnavailableError, match="wrote the rows of its subtask 0 again"):
        acknowledged(plan, (), again)


def test_an_operator_that_ran_a_subtask_twice_ends_the_batch(plan: Assignment) -> None:
    """What used the results of the first time may not fit to the state of the second."""
    again = [OperatorAnswer("a", attempt, None, None) for attempt in range(3)]
    with pytest.raises(UnavailableError, match="ran 1 of its 2 subtasks again"):
        acknowledged(plan, ("a",), again)
