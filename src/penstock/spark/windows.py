"""Windows as Spark sees them: which columns they need, what it does with the rows of a batch, and which tasks take them. Driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.config import OnBadRecord
from penstock.engine.assignment import Assignment
from penstock.engine.executor import Executor
from penstock.engine.operator_task import OperatorTask
from penstock.engine.window_task import (
    CountAggregateTask,
    SessionAggregateTask,
    WindowAggregateTask,
    WindowProcessTask,
)
from penstock.errors import ConfigError, InternalError
from penstock.operators.aggregate.distinct import counting_distinct, with_sets
from penstock.operators.clock import OperatorClock
from penstock.operators.count_rows import CountRowsSpec
from penstock.operators.count_windows import CountSpec
from penstock.operators.everything import shown_keys
from penstock.operators.session_aggregate import FIRST_ROW, LAST_ROW, SessionSpec
from penstock.operators.session_rows import SessionRowsSpec
from penstock.operators.time_column import TimeColumn
from penstock.operators.window import Window
from penstock.operators.window_aggregate import PANE, WindowSpec
from penstock.operators.window_calls import WindowCode
from penstock.operators.window_kinds import (
    WINDOW_END,
    WINDOW_START,
    CountWindows,
    SessionWindows,
    TimeWindows,
)
from penstock.operators.window_rows import WindowRowsSpec
from penstock.spark.dead_letters import all_nullable, grouped_with_bad_rows, has_no_key
from penstock.spark.event_times import event_time_of, in_microseconds
from penstock.spark.key_columns import quoted
from penstock.spark.operators.aggregate_columns import describe, distinct_values, partials, partials_of_a_row
from penstock.spark.operators.aggregate_values import DistinctValues, for_aggregates, with_arrival
from penstock.spark.panes import late_session, pane, session_pane
from penstock.spark.versions import arrow_schema, arrow_type
from penstock.state.backends.base import StateLayout
from penstock.state.lifetimes import LONG_AGO_US

Common = tuple[str, tuple[str, ...], StateLayout, Assignment, Executor, OnBadRecord]
"""What every task is given."""


@dataclass(frozen=True)
class CompiledWindow(ABC):
    """A window with its types."""

    node: Window
    result: StructType

    @property
    @abstractmethod
    def layout(self) -> StateLayout:
        """What its state has."""

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns of `rows` that say to which subtask a row goes."""
        return self.node.keys

    @abstractmethod
    def rows(self, frame: DataFrame, clock: OperatorClock, policy: OnBadRecord, *, late: bool) -> DataFrame:
        """What of the rows of a batch its tasks are given; `late`: whether somebody reads late rows."""

    @abstractmethod
    def task(self, common: Common, late: pa.Schema | None) -> OperatorTask:
        """The task."""


@dataclass(frozen=True)
class TimeWindowAggregate(CompiledWindow):
    """Aggregates of tumbling or sliding windows."""

    time: TimeColumn
    spec: WindowSpec
    partials: tuple[Column, ...]
    distinct: tuple[DistinctValues, ...] = ()

    @property
    def placed_by(self) -> tuple[str, ...]:
        """See `CompiledWindow.placed_by`. A tumbling window is a key of its own: so Spark's `groupBy` has put it where it belongs."""
        windows = self.spec.windows
        return (*self.node.keys, PANE) if windows.every_us == windows.size_us else self.node.keys

    @property
    def layout(self) -> StateLayout:
        """See `CompiledWindow.layout`."""
        return self.spec.layout()

    def rows(self, frame: DataFrame, clock: OperatorClock, policy: OnBadRecord, *, late: bool) -> DataFrame:  # noqa: ARG002
        """See `CompiledWindow.rows`. The aggregates by key and pane; late rows are panes of their own."""
        rows = with_arrival(frame, self.spec.specs).withColumn(PANE, self._pane(frame, clock))
        return grouped_with_bad_rows(
            rows,
            self.node.keys,
            self.partials,
            policy,
            self.distinct,
            also=(PANE,),
            numbered=True,
            counted=_counted(self.node),
        )

    def late_rows(self, frame: DataFrame, clock: OperatorClock) -> DataFrame:
        """Of the rows of a batch those that come too late, as they came. A row without a key is a bad row, and not late."""
        return frame.where((self._pane(frame, clock) < F.lit(LONG_AGO_US)) & ~has_no_key(self.node.keys))

    def _pane(self, frame: DataFrame, clock: OperatorClock) -> Column:
        clock = clock.judging(self.time)
        return pane(self.spec.windows, in_microseconds(self.time, frame), self.node.lateness_us, clock)

    def task(self, common: Common, late: pa.Schema | None) -> OperatorTask:
        """See `CompiledWindow.task`."""
        return WindowAggregateTask(*common, self.spec, late=late, time=self.time)


