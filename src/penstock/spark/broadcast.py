"""A broadcast stream beside the rows of an operator: every subtask gets all of its rows, numbered, in the same shuffle. Driver.

The other half is `engine/task_rows.py`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.engine.task_rows import BROADCAST, broadcast_column
from penstock.graph import Order
from penstock.spark.key_columns import quoted
from penstock.state.keys import SORT_KEY
from penstock.state.subtask_rows import subtask_sort_key


def with_broadcast(
    rows: DataFrame, side: DataFrame, order_by: tuple[Order, ...], parallelism: int
) -> DataFrame:
    """Rows that have their sort key last, and a copy of each row of the side for every subtask; null where the other has columns."""
    columns = side.schema.fields
    names = [broadcast_column(at) for at in range(len(columns))]
    told = _numbered(side.toDF(*names) if names else side, side, order_by)
    everyone = F.array(*(F.lit(subtask_sort_key(subtask)).cast("long") for subtask in range(parallelism)))
    told = told.select("*", F.explode(everyone).alias(SORT_KEY))
    own = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields[:-1]]
    none = [F.lit(None).cast(field.dataType).alias(name) for field, name in zip(columns, names, strict=True)]
    return rows.select("*", F.lit(None).cast("long").alias(BROADCAST), *none).union(
        told.select(*own, SORT_KEY, BROADCAST, *names)
    )


def _numbered(told: DataFrame, side: DataFrame, order_by: tuple[Order, ...]) -> DataFrame:
    """Numbered before they are copied, so that all subtasks see them in one order."""
    if order_by:
        order = [Order(broadcast_column(side.columns.index(one.column)), one.descending) for one in order_by]
        told = told.repartition(1).sortWithinPartitions(*map(in_order, order))
    return told.select("*", F.monotonically_increasing_id().alias(BROADCAST))


def in_order(order: Order) -> Column:
    """A column by which rows are sorted."""
    column = F.col(quoted(order.column))
    return column.desc() if order.descending else column.asc()
