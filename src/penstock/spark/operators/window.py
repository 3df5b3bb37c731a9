"""The Spark side of windows: Spark puts rows into panes, aggregates these, and finds rows that come too late. Driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType
from typing_extensions import override

from penstock.config import OnBadRecord
from penstock.operators.aggregate.distinct import counting_distinct, with_sets
from penstock.operators.base import LEFT
from penstock.operators.event_time import TimeColumn
from penstock.operators.inputs import shown_keys
from penstock.operators.window.base import ABSURD, LATE, PANE, WINDOW_END, WINDOW_START
from penstock.operators.window.count import CountSpec
from penstock.operators.window.operator import Window
from penstock.operators.window.session import FIRST_ROW, LAST_ROW, SessionSpec
from penstock.operators.window.time import WindowSpec
from penstock.spark.dead_letters import all_nullable, grouped_with_bad_rows, has_no_key
from penstock.spark.event_times import event_time_of, in_microseconds
from penstock.spark.key_columns import quoted
from penstock.spark.operators.aggregate_columns import describe, distinct_values, partials, partials_of_a_row
from penstock.spark.operators.aggregate_values import DistinctValues, for_aggregates, with_arrival
from penstock.spark.operators.base import (
    BatchInput,
    ClockValue,
    CompiledOperator,
    OperatorInput,
    TaskFrame,
    check_names,
    check_order,
    compiled,
)
from penstock.spark.versions import arrow_schema, arrow_type
from penstock.state.keys import SORT_KEY
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.windows import CountWindows, SessionWindows, TimeWindows


def pane(windows: TimeWindows, time: Column, lateness_us: int, clock_value: ClockValue) -> Column:
    """The pane of a row, or `LATE` or `ABSURD`. Nothing is computed of an absurd time."""
    size_us, offset = windows.size_us, F.lit(windows.offset_us)
    newest = time - F.pmod(time - offset, F.lit(windows.every_us))
    late = newest <= clock_value(lambda clock: clock.closed_until_us(lateness_us) - size_us + 1)
    own = time - F.pmod(time - offset, F.lit(windows.pane_us))
    no_time = _absurd(time, size_us + lateness_us, clock_value)
    return F.when(no_time, F.lit(ABSURD)).when(late, F.lit(LATE)).otherwise(own)


def session_pane(gap_us: int, lateness_us: int, time: Column, clock_value: ClockValue) -> Column:
    """The pane of a row, as long as the gap: all rows of a pane are in one session."""
    own = time - F.pmod(time, F.lit(gap_us))
    return F.when(_absurd(time, gap_us + lateness_us, clock_value), F.lit(ABSURD)).otherwise(own)


def late_session(gap_us: int, lateness_us: int, time: Column, clock_value: ClockValue) -> Column:
    """Whether a row comes too late, unless its session has other rows that do not."""
    late = time <= clock_value(lambda clock: clock.closed_until_us(lateness_us) - gap_us + 1)
    return _absurd(time, gap_us + lateness_us, clock_value) | late


def _absurd(time: Column, longest_us: int, clock_value: ClockValue) -> Column:
    """Whether a time is missing, too far ahead of the clock, or so large that adding to it would overflow."""
    highest = clock_value(lambda clock: min(clock.latest_us, FAR_AWAY_US - 2 * longest_us))
    return time.isNull() | (time < F.lit(LONG_AGO_US + longest_us)) | (time > highest)


def _judging(time: TimeColumn, clock_value: ClockValue) -> ClockValue:
    """Values of the clock as it judges rows by this time."""
    return lambda make: clock_value(lambda clock: make(clock.judging(time)))


@dataclass(frozen=True)
class CompiledTimeWindow(CompiledOperator):
    """Aggregates of tumbling or sliding windows. Spark finds the late rows."""

    node: Window
    spec: WindowSpec
    time: TimeColumn
    partials: tuple[Column, ...]
    distinct: tuple[DistinctValues, ...] = ()

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns that decide to which subtask a row goes. A tumbling window is a key of its own, so `groupBy` puts it there."""
        windows = self.spec.windows
        return (*self.node.keys, PANE) if windows.every_us == windows.size_us else self.node.keys

    def grouped(self, rows: DataFrame, clock_value: ClockValue) -> DataFrame:
        """The aggregates by key and pane; late rows are panes of their own."""
        numbered = with_arrival(rows, self.spec.specs).withColumn(PANE, self._pane(rows, clock_value))
        return grouped_with_bad_rows(
            numbered,
            self.node.keys,
            self.partials,
            self.on_bad_record,
            self.distinct,
            also=(PANE,),
            numbered=True,
            counted=_counted(self.node),
        )

    @override
    def prepared(self, batch: BatchInput) -> TaskFrame:
        grouped, keys = self.grouped(batch.rows, batch.clock_value), self.placed_by
        return TaskFrame(grouped.withColumn(SORT_KEY, batch.sort_key(keys)), grouped_by=keys)

    @property
    @override
    def finds_late_rows(self) -> bool:
        return True

    def late_rows(self, rows: DataFrame, clock_value: ClockValue) -> DataFrame:
        """The late rows of a batch, unchanged. A row without a key is a bad row, and not late."""
        return rows.where((self._pane(rows, clock_value) < F.lit(LONG_AGO_US)) & ~has_no_key(self.node.keys))

    def _pane(self, rows: DataFrame, clock_value: ClockValue) -> Column:
        time = in_microseconds(self.time, rows)
        return pane(self.spec.windows, time, self.node.lateness_us, _judging(self.time, clock_value))


