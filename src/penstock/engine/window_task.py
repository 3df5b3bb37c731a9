"""What a subtask of a window does with the rows of a batch, or with what Spark has made of them. Executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from penstock.engine.operator_task import OperatorTask
from penstock.ids import SubtaskId
from penstock.operators.aggregate.operator import rows_stood_for, without_null_keys
from penstock.operators.bad_records import ROW, ROWS, BadRecords
from penstock.operators.clock import OperatorClock
from penstock.operators.count_rows import CountRowsSpec, run_count_rows
from penstock.operators.count_windows import CountSpec, run_count_windows
from penstock.operators.failed_call import blamed_on
from penstock.operators.grouping import null_keys
from penstock.operators.inputs import TaskRows
from penstock.operators.late_panes import ABSURD, refused, without_late_rows
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.process.keyed import Context
from penstock.operators.session_aggregate import SessionRun, SessionSpec
from penstock.operators.session_rows import SessionRowsSpec, run_session_rows
from penstock.operators.time_column import TimeColumn
from penstock.operators.window_aggregate import PANE, WindowRun, WindowSpec
from penstock.operators.window_rows import WindowRowsSpec, run_window_rows
from penstock.state.backends.base import OpenState
from penstock.state.backends.equality import Flags
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US


@dataclass
class _WindowTask(OperatorTask):
    """A window of any kind."""

    time: TimeColumn | None = field(default=None, kw_only=True)
    """The column of its rows with their event time; None where rows alone decide."""
    _due: Due = field(default=Due(), init=False)

    @property
    def uses_time(self) -> bool:
        """See `OperatorTask.uses_time`."""
        return True

    def due(self, state: OpenState) -> Due:  # noqa: ARG002
        """See `OperatorTask.due`."""
        return self._due

    def over_us(self, subtask: SubtaskId) -> int | None:
        """See `OperatorTask.over_us`. After the end of a drained input windows may begin anew: that says nothing."""
        if self.lateness_us is None:
            return None
        clock = self._clock(subtask.index)
        is_end = clock.watermark_us >= FAR_AWAY_US
        over_us = clock.over_us if is_end else max(clock.over_us, clock.watermark_us - self.lateness_us)
        return None if over_us <= LONG_AGO_US else over_us

    @property
    def lateness_us(self) -> int | None:
        """So long windows are kept after their end; None where time has nothing to do with them."""
        return None

    def _clock(self, subtask: int) -> OperatorClock:
        """At least once the state may be of a later batch than the watermark: windows that were over in it do not begin anew."""
        clock = self.assignment.clock_of(self.uid)
        clock = clock if self.time is None else clock.judging(self.time)
        before = self.assignment.handles.get(SubtaskId(self.uid, subtask))
        if before is None or before.over_us is None:
            return clock
        return replace(clock, over_us=max(clock.over_us, before.over_us))


@dataclass
class _ReducedTask(_WindowTask):
    """Spark has reduced the rows of a key and a stretch of time to one. Those without a key it has only counted, or left as they are."""

    def rows_given(self, table: pa.Table) -> int:
        """See `OperatorTask.rows_given`."""
        return rows_stood_for(table)

    def shown_columns(self, table: pa.Table) -> list[str]:  # noqa: ARG002
        """See `OperatorTask.shown_columns`. Of the rows of a key only the key is left; one with one column is null, as is said."""
        return list(self.keys) if len(self.keys) > 1 else []

    def without_null_keys(self, table: pa.Table, bad: BadRecords, keys: Sequence[str]) -> pa.Table:
        """See `OperatorTask.without_null_keys`."""
        return without_null_keys(table, keys, bad)


@dataclass
class WindowAggregateTask(_ReducedTask):
    """SQL aggregates of tumbling or sliding windows."""

    spec: WindowSpec

    @property
    def lateness_us(self) -> int | None:
        """See `_WindowTask.lateness_us`."""
        return self.spec.lateness_us

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.output

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,
    ) -> Outputs:
        """See `OperatorTask.apply`. Late rows are only counted here: those that somebody reads Spark gives itself."""
        clock = self._clock(subtask)
        own, number = without_late_rows(rows.own, PANE, ROWS, clock, self.uid)
        run = WindowRun(self.spec, state, clock)
        results = run.run(own)
        late.add_number(number + int(own.column(ROWS).to_numpy()[run.late].sum()))
        self._due = run.due
        return {RESULTS: results}


@dataclass
class SessionAggregateTask(_ReducedTask):
    """SQL aggregates of sessions. Rows that may be late come as they are, where somebody reads them."""

    spec: SessionSpec

    @property
    def lateness_us(self) -> int | None:
        """See `_WindowTask.lateness_us`."""
        return self.spec.lateness_us

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.output

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,
    ) -> Outputs:
        """See `OperatorTask.apply`."""
        clock = self._clock(subtask)
        absurd = rows.own.column(PANE).to_numpy() == ABSURD
        if absurd.any() and clock.refuses_absurd:
            raise refused(int(rows.own.column(ROWS).to_numpy()[absurd].sum()), self.uid)
        sensible = rows.own.filter(pa.array(~absurd))
        run = SessionRun(self.spec, state, clock)
        is_late = run.take_in(sensible)
        run.close()
        for some, flags in ((rows.own, absurd), (sensible, is_late)):
            _add_late(some, flags, late)
        self._due = Due(event_us=run.waits_for)
        return {RESULTS: run.results}


def _add_late(rows: pa.Table, flags: Flags, late: LateRows) -> None:
    if not flags.any():
        return
    numbers = rows.column(ROWS).to_numpy()[flags]
    if not late.kept:
        late.add_number(int(numbers.sum()))
        return
    whole = rows.column(ROW).filter(pa.array(flags)).combine_chunks()
    late.add(
        pa.RecordBatch.from_struct_array(whole.take(pa.array(np.repeat(np.arange(len(whole)), numbers))))
    )


@dataclass
class CountAggregateTask(_WindowTask):
    """SQL aggregates of every so many rows; each row comes with the partial aggregates of it alone."""

    spec: CountSpec

    @property
    def uses_time(self) -> bool:
        """See `OperatorTask.uses_time`."""
        return False

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.output

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,  # noqa: ARG002
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,  # noqa: ARG002
    ) -> Outputs:
        """See `OperatorTask.apply`."""
        return {RESULTS: run_count_windows(self.spec, rows.own, state)}

    def shown_columns(self, table: pa.Table) -> list[str]:
        """See `OperatorTask.shown_columns`."""
        own = {SORT_KEY, *self.spec.layout().value.names}
        return [name for name in table.column_names if name not in own]

    def without_null_keys(self, table: pa.Table, bad: BadRecords, keys: Sequence[str]) -> pa.Table:
        """See `OperatorTask.without_null_keys`."""
        flags, reasons = null_keys(table, list(keys))
        if not reasons:
            return table
        bad.add(table.filter(pa.array(flags)).select(self.shown_columns(table)), reasons, keys)
        return table.filter(pa.array(~flags))


@dataclass
class WindowProcessTask(_WindowTask):
    """Own code over windows of any kind. What it raises ends the run."""

    spec: WindowRowsSpec | SessionRowsSpec | CountRowsSpec

    @property
    def lateness_us(self) -> int | None:
        """See `_WindowTask.lateness_us`."""
        return None if isinstance(self.spec, CountRowsSpec) else self.spec.lateness_us

    @property
    def uses_time(self) -> bool:
        """See `OperatorTask.uses_time`."""
        return not isinstance(self.spec, CountRowsSpec)

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.code.output

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,
    ) -> Outputs:
        """See `OperatorTask.apply`."""
        clock = self._clock(subtask)
        context = Context(
            self.uid,
            self.assignment.batch,
            subtask,
            self.assignment.place.parallelism,
            _watermark_us=clock.watermark_us if self.uses_time else clock.before_us,
            _now_us=clock.now_us,
        )
        with blamed_on(self.spec.code.operator.process):
            if isinstance(self.spec, CountRowsSpec):
                return {RESULTS: run_count_rows(self.spec, rows.own, state, context)}
            given = (
                run_session_rows(self.spec, rows.own, state, clock, context)
                if isinstance(self.spec, SessionRowsSpec)
                else run_window_rows(self.spec, rows.own, state, clock, context)
            )
        late.add(given.late)
        self._due = Due(event_us=given.waits_for)
        return {RESULTS: given.results}
