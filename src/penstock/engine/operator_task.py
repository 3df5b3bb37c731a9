"""Operators whose tasks are not yet `operators.base.Task`: run by the same `Subtask`. Executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.config import OnBadRecord
from penstock.engine.assignment import Assignment
from penstock.engine.executor import Executor
from penstock.engine.subtask import Subtask
from penstock.ids import SubtaskId
from penstock.operators.bad_records import BadRecords
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.grouping import null_keys
from penstock.operators.inputs import TaskRows
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import Outputs, Tags
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY


@dataclass
class OperatorTask(ABC):
    """One keyed operator in one batch. Called, in a task, with the rows of one subtask."""

    uid: str
    keys: tuple[str, ...]
    layout: StateLayout
    assignment: Assignment
    executor: Executor
    on_bad_record: OnBadRecord
    late: pa.Schema | None = field(default=None, kw_only=True)
    """The columns of its late rows, where somebody reads them."""

    takes_null_keys = False

    @abstractmethod
    def apply(
        self, rows: TaskRows, state: OpenState, subtask: int, bad: BadRecords, late: LateRows
    ) -> Outputs:
        """Update the state with the rows, return the results and what else it gives. Rows that it may leave out go to `bad` or `late`."""

    @property
    def timers_fired(self) -> int:
        """How many timers have fired: each counts as a row of which something may be bad."""
        return 0

    @property
    def uses_time(self) -> bool:
        """Whether something happens in its state because time goes on: a timer fires, a window closes."""
        return False

    def due(self, state: OpenState) -> Due:  # noqa: ARG002
        """For what the state waits after this batch, behind the watermark and the time to which the batch has come."""
        return Due()

    def over_us(self, subtask: SubtaskId) -> int | None:  # noqa: ARG002
        """Up to where windows are forgotten in the state after this batch; None where it has no windows in event time."""
        return None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self._subtask(batches)

    @property
    def _subtask(self) -> Subtask:
        return Subtask(
            self.uid,
            _FormerSpec(self),
            self.assignment,
            self.executor,
            self.on_bad_record,
            late=self.late,
        )

    @property
    def tags(self) -> Tags:
        """What travels with its results, where somebody wants it."""
        return self._subtask.tags

    @property
    def side_columns(self) -> Tags:
        """The columns of its side outputs."""
        return {}

    @property
    @abstractmethod
    def result_schema(self) -> pa.Schema:
        """The columns of its results."""

    @property
    def broadcast_columns(self) -> tuple[str, ...] | None:
        """The columns of its broadcast side, None where it has none."""
        return None

    def rows_given(self, table: pa.Table) -> int:
        """How many rows of the stream these stand for."""
        return int(table.num_rows)

    def shown_columns(self, table: pa.Table) -> list[str]:
        """What is said of a row without a key."""
        return [name for name in table.column_names if name != SORT_KEY]

    def without_null_keys(self, table: pa.Table, bad: BadRecords, keys: Sequence[str]) -> pa.Table:
        """Leave out the rows that have no key."""
        flags, reasons = null_keys(table, list(keys))
        if not reasons:
            return table
        bad.add(table.filter(pa.array(flags)).drop_columns([SORT_KEY]), reasons, keys)
        return table.filter(pa.array(~flags))


@dataclass
class _FormerSpec(Spec):
    of: OperatorTask

    def layout(self) -> StateLayout:
        return self.of.layout

    @property
    def output(self) -> pa.Schema:
        return self.of.result_schema

    def task(self, context: TaskContext) -> Task:
        return _FormerTask(context, self.of)

    @property
    def broadcast(self) -> tuple[str, ...] | None:
        return self.of.broadcast_columns

    def sides(self) -> Tags:
        return self.of.side_columns


@dataclass
class _FormerTask(Task):
    of: OperatorTask
    _state: OpenState | None = None

    @property
    def takes_null_keys(self) -> bool:  # type: ignore[override]
        return self.of.takes_null_keys

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        self._state, context = state, self.context
        return self.of.apply(rows, state, context.subtask, context.bad, context.late)

    @property
    def uses_time(self) -> bool:
        return self.of.uses_time

    def due(self) -> Due:
        return self.of.due(self._state)  # type: ignore[arg-type]

    @property
    def timers_fired(self) -> int:
        return self.of.timers_fired

    def over_us(self) -> int | None:
        return self.of.over_us(SubtaskId(self.context.uid, self.context.subtask))

    def rows_given(self, table: pa.Table) -> int:
        return self.of.rows_given(table)

    def shown_columns(self, table: pa.Table) -> list[str]:
        return self.of.shown_columns(table)

    def without_null_keys(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        return self.of.without_null_keys(table, self.context.bad, keys)