@dataclass(frozen=True)
class CompiledSession(CompiledOperator):
    """Aggregates of sessions. Tasks find the late rows, because that needs the state."""

    node: Window
    spec: SessionSpec
    time: TimeColumn
    partials: tuple[Column, ...]

    def prepared(self, batch: BatchInput) -> TaskFrame:
        """One row for each key and pane; rows that may be late come unchanged."""
        keys, time, clock_value = (
            self.node.keys,
            in_microseconds(self.time, batch.rows),
            _judging(self.time, batch.clock_value),
        )
        gap_us, lateness_us = self.spec.windows.gap_us, self.node.lateness_us
        rows = with_arrival(batch.rows, self.spec.specs)
        rows = rows.withColumn(PANE, session_pane(gap_us, lateness_us, time, clock_value))
        counted = F.when(F.col(PANE) >= F.lit(LONG_AGO_US), time)
        ends = (F.min(counted).alias(FIRST_ROW), F.max(counted).alias(LAST_ROW))
        may_be_late = (
            late_session(gap_us, lateness_us, time, clock_value) if LEFT in self.outputs.late else None
        )
        grouped = grouped_with_bad_rows(
            rows,
            keys,
            (*ends, *self.partials),
            self.on_bad_record,
            also=(PANE,),
            numbered=True,
            whole=may_be_late,
        )
        return TaskFrame(grouped.withColumn(SORT_KEY, batch.sort_key(keys)), grouped_by=keys)


@dataclass(frozen=True)
class CompiledCount(CompiledOperator):
    """Aggregates of count windows."""

    partials: tuple[Column, ...]
    whole: tuple[str, ...]
    """The columns of the stream."""

    def prepared(self, batch: BatchInput) -> TaskFrame:
        """The partial aggregates of each row, and the row itself where bad rows are kept."""
        keys = self.node.keys
        kept = self.whole if self.on_bad_record is OnBadRecord.KEEP else keys
        rows = batch.rows.select(*map(quoted, kept), *self.partials)
        return TaskFrame(rows.withColumn(SORT_KEY, batch.sort_key(keys)), grouped_by=keys)


@dataclass(frozen=True)
class CompiledWindowCode(CompiledOperator):
    """Own code over windows of any kind. Its tasks get unchanged rows."""

    def prepared(self, batch: BatchInput) -> TaskFrame:
        """All rows. Where Spark has already grouped them by the key, they are not shuffled again."""
        keys = self.node.keys
        return TaskFrame(batch.rows.withColumn(SORT_KEY, batch.sort_key(keys)), grouped_by=keys)


def compile_window(node: Window, given: OperatorInput) -> CompiledOperator:
    """Type it against the columns of its stream; raises `ConfigError`."""
    return _aggregates(node, given) if node.columns else _own_code(node, given)


def _aggregates(node: Window, given: OperatorInput) -> CompiledOperator:
    windows, frame, key = node.windows, given.frame, given.key
    timed = not isinstance(windows, CountWindows)
    specs = tuple(describe(name, column, frame, timed=timed) for name, column in node.columns.items())
    if not isinstance(windows, TimeWindows):
        specs = with_sets(specs)
    if isinstance(windows, CountWindows):
        each = tuple(
            part for spec in specs for part in partials_of_a_row(spec, node.columns[spec.name], frame)
        )
        result = all_nullable(_result(node, frame, ()))
        whole = tuple(frame.columns)
        return compiled(
            given, CountSpec(key, windows, specs), result, CompiledCount, partials=each, whole=whole
        )
    time = event_time_of(node.upstream, frame, uid=node.uid, named=node.event_time)
    kind = frame.schema[time.column].dataType
    result = _result(node, frame, (StructField(WINDOW_START, kind), StructField(WINDOW_END, kind)))
    distinct = tuple(
        distinct_values(spec, node.columns[spec.name], frame) for spec in counting_distinct(specs)
    )
    counted = _counted(node) & for_aggregates() if distinct else _counted(node)
    moment = in_microseconds(time, frame)
    parts = tuple(
        part for spec in specs for part in partials(spec, node.columns[spec.name], frame, counted, moment)
    )
    moments = arrow_type(kind)
    if isinstance(windows, SessionWindows):
        spec = SessionSpec(key, windows, node.lateness_us, specs, moments, time)
        return compiled(given, spec, all_nullable(result), CompiledSession, time=time, partials=parts)
    return compiled(
        given,
        WindowSpec(key, windows, node.lateness_us, specs, moments, time, node.early_us),
        all_nullable(result),
        CompiledTimeWindow,
        late=False,
        time=time,
        partials=parts,
        distinct=distinct,
    )


def _counted(node: Window) -> Column:
    """Whether a row counts: it is not late, and has a key."""
    return (F.col(PANE) >= F.lit(LONG_AGO_US)) & ~has_no_key(node.keys)


def _result(node: Window, frame: DataFrame, times: tuple[StructField, ...]) -> StructType:
    aggregated = frame.groupBy(*map(quoted, node.keys)).agg(
        *(column.alias(name) for name, column in node.columns.items())
    )
    fields = aggregated.schema.fields
    return StructType([*fields[: len(shown_keys(node.keys))], *times, *fields[len(node.keys) :]])


def _own_code(node: Window, given: OperatorInput) -> CompiledOperator:
    frame = given.frame
    check_names(node.uid, "only", frame)
    check_order(node.uid, node.order_by, frame)
    time = (
        None if node.counts_rows else event_time_of(node.upstream, frame, uid=node.uid, named=node.event_time)
    )
    spec = node.code_spec(arrow_schema(frame.schema), given.key, time)
    return compiled(given, spec, from_arrow_schema(spec.output), CompiledWindowCode)
