"""`top` as Spark sees it: rows go to tasks as they are. Driver."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.errors import ConfigError
from penstock.operators.top import RANK, Top, TopSpec
from penstock.spark.dead_letters import all_nullable
from penstock.spark.operators.aggregate_columns import is_plain
from penstock.spark.operators.base import CompiledOperator, OperatorInput, compiled
from penstock.wording import with_article


def compile_top(node: Top, given: OperatorInput) -> CompiledOperator:
    """Check it against the columns there are; refuses columns that are missing, or have no order that is Spark's."""
    frame = given.frame
    _check_names(node, frame)
    for argument, names in (
        ("by", [order.column for order in node.by]),
        ("of", node.of),
        ("order_by", [order.column for order in node.newest]),
    ):
        for name in names:
            _check_column(node, frame, argument, name)
    spec = TopSpec(given.columns, node.keys, node.n, node.by, node.of, node.newest)
    result = StructType([*frame.schema.fields, StructField(RANK.name, IntegerType())])
    return compiled(given, spec, all_nullable(result))


def _check_names(node: Top, frame: DataFrame) -> None:
    times = Counter(name.lower() for name in frame.columns)
    twice = [name for name in frame.columns if times[name.lower()] > 1]
    if twice:
        raise ConfigError(
            f"operator {node.uid!r}: the rows have two columns {twice[0]!r}, of which top() could keep only one; rename one of them",
            operator=node.uid,
            column=twice[0],
        )
    if RANK.name in times:
        raise ConfigError(
            f"operator {node.uid!r}: the rows have a column {RANK.name!r}, and top() adds one of this name; rename it before",
            operator=node.uid,
            column=RANK.name,
        )


def _check_column(node: Top, frame: DataFrame, argument: str, name: str) -> None:
    if name not in frame.columns:
        raise ConfigError(
            f"operator {node.uid!r}: {argument} names {name}; there are {', '.join(frame.columns)}",
            operator=node.uid,
            column=name,
        )
    kind = frame.schema[name].dataType
    if not is_plain(kind):
        raise ConfigError(
            f"operator {node.uid!r}: {argument} names {name}, {with_article(kind.simpleString())}, which top() cannot put in order; "
            "name numbers, plain strings, bytes, dates or timestamps",
            operator=node.uid,
            column=name,
            type=kind.simpleString(),
        )