@dataclass(frozen=True)
class SessionAggregate(CompiledWindow):
    """Aggregates of sessions. Which rows are late is known only beside the state."""

    time: TimeColumn
    spec: SessionSpec
    partials: tuple[Column, ...]

    @property
    def layout(self) -> StateLayout:
        """See `CompiledWindow.layout`."""
        return self.spec.layout()

    def rows(self, frame: DataFrame, clock: OperatorClock, policy: OnBadRecord, *, late: bool) -> DataFrame:
        """See `CompiledWindow.rows`. The aggregates by key and stretch of a gap's length; rows that may be late as they are."""
        time, clock = in_microseconds(self.time, frame), clock.judging(self.time)
        gap_us, lateness_us = self.spec.windows.gap_us, self.node.lateness_us
        rows = with_arrival(frame, self.spec.specs)
        rows = rows.withColumn(PANE, session_pane(gap_us, lateness_us, time, clock))
        counted = F.when(F.col(PANE) >= F.lit(LONG_AGO_US), time)
        ends = (F.min(counted).alias(FIRST_ROW), F.max(counted).alias(LAST_ROW))
        may_be_late = late_session(gap_us, lateness_us, time, clock) if late else None
        return grouped_with_bad_rows(
            rows,
            self.node.keys,
            (*ends, *self.partials),
            policy,
            also=(PANE,),
            numbered=True,
            whole=may_be_late,
        )

    def task(self, common: Common, late: pa.Schema | None) -> OperatorTask:
        """See `CompiledWindow.task`."""
        return SessionAggregateTask(*common, self.spec, late=late, time=self.time)


@dataclass(frozen=True)
class CountAggregate(CompiledWindow):
    """Aggregates of every so many rows."""

    spec: CountSpec
    partials: tuple[Column, ...]
    columns: tuple[str, ...]

    @property
    def layout(self) -> StateLayout:
        """See `CompiledWindow.layout`."""
        return self.spec.layout()

    def rows(self, frame: DataFrame, clock: OperatorClock, policy: OnBadRecord, *, late: bool) -> DataFrame:  # noqa: ARG002
        """See `CompiledWindow.rows`. The partial aggregates of each row alone, and the row where it may be wanted as it is."""
        kept = self.columns if policy is OnBadRecord.KEEP else self.node.keys
        return frame.select(*map(quoted, kept), *self.partials)

    def task(self, common: Common, late: pa.Schema | None) -> OperatorTask:
        """See `CompiledWindow.task`."""
        return CountAggregateTask(*common, self.spec, late=late)


@dataclass(frozen=True)
class WindowOwnCode(CompiledWindow):
    """Own code over windows of any kind. Its tasks get the rows as they are."""

    spec: WindowRowsSpec | SessionRowsSpec | CountRowsSpec

    @property
    def layout(self) -> StateLayout:
        """See `CompiledWindow.layout`."""
        return self.spec.layout()

    def rows(self, frame: DataFrame, clock: OperatorClock, policy: OnBadRecord, *, late: bool) -> DataFrame:  # noqa: ARG002
        """See `CompiledWindow.rows`."""
        return frame

    def task(self, common: Common, late: pa.Schema | None) -> OperatorTask:
        """See `CompiledWindow.task`."""
        return WindowProcessTask(*common, self.spec, late=late)


