"""Own code with the columns of its input, and its work in one subtask and batch. Driver and executors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.config import OnBadRecord
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.calls import blamed_on
from penstock.operators.event_time import TimeColumn
from penstock.operators.inputs import RightInput, TaskRows
from penstock.operators.outputs import RESULTS, Outputs, SideRows, Tags, declared_sides, side_tags
from penstock.operators.process.co import TIME, in_one_table
from penstock.operators.process.columns import BatchProcess, SideColumns, run_batch_process
from penstock.operators.process.keyed import KeyedCode
from penstock.operators.process.operator import OwnCode
from penstock.operators.process.run_keyed import run_process
from penstock.operators.process.run_tolerant import run_process_tolerantly
from penstock.operators.process.unkeyed import Process, run_broadcast, run_unkeyed
from penstock.operators.process.user_code import Context, NoSides, OpenedCode
from penstock.operators.state.declarations import state_layout
from penstock.operators.state.subtask_states import SubtaskCells
from penstock.operators.state.task_time import TaskTime, Timers
from penstock.operators.state.timers import AT, CLOCK, EVENT_TIME, NoTimers, takes_timers, timer_table
from penstock.operators.views import Position, StoredTable, TableView, TimestampColumn, plain
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY

_NO_KEY = pa.schema([])
_TIMERS = {timer_table(EVENT_TIME, _NO_KEY).name: "timers", timer_table(CLOCK, _NO_KEY).name: "clock_timers"}


@dataclass(frozen=True, eq=False)
class ProcessSpec(Spec):
    """Own code, the key of its rows, and the columns of its results."""

    code: OwnCode
    key: pa.Schema
    results: pa.Schema
    sides_read: tuple[str, ...] = ()
    """The side outputs that are read."""
    broadcast_columns: tuple[str, ...] | None = None
    second: RightInput | None = None
    """The second input of a `KeyedCoProcess`."""
    event_time: TimeColumn | None = None
    """The event time column of its rows, if its state expires by event time."""
    has_event_time: bool = False
    """Whether a source before it has event time."""

    def layout(self) -> StateLayout:
        """The states that the class declares."""
        return state_layout(self.code, self.key)

    @property
    def output(self) -> pa.Schema:
        """The columns that the user declared."""
        return self.results

    @property
    def second_input(self) -> RightInput | None:
        """The second input of a `KeyedCoProcess`."""
        return self.second

    @property
    def broadcast(self) -> tuple[str, ...] | None:
        """The columns of its broadcast stream."""
        return self.broadcast_columns

    def sides(self) -> Tags:
        """The columns that the class declares for them."""
        declared = declared_sides(self.code)
        tags = side_tags(declared)
        return {tags[name]: declared[name].schema for name in self.sides_read}

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:
        """Timers, maps and lists under the names that the class declares."""
        name, names = table.name, table.names
        if name in _TIMERS:
            return TableView(_TIMERS[name], "timers", (TimestampColumn("at", AT),))
        if names == [f"{name}_key"]:
            return TableView(name, "map", plain(table.own), table.value)
        if names == [f"{name}_position"]:
            return TableView(name, "list", (Position(names[0], table.key),), table.value)
        return None

    def task(self, context: TaskContext) -> Task:
        """The calls of own code in one subtask."""
        return ProcessTask(context, self)


@dataclass
class ProcessTask(Task):
    """Calls own code: with rows of the broadcast stream first, then with the rows of each key, then with timers that are due."""

    spec: ProcessSpec
    _timers: Timers | None = field(default=None, init=False)
    _opened: OpenedCode = field(init=False)

    @property
    def uses_time(self) -> bool:
        """Whether the class has a function for timers."""
        return takes_timers(self.spec.code)

    @property
    def timers_fired(self) -> int:
        """The number of timers that fired."""
        return 0 if self._timers is None else self._timers.fired

    def due(self) -> Due:
        """The first timers that are set."""
        return Due() if self._timers is None else self._timers.due()

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """Returns results and side outputs. An exception of a `BatchProcess` concerns many keys at once, so it always fails the task."""
        spec, clock, sides = self.spec, self.context.clock, self._side_rows()
        if self.uses_time:
            self._timers = Timers(state, clock, spec.key, has_event_time=spec.has_event_time)
        context = Context(
            self.context.uid,
            self.context.batch,
            self.context.subtask,
            self.context.parallelism,
            _sides=sides,
            _watermark_us=clock.before_us,
            _now_us=clock.now_us,
        )
        with OpenedCode(spec.code, context) as self._opened:
            return self._called(rows, state, context, sides)

    def _called(self, rows: TaskRows, state: OpenState, context: Context, sides: SideRows | None) -> Outputs:
        spec, clock = self.spec, self.context.clock
        own = SubtaskCells(spec.code, state, context)
        if rows.broadcast is not None:
            self._broadcast(rows.broadcast, own, context)
        table = rows.own
        if rows.right is not None and spec.second is not None:
            times = spec.event_time, spec.second.event_time
            keys = self.context.keys, spec.second.keys
            table = in_one_table(rows.own, rows.right, *keys, times, clock=clock)
        try:
            results = (
                self._results(table, state, own, context, sides) if table.num_rows or self.uses_time else []
            )
        finally:
            if sides is not None:
                sides.close()
        own.write()
        outputs = {RESULTS: results}
        if sides is not None:
            tags = side_tags(declared_sides(spec.code))
            outputs |= {tags[name]: sides.batches(name) for name in spec.sides_read}
        return outputs

    def _broadcast(self, rows: pa.Table, own: SubtaskCells, context: Context) -> None:
        code, uid = self.spec.code, self.context.uid
        self._opened.open()
        with blamed_on(code.process_broadcast):
            no_timers = NoTimers(uid, "in process_broadcast(): a timer belongs to a key, and here is none")
            run_broadcast(code, rows, own, replace(context, _sides=NoSides(uid), _timers=no_timers))

    def _side_rows(self) -> SideRows | None:
        """Collects emitted rows; None if the class has no side outputs."""
        declared = declared_sides(self.spec.code)
        kind = SideColumns if isinstance(self.spec.code, BatchProcess) else SideRows
        return kind(self.context.uid, declared, self.spec.sides_read) if declared else None

    def _results(
        self, table: pa.Table, state: OpenState, own: SubtaskCells, context: Context, sides: SideRows | None
    ) -> list[pa.RecordBatch]:
        code = self.spec.code
        if isinstance(code, BatchProcess):
            return self._in_columns(code, table, state, context)
        if isinstance(code, Process):
            return self._without_key(code, table, own, context, sides)
        return self._by_key(code, table, state, context, sides)

    def _in_columns(
        self, code: BatchProcess, table: pa.Table, state: OpenState, context: Context
    ) -> list[pa.RecordBatch]:
        no_timers = NoTimers(self.context.uid, "in columns: write state.set_timers(...)")
        with blamed_on(code.process_batch):
            return run_batch_process(
                code,
                table,
                state,
                key_names=list(self.context.keys),
                output=self.spec.results,
                context=replace(context, _timers=no_timers),
                time=self._time(table),
            )

    def _without_key(
        self, code: Process, table: pa.Table, own: SubtaskCells, context: Context, sides: SideRows | None
    ) -> list[pa.RecordBatch]:
        no_timers = NoTimers(self.context.uid, "but a Process has no key that a timer could belong to")
        tolerant = self.context.on_bad_record is not OnBadRecord.FAIL
        self._opened.open()
        with blamed_on(code.process):
            return run_unkeyed(
                code,
                table.drop_columns([SORT_KEY]),
                own,
                output=self.spec.results,
                context=replace(context, _timers=no_timers),
                sides=sides,
                bad=self.context.bad if tolerant else None,
            )

    def _by_key(
        self, code: KeyedCode, table: pa.Table, state: OpenState, context: Context, sides: SideRows | None
    ) -> list[pa.RecordBatch]:
        keys, time = list(self.context.keys), self._time(table)
        if self.context.on_bad_record is OnBadRecord.FAIL:
            with blamed_on(code.process):
                return run_process(
                    code,
                    table,
                    state,
                    key_names=keys,
                    output=self.spec.results,
                    context=context,
                    sides=sides,
                    time=time,
                )
        return run_process_tolerantly(
            code,
            table,
            state,
            key_names=keys,
            output=self.spec.results,
            context=context,
            bad=self.context.bad,
            tolerates=self.context.tolerates,
            sides=sides,
            time=time,
        )

    def _time(self, table: pa.Table) -> TaskTime:
        clock, column = self.context.clock, self.spec.event_time
        if TIME in table.column_names:  # of two inputs, each of which has its own and was judged by it
            column = TimeColumn(TIME, of_results=True)
        return TaskTime(
            clock if column is None else clock.judging(column),
            None if column is None else column.column,
            self._timers,
            earlier_us=0 if column is None else column.earlier_us,
            begin=self._opened.open,
        )
