"""The Spark side of `aggregate`: Spark aggregates the rows of a batch by key, and tasks merge that into the state. Driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.classic.column import Column as ClassicColumn
from typing_extensions import override

from penstock.config import OnBadRecord
from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import AggregateColumn
from penstock.operators.aggregate.distinct import WHOSE, counting_distinct, distinct_table
from penstock.operators.aggregate.operator import EVENT_TIME_US, Aggregate, AggregateSpec
from penstock.operators.event_time import TimeColumn
from penstock.operators.inputs import EVERYTHING
from penstock.spark.dead_letters import all_nullable, grouped_with_bad_rows, has_no_key, rows_that_count
from penstock.spark.event_times import event_time_of, in_microseconds
from penstock.spark.key_columns import normalised, quoted, with_key
from penstock.spark.operators.aggregate_columns import describe, distinct_values, node_class, partials
from penstock.spark.operators.aggregate_values import DistinctValues, with_arrival
from penstock.spark.operators.base import (
    BatchInput,
    ClockValue,
    CompiledOperator,
    OperatorInput,
    TaskFrame,
    compiled,
)
from penstock.state.backends.base import VALUES
from penstock.state.keys import SORT_KEY


@dataclass(frozen=True)
class CompiledAggregate(CompiledOperator):
    """The aggregates, and the expressions that compute them in a batch."""

    node: Aggregate
    spec: AggregateSpec
    partials: tuple[Column, ...]
    distinct: tuple[DistinctValues, ...]
    time: TimeColumn | None
    """The event time of its rows, where keys have a time to live by it."""

    @override
    def prepared(self, batch: BatchInput) -> TaskFrame:
        keys, rows = self.node.keys, batch.rows
        parts = (*self.partials, *self._newest(rows, batch.clock_value))
        numbered = with_arrival(rows, self.spec.columns)
        grouped = grouped_with_bad_rows(numbered, keys, parts, self.on_bad_record, self.distinct)
        return TaskFrame(grouped.withColumn(SORT_KEY, batch.sort_key(keys)), grouped_by=keys)

    def _newest(self, rows: DataFrame, clock_value: ClockValue) -> tuple[Column, ...]:
        """The newest event time of the rows of a key that is believed."""
        own = self.time
        if own is None:
            return ()
        time = in_microseconds(own, rows)
        believed = time <= clock_value(lambda clock: clock.judging(own).latest_us)
        return (F.max(F.when(believed, time)).alias(EVENT_TIME_US),)

    @property
    @override
    def takes_history(self) -> bool:
        return True

    @override
    def grouped_history(self, rows: DataFrame) -> DataFrame:
        keys, policy = self.node.keys, self.on_bad_record
        if self.node.ttl is not None and counting_distinct(self.spec.columns):
            raise ConfigError(
                f"operator {self.node.uid!r} counts distinct values with a time to live, which cannot be computed from history: when each "
                "of its keys was last touched is not known. It begins empty",
                operator=self.node.uid,
            )
        rows = with_key(normalised(rows, self.float_keys), keys)
        if policy is not OnBadRecord.FAIL:
            rows, policy = rows.where(~has_no_key(keys)), OnBadRecord.SKIP
        rows = with_arrival(rows, self.spec.columns)
        return grouped_with_bad_rows(rows, keys, self.partials, policy, self.distinct)

    @override
    def history_tables(self, grouped: DataFrame) -> Mapping[str, DataFrame]:
        distinct = counting_distinct(self.spec.columns)
        values = {
            distinct_table(one): grouped.where(F.col(WHOSE) == number)
            for number, one in enumerate(distinct, 1)
        }
        return {VALUES: self._one_row_a_key(grouped, distinct) if distinct else grouped, **values}

    def _one_row_a_key(self, grouped: DataFrame, distinct: Sequence[AggregateColumn]) -> DataFrame:
        """One row for each key with its aggregates and counts. In `grouped`, rows stand for aggregates or for distinct values."""
        counts = [
            F.count(F.when(F.col(WHOSE) == number, F.lit(1))).alias(one.partials[0].name)
            for number, one in enumerate(distinct, 1)
        ]
        others = [
            F.first(F.when(F.col(WHOSE) == 0, F.col(quoted(partial.name))), ignorenulls=True).alias(
                partial.name
            )
            for one in self.spec.columns
            if not one.distinct
            for partial in one.partials
        ]
        return grouped.groupBy(*map(quoted, self.node.keys)).agg(*others, *counts)


def compile_aggregate(node: Aggregate, given: OperatorInput) -> CompiledOperator:
    """Type it against the columns of its stream; raises `ConfigError` if it cannot be merged, or its rows not be grouped."""
    frame, policy, written = given.frame, given.on_bad_record, node.columns
    columns = tuple(describe(name, column, frame) for name, column in written.items())
    result = (
        frame.groupBy(*map(quoted, node.keys))
        .agg(*(column.alias(name) for name, column in written.items()))
        .drop(EVERYTHING)
        .schema
    )
    distinct = tuple(distinct_values(one, written[one.name], frame) for one in counting_distinct(columns))
    counts = rows_that_count(node.keys, policy, distinct=bool(distinct))
    parts = tuple(part for one in columns for part in partials(one, written[one.name], frame, counts))
    if policy is OnBadRecord.KEEP:
        _check_grouping(node, with_arrival(frame, columns), parts, distinct)
        result = all_nullable(result)
    time = event_time_of(node.upstream, frame, uid=node.uid) if node.lives_by_event_time else None
    spec = AggregateSpec(columns, given.key, node.ttl)
    return compiled(given, spec, result, CompiledAggregate, partials=parts, distinct=distinct, time=time)


def _check_grouping(
    node: Aggregate, rows: DataFrame, parts: tuple[Column, ...], distinct: tuple[DistinctValues, ...]
) -> None:
    try:
        _ = grouped_with_bad_rows(rows, node.keys, parts, OnBadRecord.KEEP, distinct).schema
    except AnalysisException as error:
        raise ConfigError(
            f"operator {node.uid!r}: the rows have a column of a type by which Spark cannot group, so that aggregate cannot keep bad "
            f"rows; drop that column before key_by, or set on_bad_record='skip': {error}",
            operator=node.uid,
        ) from error


def named_aggregates(
    columns: Sequence[Column], named: Mapping[str, Column], *, keys: Sequence[str], uid: str
) -> dict[str, Column]:
    """The columns by name, in the order of the arguments; raises `ConfigError` for a name that is missing or taken."""
    pairs = [(_alias(column, position, uid), column) for position, column in enumerate(columns, 1)]
    pairs.extend(named.items())
    if not pairs:
        raise ConfigError(
            f"aggregate {uid!r}: name at least one column, such as pv=F.count('*') or F.count('*').alias('pv')",
            uid=uid,
        )
    taken = {key.lower(): "the name of a key column too" for key in keys}
    for name, _ in pairs:
        if name.lower() in taken:
            raise ConfigError(
                f"aggregate {uid!r}: {name!r} is {taken[name.lower()]} (upper and lower case are not told apart); choose another name",
                uid=uid,
                column=name,
            )
        taken[name.lower()] = "the name of two columns"
    return dict(pairs)


def _alias(column: Column, position: int, uid: str) -> str:
    if not isinstance(column, ClassicColumn):
        raise ConfigError(
            f"aggregate {uid!r}: argument {position} is {column!r}; it takes columns of a classic Spark session, such as "
            "F.count('*').alias('pv')",
            uid=uid,
            position=position,
        )
    names = _names(column._jc.node())
    if len(names) != 1 or not names[0]:
        raise ConfigError(
            f"aggregate {uid!r}: argument {position}, {column._jc.toString()}, has no name of its own; write pv=F.count('*') or "
            "F.count('*').alias('pv')",
            uid=uid,
            position=position,
        )
    return names[0]


def _names(node: Any) -> list[str]:
    """The names of a column; a generator may have several."""
    if node_class(node) == "SqlExpression":  # F.expr("count(1) AS pv") is text until Spark parses it
        session: Any = SparkSession.active()
        node = session._jsparkSession.sessionState().sqlParser().parseExpression(node.expression())
    if node_class(node) != "Alias":
        return []
    name = node.name()
    return [name] if isinstance(name, str) else [str(name.apply(at)) for at in range(name.size())]
