"""A second input beside the first: rows of both in one frame, each with nulls in the columns of the other, in one shuffle by key. Driver.

The other half is `operators/inputs.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.errors import ConfigError
from penstock.operators.base import Operator, SecondInput
from penstock.operators.input_checks import KeyColumn, check_same_keys
from penstock.operators.inputs import RIGHT, RightInput, travelling_names
from penstock.operators.row_order import Order
from penstock.operators.time_column import TimeColumn
from penstock.spark.broadcast import in_order, nulls_like
from penstock.spark.key_columns import check_keys, float_keys, normalised
from penstock.state.keys import SORT_KEY


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
