"""At least once: a checkpoint may have state of a later batch than its watermark. Windows that were over in it do not begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from builders.window_operators import COLUMNS, KEY, PARTIALS, SPECS, SUMS, partials_of
from penstock.config import OnBadRecord
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.bad_records import ROWS
from penstock.operators.base import Spec
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.window.own_code import WindowCode, WindowCodeSpec, WindowRowsSpec
from penstock.operators.window.session import FIRST_ROW, LAST_ROW, SessionSpec
from penstock.operators.window.session_rows import SessionRowsSpec
from penstock.operators.window.time import PANE, WindowSpec
from penstock.recovery.state_plan import redistribute
from penstock.run.assignment import Assignment, OperatorAnswer, RunPlace
from penstock.run.subtask import Subtask as EngineSubtask
from penstock.snapshot.mailbox import Address
from penstock.state.backends import backend_named
from penstock.state.handle import StateHandle, over_in_all
from penstock.state.keys import SORT_KEY
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.storage import LocalStorage
from penstock.testing.subtasks import LocalExecutor

TIME = pa.timestamp("us")
TEN = ps.windows.tumbling("10ms")
GAP = ps.windows.session("10ms")
AGGREGATED = WindowSpec(KEY, TEN, 0, SPECS, TIME, row_time=TimeColumn("t"))
SESSIONS = SessionSpec(KEY, GAP, 0, SPECS, TIME, TimeColumn("t"))
CODE = WindowCode(SUMS, AGGREGATED.output, TIME)
ROWS_OF_WINDOWS = WindowRowsSpec(KEY, TEN, 0, COLUMNS, TimeColumn("t"), (), CODE)
ROWS_OF_SESSIONS = SessionRowsSpec(KEY, GAP, 0, COLUMNS, TimeColumn("t"), (), CODE)
KINDS: dict[str, Spec] = {
    "aggregate": AGGREGATED,
    "sessions": SESSIONS,
    "process": ROWS_OF_WINDOWS,
    "session process": ROWS_OF_SESSIONS,
}
UID = "op"
MS = 1000


class Subtask:
    """One subtask, run by the engine's task: its state goes on from batch to batch, and its clock is what the test says."""

    def __init__(self, root: Path, kind: str, backend: str) -> None:
        self._spec = KINDS[kind]
        self._place = RunPlace(
            *("job", RunId(1), 1, 1, LocalStorage(root / "storage"), backend_named(backend), root / "local"),
            *(False, cast("Address", None)),
        )
        self.handle: StateHandle | None = None
        self.late = 0
        self._batch = 0

    def batch(self, times: list[int], before_us: int, watermark_us: int) -> list[int]:
        """How many rows each window has that gives a result."""
        self._batch += 1
        none: frozenset[Any] = frozenset()
        handles = {} if self.handle is None else {SubtaskId(UID, 0): self.handle}
        plan = Assignment(
            *(
                self._place,
                CheckpointId(self._batch),
                handles,
                none,
                none,
                {},
                none,
                none,
                False,
                none,
                False,
            ),
            clocks={UID: OperatorClock(before_us, watermark_us)},
        )
        executor = LocalExecutor(self._batch)
        task = EngineSubtask(UID, self._spec, plan, executor, OnBadRecord.FAIL)
        given = list(task(self._table(times, before_us).to_batches()))
        (answer,) = executor.answers
        assert isinstance(answer, OperatorAnswer)
        if answer.handle is not None:
            self.handle = answer.handle
        self.late += answer.late
        return [row["n"] for batch in given for row in batch.to_pylist()]

    def _table(self, times: list[int], before_us: int) -> pa.Table:
        """As Spark hands them over, each row a group of its own. One that is late for the watermark of the driver is not among them."""
        numbers = [pa.array([0] * len(times), pa.int64()), pa.array(["a"] * len(times), pa.string())]
        at = pa.array(times, pa.int64())
        if isinstance(self._spec, WindowCodeSpec):
            rows = pa.table([at, numbers[1], at.cast(TIME)], schema=COLUMNS)
            return rows.append_column(SORT_KEY, numbers[0])
        panes = pa.array([time - time % (10 * MS) for time in times], pa.int64())
        partials = [pa.array([partials_of([1])[at] for _ in times], pa.int64()) for at in range(3)]
        ones = pa.array([1] * len(times), pa.int64())
        columns = [*numbers, panes, *partials, ones, at, at]
        return pa.table(columns, names=[SORT_KEY, "k", PANE, *PARTIALS, ROWS, FIRST_ROW, LAST_ROW])


@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_of_a_window_does_not_shrink(tmp_path: Path, kind: str, backend: str) -> None:
    """Rows that come again for a window that had closed in the state are late; those of windows that were open count."""
    subtask = Subtask(tmp_path, kind, backend)
    assert subtask.batch([1 * MS] * 7, LONG_AGO_US, LONG_AGO_US) == []
    assert subtask.batch([2 * MS] * 2, LONG_AGO_US, LONG_AGO_US) == []
    assert subtask.batch([41 * MS], LONG_AGO_US, 40 * MS) == [9]
    # the job goes on from a checkpoint whose barrier is before the second batch
    again = subtask.batch([2 * MS, 2 * MS, 42 * MS], LONG_AGO_US, LONG_AGO_US)
    assert (again, subtask.late) == ([], 2)
    assert subtask.batch([], LONG_AGO_US, 40 * MS) == []
    assert subtask.batch([99 * MS], 40 * MS, 60 * MS) == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_may_have_nothing_but_rows_of_windows_that_were_over(tmp_path: Path, kind: str) -> None:
    """They are late, and the job goes on."""
    subtask = Subtask(tmp_path, kind, "memory")
    assert subtask.batch([1 * MS] * 7, LONG_AGO_US, LONG_AGO_US) == []
    assert subtask.batch([41 * MS], LONG_AGO_US, 40 * MS) == [7]
    assert subtask.batch([2 * MS, 3 * MS], LONG_AGO_US, LONG_AGO_US) == []
    assert subtask.late == 2


def test_after_a_drain_windows_begin_anew(tmp_path: Path) -> None:
    """The end of time says nothing about which windows are over: a job that goes on all the same opens them again."""
    subtask = Subtask(tmp_path, "aggregate", "memory")
    assert subtask.batch([1 * MS, 21 * MS], LONG_AGO_US, 15 * MS) == [1]
    assert subtask.batch([22 * MS], 15 * MS, FAR_AWAY_US) == [2]
    assert subtask.handle is not None
    assert subtask.handle.over_us == 15 * MS


def test_other_subtasks_take_over_what_is_over_in_all() -> None:
    """A window that one of the former subtasks still has is awaited. It is written down with the handle."""
    handles = [
        StateHandle(SubtaskId(UID, index), "memory", 7, over_us=over) for index, over in enumerate((5, 9))
    ]
    one = redistribute(handles, uid=UID, parallelism=1, version=CheckpointId(7), backend="memory")
    assert one[SubtaskId(UID, 0)].over_us == 5
    assert over_in_all([*handles, replace_over(handles[0], None)]) is None
    written = msgspec.json.encode(handles[1])
    assert msgspec.json.decode(written, type=StateHandle) == handles[1]


def replace_over(handle: StateHandle, over_us: int | None) -> StateHandle:
    return msgspec.structs.replace(handle, over_us=over_us)