def gives_late_rows_itself(node: object) -> bool:
    """Whether Spark finds the late rows of an operator, before any task sees them."""
    return isinstance(node, Window) and bool(node.columns) and isinstance(node.windows, TimeWindows)


def compile_window(node: Window, frame: DataFrame, key: pa.Schema) -> CompiledWindow:
    """Check a window against the columns there are; `frame` is empty and has those of its stream."""
    if node.columns:
        return _aggregates(node, frame, key)
    if node.operator is None or node.output is None:
        raise InternalError(f"window {node.uid!r} has neither aggregates nor own code")
    return _own_code(node, frame, key)


def _aggregates(node: Window, frame: DataFrame, key: pa.Schema) -> CompiledWindow:
    windows = node.windows
    timed = not isinstance(windows, CountWindows)
    specs = tuple(describe(name, column, frame, timed=timed) for name, column in node.columns.items())
    if not isinstance(windows, TimeWindows):
        specs = with_sets(specs)
    if isinstance(windows, CountWindows):
        each = tuple(
            part for spec in specs for part in partials_of_a_row(spec, node.columns[spec.name], frame)
        )
        result = all_nullable(_result(node, frame, ()))
        return CountAggregate(node, result, CountSpec(key, windows, specs), each, tuple(frame.columns))
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
        spec = SessionSpec(key, windows, node.lateness_us, specs, moments)
        return SessionAggregate(node, all_nullable(result), time, spec, parts)
    by_time = WindowSpec(key, windows, node.lateness_us, specs, moments, node.early_us)
    return TimeWindowAggregate(node, all_nullable(result), time, by_time, parts, distinct)


def _counted(node: Window) -> Column:
    """Which rows count: those that are not late, and have a key."""
    return (F.col(PANE) >= F.lit(LONG_AGO_US)) & ~has_no_key(node.keys)


def _result(node: Window, frame: DataFrame, times: tuple[StructField, ...]) -> StructType:
    aggregated = frame.groupBy(*map(quoted, node.keys)).agg(
        *(column.alias(name) for name, column in node.columns.items())
    )
    fields = aggregated.schema.fields
    return StructType([*fields[: len(shown_keys(node.keys))], *times, *fields[len(node.keys) :]])


def _own_code(node: Window, frame: DataFrame, key: pa.Schema) -> CompiledWindow:
    _check_columns(node, frame)
    if node.operator is None or node.output is None:
        raise InternalError(f"window {node.uid!r} has no own code")
    columns, windows = arrow_schema(frame.schema), node.windows
    result = from_arrow_schema(node.output)
    if isinstance(windows, CountWindows):
        code = WindowCode(node.operator, node.output, None)
        return WindowOwnCode(node, result, CountRowsSpec(key, windows, columns, code, node.order_by))
    time = event_time_of(node.upstream, frame, uid=node.uid, named=node.event_time)
    code = WindowCode(node.operator, node.output, columns.field(time.column).type)
    if isinstance(windows, SessionWindows):
        sessions = SessionRowsSpec(key, windows, node.lateness_us, columns, time, node.order_by, code)
        return WindowOwnCode(node, result, sessions)
    spec = WindowRowsSpec(key, windows, node.lateness_us, columns, time, node.order_by, code)
    return WindowOwnCode(node, result, spec)


def _check_columns(node: Window, frame: DataFrame) -> None:
    times = Counter(name.lower() for name in frame.columns)
    twice = [name for name in frame.columns if times[name.lower()] > 1]
    if twice:
        raise ConfigError(
            f"operator {node.uid!r}: the rows have two columns {twice[0]!r}, of which a window could keep only one; rename one of them",
            operator=node.uid,
            column=twice[0],
        )
    missing = [order.column for order in node.order_by if order.column not in frame.columns]
    if missing:
        raise ConfigError(
            f"operator {node.uid!r}: order_by names {', '.join(missing)}; there are {', '.join(frame.columns)}",
            operator=node.uid,
        )
