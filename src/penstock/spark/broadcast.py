"""A broadcast stream beside the rows of an operator: every subtask gets all of its rows, numbered, in the same shuffle. Driver.

The other half is `operators/inputs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from penstock.operators.inputs import BROADCAST, travelling_names
from penstock.operators.row_order import Order
from penstock.spark.key_columns import quoted
from penstock.state.keys import SORT_KEY
from penstock.state.subtask_rows import subtask_sort_key


@dataclass(frozen=True)
class BroadcastSide:
    """The columns of a broadcast side and of the stream beside it. Made once: it takes many calls into the JVM."""

    names: tuple[str, ...]
    order_by: tuple[Column, ...]
    without_stream: tuple[Column, ...]
    """What rows of the side have in the columns of the stream."""
    without_side: tuple[Column, ...]
    """What rows of the stream have in those of the side."""

    @classmethod
    def of(cls, stream: DataFrame, side: DataFrame, order_by: tuple[Order, ...]) -> BroadcastSide:
        """For a stream and a side with these columns."""
        names = travelling_names(BROADCAST, side.columns)
        orders = [Order(names[side.columns.index(one.column)], one.descending) for one in order_by]
        return cls(
            tuple(side.columns),
            tuple(map(in_order, orders)),
            nulls_like(stream.schema, stream.columns),
            (F.lit(None).cast("long").alias(BROADCAST), *nulls_like(side.schema, names)),
        )

    def beside(self, rows: DataFrame, side: DataFrame, everyone: Column) -> DataFrame:
        """Rows of the stream, with their sort key behind their own columns, and a copy of each row of the side for every subtask."""
        names = travelling_names(BROADCAST, self.names)
        told = side.toDF(*names)
        if self.order_by:
            told = told.repartition(1).sortWithinPartitions(*self.order_by)
        # Numbered before they are copied, so that all subtasks see them in one order.
        told = told.select("*", F.monotonically_increasing_id().alias(BROADCAST)).select("*", everyone)
        return rows.select("*", *self.without_side).union(
            told.select(*self.without_stream, SORT_KEY, BROADCAST, *names)
        )


def every_subtask(parallelism: int) -> Column:
    """For a row its copies, one for each subtask."""
    sort_keys = [F.lit(subtask_sort_key(subtask)).cast("long") for subtask in range(parallelism)]
    return F.explode(F.array(*sort_keys)).alias(SORT_KEY)


def nulls_like(columns: StructType, names: Sequence[str]) -> tuple[Column, ...]:
    """What a row of another kind has in these columns, which travel under these names."""
    return tuple(
        F.lit(None).cast(field.dataType).alias(name)
        for field, name in zip(columns.fields, names, strict=True)
    )


def in_order(order: Order) -> Column:
    """A column by which rows are sorted."""
    column = F.col(quoted(order.column))
    return column.desc() if order.descending else column.asc()
