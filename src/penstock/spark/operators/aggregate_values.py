"""Aggregates of a batch that look at single rows: those that count distinct values, and those that pick the value of one row. Driver.

With distinct values, a row is repeated: once for the aggregates of its key, and once for each of its values. So Spark finds the distinct
values in the same `groupBy`, and the values of a key need not fit into one row as an array.

`max_by`, `min_by`, `first` and `last` pick a row. Spark promises no order in which a `groupBy` sees rows, so every row gets a number, by
the partition in which Spark reads it and its place there. It decides between rows that are otherwise equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.operators.aggregate.columns import AT, BY, PICKING, VALUE, AggregateColumn, Kind
from penstock.operators.aggregate.distinct import WHOSE
from penstock.spark.key_columns import quoted


@dataclass(frozen=True)
class DistinctValues:
    """The columns whose distinct values one aggregate counts, and their names in the state."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]


def with_distinct_values(frame: DataFrame, distinct: Sequence[DistinctValues], counted: Column) -> DataFrame:
    """Repeat rows for their distinct values, and mark what each row stands for. Values are computed only for rows that are `counted`.

    A value is left out where one of its columns is null, as in SQL. The other aggregates use only rows that stand for them (see
    `for_aggregates`): a sum could overflow if it added a row again for every value.
    """
    values = {
        name: F.when(counted, column)
        for one in distinct
        for name, column in zip(one.names, one.columns, strict=True)
    }
    rows = frame.withColumns(values)
    numbers = [F.lit(0), *(F.when(counted & _known(one), F.lit(at)) for at, one in enumerate(distinct, 1))]
    rows = rows.withColumn(WHOSE, F.explode(F.array_compact(F.array(*numbers))))
    return rows.withColumns(
        {name: _where(at, name) for at, one in enumerate(distinct, 1) for name in one.names}
    )


def for_aggregates() -> Column:
    """Whether a row stands for the aggregates of its key, and not for a distinct value."""
    return F.col(WHOSE) == 0


def _known(values: DistinctValues) -> Column:
    return reduce(and_, (F.col(quoted(name)).isNotNull() for name in values.names))


def _where(number: int, name: str) -> Column:
    return F.when(F.col(WHOSE) == number, F.col(quoted(name)))


ARRIVAL = "__penstock_arrival"
"""The number of a row in its batch."""


def with_arrival(frame: DataFrame, specs: Sequence[AggregateColumn]) -> DataFrame:
    """Number the rows, where an aggregate picks one of them."""
    if not any(spec.kind in PICKING for spec in specs):
        return frame
    return frame.withColumn(ARRIVAL, F.monotonically_increasing_id())


@dataclass(frozen=True)
class Picked:
    """An aggregate that picks the value of one row."""

    kind: Kind
    value: Column
    by: Column | None = None
    """What `max_by` and `min_by` compare."""
    ignore_nulls: bool = False
    """Whether `first` and `last` skip rows without a value."""
    time: Column | None = None
    """The event time of a row in microseconds, where rows are ordered by it."""

    def of_rows(self, counts: Column | None = None) -> Column:
        """The aggregate of the rows for which `counts` is true, by default of all rows."""
        sign = -1 if self.kind is Kind.MIN_BY else 1
        places = [F.col(ARRIVAL)] if self.time is None else [self.time, F.col(ARRIVAL)]
        order = F.struct(*([] if self.by is None else [self.by]), *(place * sign for place in places))
        order = self._where(self._taken(counts), order)
        pick = F.min_by if self.kind in (Kind.MIN_BY, Kind.FIRST) else F.max_by
        return pick(self._kept(counts), order)

    def of_one_row(self) -> Column:
        """The aggregate of each row alone."""
        return self._where(self._taken(None), self._kept(None))

    def _kept(self, counts: Column | None) -> Column:
        fields = [self._where(counts, self.value).alias(VALUE)]
        if self.by is not None:
            fields.append(self._where(counts, self.by).alias(BY))
        if self.time is not None:
            fields.append(self._where(counts, self.time).alias(AT))
        return F.struct(*fields)

    def _taken(self, counts: Column | None) -> Column | None:
        """Which rows may be picked. Nothing is computed for a row that does not count."""
        needed = self.by if self.by is not None else self.value if self.ignore_nulls else None
        if needed is None:
            return counts
        known = self._where(counts, needed).isNotNull()
        return known if counts is None else counts & known

    @staticmethod
    def _where(counts: Column | None, column: Column) -> Column:
        return column if counts is None else F.when(counts, column)
