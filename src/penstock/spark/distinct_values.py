"""The distinct values of a batch, for aggregates that count them: rows among the aggregates of the batch. Driver.

A row is there once for the aggregates of its key, and once more for each value that it has. So Spark finds the distinct values in the same
`groupBy`, in parts of rows of any number: a key with very many values is no array that has to fit into one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.operators.distinct_values import WHOSE
from penstock.spark.key_columns import quoted


@dataclass(frozen=True)
class DistinctValues:
    """The columns whose distinct values one aggregate counts, as the state calls them."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]


def with_distinct_values(frame: DataFrame, distinct: Sequence[DistinctValues], counted: Column) -> DataFrame:
    """The rows with what they stand for; `counted` are those that have values, and values of no other row are computed.

    A value is left out where one of its columns is null, as in SQL. The other aggregates take only rows that stand for them, see
    `for_aggregates`: added up once more for every value, a sum could overflow.
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
    """Whether a row stands for the aggregates of its key, not for a value."""
    return F.col(WHOSE) == 0


def _known(values: DistinctValues) -> Column:
    return reduce(and_, (F.col(quoted(name)).isNotNull() for name in values.names))


def _where(number: int, name: str) -> Column:
    return F.when(F.col(WHOSE) == number, F.col(quoted(name)))
