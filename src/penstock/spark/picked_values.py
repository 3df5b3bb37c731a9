"""Aggregates that pick the value of one row, `max_by`, `min_by`, `first` and `last`, as Spark computes them in a batch. Driver.

Spark promises no order in which a `groupBy` sees rows. So every row gets a number, by the partition in which Spark reads it and its
place there. It decides between rows that are otherwise equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.operators.aggregates import PICKING, AggregateSpec, Kind
from penstock.operators.picked_values import AT, BY, VALUE

ARRIVAL = "__penstock_arrival"
"""The number of a row in its batch."""


def with_arrival(frame: DataFrame, specs: Sequence[AggregateSpec]) -> DataFrame:
    """The rows with their numbers, where an aggregate asks for them."""
    if not any(spec.kind in PICKING for spec in specs):
        return frame
    return frame.withColumn(ARRIVAL, F.monotonically_increasing_id())


@dataclass(frozen=True)
class Picked:
    """One such aggregate."""

    kind: Kind
    value: Column
    by: Column | None = None
    """What `max_by` and `min_by` compare."""
    ignore_nulls: bool = False
    """Whether `first` and `last` pass over rows without a value."""
    time: Column | None = None
    """The event time of a row in microseconds, where rows have this order."""

    def of_rows(self, counts: Column | None = None) -> Column:
        """The aggregate of those rows for which `counts` is true, by default of all."""
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
        """Which rows may be picked. Nothing of a row that does not count is computed."""
        needed = self.by if self.by is not None else self.value if self.ignore_nulls else None
        if needed is None:
            return counts
        known = self._where(counts, needed).isNotNull()
        return known if counts is None else counts & known

    @staticmethod
    def _where(counts: Column | None, column: Column) -> Column:
        return column if counts is None else F.when(counts, column)
