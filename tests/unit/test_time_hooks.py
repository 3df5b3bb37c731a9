"""What the task of an operator that uses time is asked and answers, beside its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from builders.operator_cluster import MAX_PARALLELISM, sort_key
from builders.task_cluster import UID
from penstock.config import OnBadRecord
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import LATE, RESULTS, Outputs, untagged
from penstock.recovery.state_migration import StateMigration
from penstock.recovery.state_plan import redistribute
from penstock.run.acknowledgements import acknowledged
from penstock.run.assignment import Assignment, OperatorAnswer, RunPlace
from penstock.run.subtask import Subtask
from penstock.snapshot.mailbox import Address
from penstock.state.backends import backend_named
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import SORT_KEY
from penstock.storage import LocalStorage
from penstock.testing.subtasks import LocalExecutor, with_wake_row

LAYOUT = StateLayout(pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())]))
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])


class WaitingSpec(Spec):
    """The spec of a task that waits."""

    def layout(self) -> StateLayout:
        return LAYOUT

    @property
    def output(self) -> pa.Schema:
        return ROWS

    def task(self, context: TaskContext) -> Task:
        return Waiting(context)


class Waiting(Task):
    """Takes negative numbers for late, and waits for the number of rows it was called with."""

    @property
    def uses_time(self) -> bool:
        return True

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        is_late = pa.array([number < 0 for number in rows.own.column("n").to_pylist()], pa.bool_())
        self.context.late.add(rows.own.filter(is_late))
        self.seen = rows.own.num_rows
        return {RESULTS: [pa.record_batch([["woken"], [self.seen]], schema=ROWS)]}

    def due(self) -> Due:
        return Due(event_us=10 + self.seen)


def plan_of(root: Path, handles: dict[SubtaskId, StateHandle], parallelism: int = 1) -> Assignment:
    none: frozenset[Any] = frozenset()
    storage, backend = LocalStorage(root / "storage"), backend_named("memory")
    mailbox = cast("Address", None)
    place = RunPlace(
        "job", RunId(1), parallelism, MAX_PARALLELISM, storage, backend, root / "local", False, mailbox
    )
    return Assignment(place, CheckpointId(1), handles, none, none, {}, none, none, False, none, False)


def run(
    root: Path, rows: list[tuple[str, int]], late: pa.Schema | None = None
) -> tuple[OperatorAnswer, list[pa.RecordBatch]]:
    executor = LocalExecutor(1)
    plan = plan_of(root, {})
    task = Subtask(UID, WaitingSpec(), plan, executor, OnBadRecord.FAIL, late=late)
    columns = [pa.array([key for key, _ in rows], pa.string()), pa.array([n for _, n in rows], pa.int64())]
    numbers = pa.array([sort_key(key) for key, _ in rows], pa.int64())
    table = pa.table(columns, schema=ROWS).append_column(SORT_KEY, numbers)
    given = list(task(with_wake_row(table, 0).to_batches()))
    (answer,) = executor.answers
    assert isinstance(answer, OperatorAnswer)
    return answer, given


def test_it_is_called_without_rows_and_its_handle_says_what_it_waits_for(tmp_path: Path) -> None:
    """A woken subtask without rows runs, and what it waits for stays known while it sleeps."""
    answer, given = run(tmp_path, [])
    assert [row for batch in given for row in batch.to_pylist()] == [{"k": "woken", "n": 0}]
    assert answer.handle is not None
    assert answer.handle.due == Due(event_us=10)
    asleep = plan_of(tmp_path, {answer.handle.subtask: answer.handle})
    without = OperatorAnswer(UID, 2, None, None)
    assert acknowledged(asleep, (UID,), [without]).handles[answer.handle.subtask].due == Due(event_us=10)


def test_late_rows_are_counted_and_given_to_who_reads_them(tmp_path: Path) -> None:
    """They are in the answer always, and among the outputs with the columns of the input where asked for."""
    rows = [("a", 1), ("b", -2), ("c", -3)]
    answer, given = run(tmp_path, rows)
    assert answer.late == 2
    assert sum(batch.num_rows for batch in given) == 1
    answer, given = run(tmp_path, rows, late=ROWS)
    assert answer.late == 2
    apart = [untagged(batch, {LATE: ROWS}) for batch in given]
    assert [row for one in apart for row in one[LATE].to_pylist()] == [
        {"k": "b", "n": -2},
        {"k": "c", "n": -3},
    ]
    assert [row for one in apart for row in one[RESULTS].to_pylist()] == [{"k": "woken", "n": 3}]


def test_another_parallelism_waits_for_the_first_of_all(tmp_path: Path) -> None:
    """Whose moment it was is not known any more: each new subtask looks at the first of them."""
    former = [
        StateHandle(SubtaskId(UID, 0), "memory", 1, due=Due(event_us=70, clock_us=9)),
        StateHandle(SubtaskId(UID, 1), "memory", 1, due=Due(event_us=50)),
        StateHandle(SubtaskId(UID, 2), "memory", 1),
    ]
    handles = redistribute(former, uid=UID, parallelism=2, version=CheckpointId(1), backend="memory")
    assert {handle.due for handle in handles.values()} == {Due(event_us=50, clock_us=9)}
    place = plan_of(tmp_path, {}, 2).place
    take_over = StateMigration(
        place.storage,
        place.backend,
        place.local_dir,
        RunId(1),
        2,
        MAX_PARALLELISM,
        {UID: LAYOUT},
        frozenset(),
    )
    assert {take_over(handle, 1).handle.due for handle in handles.values()} == {Due(50, 9)}
