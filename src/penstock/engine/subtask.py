"""What a subtask of an operator does with the rows of one batch. Executors.

An operator does all its work, freezes its state and answers before it hands on a single result: whatever Spark does with the results
(reads only some of them, stops early), the state has seen every row of the batch.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace

import msgspec
import pyarrow as pa

from penstock.checkpoint.completed import SubtaskReport
from penstock.clock import Stopwatch
from penstock.config import OnBadRecord
from penstock.engine.assignment import Assignment, BadCount, OperatorAnswer
from penstock.engine.dead_letters import tolerates
from penstock.engine.executor import Executor
from penstock.engine.task_failures import tell_failure
from penstock.ids import SubtaskId
from penstock.operators.bad_records import LETTER, BadRecords
from penstock.operators.batch_process import BatchProcess
from penstock.operators.broadcast import NoSides
from penstock.operators.failed_call import blamed_on
from penstock.operators.grouping import check_rows, null_keys
from penstock.operators.inputs import RightInput, TaskRows, collected, divided
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import BAD, LATE, RESULTS, Outputs, Tags, side_tags, tagged
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
from penstock.snapshot.merger import Merge
from penstock.snapshot.uploader import Upload, remember_newest
from penstock.state.backends.base import OpenState, StateLayout, Workplace
from penstock.state.handle import Due, StateHandle
from penstock.state.keys import SORT_KEY, key_groups, owner
from penstock.state.local_files import begin_run, forget_earlier_runs, forget_unnamed


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

    @abstractmethod
    def apply(
        self, rows: TaskRows, state: OpenState, subtask: int, bad: BadRecords, late: LateRows
    ) -> Outputs:
        """Update the state with the rows, return the results and what else it gives. Rows that it may leave out go to `bad` or `late`.

        Called when there are rows. An operator that uses time is called without any, too, when something may be due in its state.
        """

    @property
    def timers_fired(self) -> int:
        """How many timers have fired: each counts as a row of which something may be bad."""
        return 0

    @property
    def uses_time(self) -> bool:
        """Whether something happens in its state because time goes on: a timer fires, a window closes."""
        return False

    def due(self, state: OpenState) -> Due:  # noqa: ARG002
        """For what the state waits after this batch, behind the watermark and the time to which the batch has come.

        Called once, after `apply` and before the state is frozen; what `apply` has written is in it, or still known to the task. What is
        left out here nobody looks for, and it comes too late or never: too early only costs a batch.
        """
        return Due()

    def over_us(self, subtask: SubtaskId) -> int | None:  # noqa: ARG002
        """Up to where windows are forgotten in the state after this batch; None where it has no windows in event time."""
        return None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        attempt = self.executor.attempt()
        waiting = Stopwatch()
        table = collected(batches, self.layout.key)
        alignment_ms = waiting.ms
        if table is None:
            self.executor.answer(OperatorAnswer(self.uid, attempt, None, None))
            return
        subtask = self._subtask_of(table)
        try:
            results = self._work(table, subtask, attempt, alignment_ms)
        except Exception as error:
            tell_failure(self.executor, self.assignment, subtask, error)
            raise
        yield from results

    def _work(
        self, table: pa.Table, subtask: SubtaskId, attempt: int, alignment_ms: float
    ) -> list[pa.RecordBatch]:
        plan = self.assignment
        begin_run(plan.place.local_dir, plan.keep if plan.place.local_recovery else frozenset())
        bad = BadRecords(self.uid, plan.batch, kept=self.on_bad_record is OnBadRecord.KEEP)
        late = LateRows(self.late)
        rows = divided(table, self.broadcast_columns, self.right_columns)
        if rows.broadcast is not None:
            check_rows(
                table, [], operator=self.uid, subtask=subtask.index, parallelism=plan.place.parallelism
            )
        received, given = len(rows), self.rows_given(rows.own)
        given += 0 if rows.right is None else int(rows.right.num_rows)
        rows = self.checked(rows, subtask, bad)
        before = plan.handles.get(subtask)
        workplace = Workplace.of(
            plan.place,
            subtask,
            version=plan.batch,
            attempt=attempt,
            merging=plan.merging,
            arriving=plan.undurable,
            clock=self.executor.clock,
            time=plan.time_of(self.uid),
        )
        with closing(plan.place.backend.open(workplace, self.layout, before)) as state:
            called = bool(rows) or self.uses_time
            outputs = self.apply(rows, state, subtask.index, bad, late) if called else {}
            due = self.due(state)
            if plan.ends_event_time:
                state.purge()
            freezing = Stopwatch()
            handle = msgspec.structs.replace(state.freeze(), due=due, over_us=self.over_us(subtask))
        report = self._report(handle, before, received, alignment_ms, freezing.ms)
        report = msgspec.structs.replace(report, **asdict(workplace.origins))
        count = BadCount(bad.count, given + self.timers_fired, bad.first_reason)
        self.executor.answer(OperatorAnswer(self.uid, attempt, handle, report, count, late.count))
        self._upload(handle, before)
        self._merge(workplace)
        self._tidy(handle)
        beside = {BAD: bad.letters(), LATE: late.batches()}
        return tagged({**outputs, **beside}, self.result_schema, self.tags)

    @property
    def tags(self) -> Tags:
        """What travels with its results, where somebody wants it."""
        bad = {BAD: LETTER} if self.on_bad_record is OnBadRecord.KEEP else {}
        return bad if self.late is None else {**bad, LATE: self.late}

    @property
    @abstractmethod
    def result_schema(self) -> pa.Schema:
        """The columns of its results."""

    @property
    def broadcast_columns(self) -> Sequence[str] | None:
        """The columns of its broadcast side, None where it has none."""
        return None

    @property
    def right_columns(self) -> Sequence[str] | None:
        """The columns of its second input, None where it has none."""
        return None

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The key columns of its second input."""
        return ()

    def checked(self, rows: TaskRows, subtask: SubtaskId, bad: BadRecords) -> TaskRows:
        """The rows without those that have no key, where these are left out; refuses them otherwise, and rows of another subtask."""
        if self.on_bad_record is not OnBadRecord.FAIL:
            rows = replace(rows, own=self.without_null_keys(rows.own, bad))
            if rows.right is not None:
                rows = replace(rows, right=without_null_keys(rows.right, self.right_keys, bad))
        for table, keys in ((rows.own, self.keys), (rows.right, self.right_keys)):
            if table is not None:
                check_rows(
                    table,
                    list(keys),
                    operator=self.uid,
                    subtask=subtask.index,
                    parallelism=self.assignment.place.parallelism,
                    shown=self.shown_columns(table),
                )
        return rows

    def rows_given(self, table: pa.Table) -> int:
        """How many rows of the stream these stand for."""
        return int(table.num_rows)

    def shown_columns(self, table: pa.Table) -> list[str]:
        """What is said of a row without a key."""
        return [name for name in table.column_names if name != SORT_KEY]

    def without_null_keys(self, table: pa.Table, bad: BadRecords) -> pa.Table:
        """Leave out the rows that have no key."""
        return without_null_keys(table, self.keys, bad)

    def _subtask_of(self, table: pa.Table) -> SubtaskId:
        """Which subtask this is. Not Spark's partition number: in a union of several operators that counts through all of them."""
        group = int(key_groups(table.column(SORT_KEY).slice(0, 1).to_numpy())[0])
        return SubtaskId(self.uid, owner(group, self.assignment.place.parallelism))

    def _report(
        self, handle: StateHandle, before: StateHandle | None, rows: int, alignment_ms: float, sync_ms: float
    ) -> SubtaskReport:
        known = set(before.refs) if before else set()
        return SubtaskReport(
            subtask=handle.subtask,
            rows=rows,
            alignment_ms=alignment_ms,
            sync_ms=sync_ms,
            state_bytes=handle.size,
            new_bytes=sum(ref.size for ref in handle.refs if ref not in known),
            host=socket.gethostname(),
        )

    def _upload(self, handle: StateHandle, before: StateHandle | None) -> None:
        plan = self.assignment
        durable = frozenset() if before is None else before.files - plan.undurable
        if handle.files <= durable:
            return
        if plan.newest_will_do:
            remember_newest(plan.place.local_dir, handle)
        self.executor.upload(
            Upload(
                plan.place.storage,
                plan.place.local_dir,
                plan.place.mailbox,
                plan.place.run,
                handle,
                durable,
                required=plan.required,
                newest_will_do=plan.newest_will_do,
                awaited=plan.awaited,
            )
        )

    def _merge(self, workplace: Workplace) -> None:
        plan = self.assignment
        order = plan.merges.get(workplace.subtask)
        if order is not None:
            self.executor.merge(
                Merge(plan.place.backend, workplace, self.layout, order, plan.place.mailbox, plan.place.run)
            )

    def _tidy(self, handle: StateHandle) -> None:
        plan = self.assignment
        if plan.forget_earlier_runs:
            forget_earlier_runs(plan.place.local_dir)
        subtask = handle.subtask
        forget_unnamed(
            plan.place.local_dir,
            run=plan.place.run,
            batch=plan.batch,
            uid=subtask.uid,
            subtask=subtask.index,
            named=handle.files | plan.keep,
            merging=subtask in plan.expecting,
        )


def without_null_keys(table: pa.Table, keys: Sequence[str], bad: BadRecords) -> pa.Table:
    """The rows that have a key; the others are bad."""
    flags, reasons = null_keys(table, list(keys))
    if not reasons:
        return table
    bad.add(table.filter(pa.array(flags)).drop_columns([SORT_KEY]), reasons, keys)
    return table.filter(pa.array(~flags))


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
    def tags(self) -> Tags:
        """See `OperatorTask.tags`."""
        declared, tags = declared_sides(self.operator), side_tags(self.operator)
        return {**super().tags, **{tags[name]: declared[name].schema for name in self.sides}}

    @property
    def broadcast_columns(self) -> Sequence[str] | None:
        """See `OperatorTask.broadcast_columns`."""
        return self.broadcast

    @property
    def right_columns(self) -> Sequence[str] | None:
        """See `OperatorTask.right_columns`."""
        return None if self.right is None else self.right.columns

    @property
    def right_keys(self) -> tuple[str, ...]:
        """See `OperatorTask.right_keys`."""
        return () if self.right is None else self.right.keys

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
            tags = side_tags(self.operator)
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
