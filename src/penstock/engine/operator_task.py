"""Operators whose tasks are not yet `operators.base.Task`: run by the same `Subtask`. Executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.config import OnBadRecord
from penstock.engine.assignment import Assignment
from penstock.engine.dead_letters import tolerates
from penstock.engine.executor import Executor
from penstock.engine.subtask import Subtask
from penstock.ids import SubtaskId
from penstock.operators.bad_records import BadRecords
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.batch_process import BatchProcess
from penstock.operators.broadcast import NoSides
from penstock.operators.failed_call import blamed_on
from penstock.operators.grouping import null_keys
from penstock.operators.inputs import RightInput, TaskRows
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import RESULTS, Outputs, Tags, side_tags
from penstock.operators.process import Process
from penstock.operators.run_batch_process import SideColumns, run_batch_process
from penstock.operators.run_process import run_process
from penstock.operators.run_unkeyed import run_broadcast, run_unkeyed
from penstock.operators.side_outputs import SideRows, declared_sides
from penstock.operators.stored_timers import Timers
from penstock.operators.subtask_states import SubtaskCells
from penstock.operators.task_time import TaskTime
from penstock.operators.time_column import TimeColumn
from penstock.operators.timers import NoTimers, takes_timers
from penstock.operators.tolerant_process import run_process_tolerantly
from penstock.operators.two_input_rows import TIME, in_one_table
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
            late_right=self.late_right_columns,
        )

    @property
    def tags(self) -> Tags:
        """What travels with its results, where somebody wants it."""
        return self._subtask.tags

    @property
    def late_right_columns(self) -> pa.Schema | None:
        """The columns of the late rows of its second input, where somebody reads them."""
        return None

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

    @property
    def right_input(self) -> RightInput | None:
        """Its second input, None where it has none."""
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
    def right(self) -> RightInput | None:
        return self.of.right_input

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


@dataclass
class ProcessTask(OperatorTask):
    """The user's own code."""

    operator: KeyedProcess | BatchProcess | Process
    output: pa.Schema
    sides: tuple[str, ...] = ()
    """The side outputs that somebody reads."""
    broadcast: tuple[str, ...] | None = None
    """The columns of its broadcast side, where it has one."""
    right: RightInput | None = field(default=None, kw_only=True)
    """The second input of a `KeyedCoProcess`."""
    event_time: TimeColumn | None = field(default=None, kw_only=True)
    """The column of its rows with their event time, where its state lives by it."""
    has_event_time: bool = field(default=False, kw_only=True)
    """Whether a source in front of it has event time."""
    _timers: Timers | None = field(default=None, init=False)

    @property
    def uses_time(self) -> bool:
        """See `OperatorTask.uses_time`."""
        return takes_timers(self.operator)

    @property
    def timers_fired(self) -> int:
        """See `OperatorTask.timers_fired`."""
        return 0 if self._timers is None else self._timers.fired

    def due(self, state: OpenState) -> Due:  # noqa: ARG002 - `apply` has opened the tables
        """See `OperatorTask.due`."""
        return Due() if self._timers is None else self._timers.due()

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.output

    @property
    def side_columns(self) -> Tags:
        """See `OperatorTask.side_columns`."""
        declared = declared_sides(self.operator)
        tags = side_tags(declared)
        return {tags[name]: declared[name].schema for name in self.sides}

    @property
    def broadcast_columns(self) -> tuple[str, ...] | None:
        """See `OperatorTask.broadcast_columns`."""
        return self.broadcast

    @property
    def right_input(self) -> RightInput | None:
        """See `OperatorTask.right_input`."""
        return self.right

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,
        bad: BadRecords,
        late: LateRows,  # noqa: ARG002
    ) -> Outputs:
        """See `OperatorTask.apply`. What a `BatchProcess` raises is about many keys at once, and stays a failure."""
        sides, clock = self._side_rows(), self.assignment.clock_of(self.uid)
        if self.uses_time:
            self._timers = Timers(state, clock, self.layout.key, has_event_time=self.has_event_time)
        context = Context(
            self.uid,
            self.assignment.batch,
            subtask,
            self.assignment.place.parallelism,
            _sides=sides,
            _watermark_us=clock.before_us,
            _now_us=clock.now_us,
        )
        own = SubtaskCells(self.operator, state, context)
        if rows.broadcast is not None:
            self._broadcast(rows.broadcast, own, context)
        table = rows.own
        if rows.right is not None and self.right is not None:
            times = self.event_time, self.right.event_time
            table = in_one_table(rows.own, rows.right, self.keys, self.right.keys, times, clock=clock)
        try:
            results = (
                self._results(table, state, own, context=context, bad=bad, sides=sides)
                if table.num_rows or self.uses_time
                else []
            )
        finally:
            if sides is not None:
                sides.close()
        own.write()
        outputs = {RESULTS: results}
        if sides is not None:
            tags = side_tags(declared_sides(self.operator))
            outputs |= {tags[name]: sides.batches(name) for name in self.sides}
        return outputs

    def _broadcast(self, rows: pa.Table, own: SubtaskCells, context: Context) -> None:
        with blamed_on(self.operator.process_broadcast):
            no_timers = NoTimers(
                self.uid, "in process_broadcast(): a timer belongs to a key, and here is none"
            )
            run_broadcast(
                self.operator, rows, own, replace(context, _sides=NoSides(self.uid), _timers=no_timers)
            )

    def _side_rows(self) -> SideRows | None:
        """For what is emitted, if the operator has side outputs."""
        declared = declared_sides(self.operator)
        kind = SideColumns if isinstance(self.operator, BatchProcess) else SideRows
        return kind(self.uid, declared, self.sides) if declared else None

    def _results(
        self,
        table: pa.Table,
        state: OpenState,
        own: SubtaskCells,
        *,
        context: Context,
        bad: BadRecords,
        sides: SideRows | None,
    ) -> list[pa.RecordBatch]:
        keys, operator = list(self.keys), self.operator
        column = self.event_time
        if TIME in table.column_names:  # of two inputs, each of which has its own and was judged by it
            column = TimeColumn(TIME, of_results=True)
        clock = self.assignment.clock_of(self.uid)
        time = TaskTime(
            clock if column is None else clock.judging(column),
            None if column is None else column.column,
            self._timers,
            earlier_us=0 if column is None else column.earlier_us,
        )
        if isinstance(operator, BatchProcess):
            with blamed_on(operator.process_batch):
                return run_batch_process(
                    operator,
                    table,
                    state,
                    key_names=keys,
                    output=self.output,
                    context=replace(
                        context, _timers=NoTimers(self.uid, "in columns: write state.set_timers(...)")
                    ),
                    time=time,
                )
        if isinstance(operator, Process):
            with blamed_on(operator.process):
                rows = table.drop_columns([SORT_KEY])
                no_timers = NoTimers(self.uid, "but a Process has no key that a timer could belong to")
                context = replace(context, _timers=no_timers)
                tolerant = self.on_bad_record is not OnBadRecord.FAIL
                return run_unkeyed(
                    operator,
                    rows,
                    own,
                    output=self.output,
                    context=context,
                    sides=sides,
                    bad=bad if tolerant else None,
                )
        if self.on_bad_record is OnBadRecord.FAIL:
            with blamed_on(operator.process):
                return run_process(
                    operator,
                    table,
                    state,
                    key_names=keys,
                    output=self.output,
                    context=context,
                    sides=sides,
                    time=time,
                )
        return run_process_tolerantly(
            operator,
            table,
            state,
            key_names=keys,
            output=self.output,
            context=context,
            bad=bad,
            tolerates=tolerates,
            sides=sides,
            time=time,
        )
