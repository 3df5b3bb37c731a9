"""Rows that travel with those of an operator in one frame: of a broadcast stream, of a second input, and rows that wake a subtask. Driver.

Each row has nulls in the columns of the other kinds. `operators/inputs.py` takes them apart in the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention  # noqa: N812 - PySpark's own convention  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.operators.base import Operator, SecondInput
from penstock.operators.event_time import TimeColumn
from penstock.operators.inputs import (
    BROADCAST,
    RIGHT,
    WAKE,
    KeyColumn,
    RightInput,
    check_same_keys,
    travelling_names,
)
from penstock.operators.row_order import Order
from penstock.spark.key_columns import check_keys, float_keys, normalised, quoted
from penstock.state.keys import GROUP_SHIFT, SORT_KEY
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


@dataclass(frozen=True)
class SecondColumns:
    """The columns of a second input and of the first beside it. Made once: it takes many calls into the JVM."""

    names: tuple[str, ...]
    keys: tuple[str, ...]
    float_keys: tuple[str, ...]
    order_by: tuple[Column, ...]
    """Behind the orders of the first input, whose rows have null in these columns."""
    without_left: tuple[Column, ...]
    without_right: tuple[Column, ...]
    event_time: TimeColumn | None = None
    """The time of its rows, where the state of the operator lives by it."""

    @classmethod
    def of(cls, node: Operator, second: SecondInput, left: DataFrame, right: DataFrame) -> SecondColumns:
        """For inputs with these columns; refuses keys that do not fit."""
        check_names(node.uid, "left", left)
        check_names(node.uid, "right", right)
        check_keys(right, second.keys, node.uid)
        check_same_keys(node.uid, _key_columns(left, node.keys), _key_columns(right, second.keys))
        names = travelling_names(RIGHT, right.columns)
        orders = [Order(names[right.columns.index(one.column)], one.descending) for one in second.order_by]
        return cls(
            tuple(right.columns),
            second.keys,
            float_keys(right, second.keys),
            tuple(map(in_order, orders)),
            nulls_like(left.schema, left.columns),
            (F.lit(None).cast("boolean").alias(RIGHT), *nulls_like(right.schema, names)),
        )

    @property
    def as_input(self) -> RightInput:
        """What tasks are told of it."""
        return RightInput(self.names, self.keys, self.event_time)

    def beside(
        self, left: DataFrame, right: DataFrame, sort_key: Callable[[tuple[str, ...]], Column]
    ) -> DataFrame:
        """The rows of both; those of the left input have their sort key behind their own columns."""
        own = normalised(right, self.float_keys).withColumn(SORT_KEY, sort_key(self.keys))
        names = travelling_names(RIGHT, self.names)
        mark = F.lit("true").cast("boolean").alias(RIGHT)
        marked = own.toDF(*names, SORT_KEY).select(*self.without_left, SORT_KEY, mark, *names)
        return left.select("*", *self.without_right).union(marked)


def _key_columns(frame: DataFrame, keys: tuple[str, ...]) -> list[KeyColumn]:
    kinds = [(key, frame.schema[key].dataType) for key in keys]
    return [(key, kind, kind.simpleString()) for key, kind in kinds]


def check_names(uid: str, which: str, frame: DataFrame) -> None:
    """Refuse an input with two columns of one name: they could not be told apart on the way."""
    times = Counter(name.lower() for name in frame.columns)
    twice = [name for name in frame.columns if times[name.lower()] > 1]
    if twice:
        raise ConfigError(
            f"operator {uid!r}: its {which} stream has two columns called {twice[0]!r}; give each a name of its own",
            operator=uid,
            column=twice[0],
        )


def waking_all(rows: DataFrame, parallelism: int) -> DataFrame:
    """Rows that have their sort key, and one for each subtask that has nothing but its own."""
    subtasks = rows.sparkSession.range(parallelism)
    own = F.shiftleft(F.col("id"), GROUP_SHIFT).alias(SORT_KEY)
    columns = [
        own if field.name == SORT_KEY else F.lit(None).cast(field.dataType).alias(field.name)
        for field in rows.schema.fields
    ]
    asleep, awake = (F.lit(given).cast("boolean").alias(WAKE) for given in (None, True))
    return rows.select("*", asleep).union(subtasks.select(*columns, awake))
