"""The Spark side of `join` and `lookup`: the rows of both streams in one DataFrame, with one shuffle by key. Driver."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.operators.base import Node
from penstock.operators.join.input_rows import InputColumns
from penstock.operators.join.lookup import Lookup, LookupSpec
from penstock.operators.join.spec import Join, JoinSpec
from penstock.operators.window.base import WINDOW_END
from penstock.spark.dead_letters import all_nullable
from penstock.spark.event_times import event_time_of
from penstock.spark.operators.base import (
    BatchInput,
    CompiledOperator,
    OperatorInput,
    SecondColumns,
    TaskFrame,
    check_order,
    compiled,
)
from penstock.spark.versions import arrow_type
from penstock.state.keys import SORT_KEY


@dataclass(frozen=True)
class CompiledJoin(CompiledOperator):
    """A join or lookup, and the columns of its right stream."""

    node: Join | Lookup
    second: SecondColumns

    @override
    def prepared(self, batch: BatchInput) -> TaskFrame:
        right = self.node.right
        rows = batch.rows.withColumn(SORT_KEY, batch.sort_key(self.node.keys))
        return TaskFrame(self.second.beside(rows, batch.second(right), batch.sort_key), self.second.order_by)


def compile_join(node: Join, given: OperatorInput) -> CompiledOperator:
    """Type a join against the columns of its streams; raises `ConfigError`."""
    left, right = given.frame, given.frame_of(node.right.upstream)
    second = _second(node, given)
    one = _input(node, node.upstream, left, node.keys, node.event_time)
    other = _input(node, node.right.upstream, right, node.right.keys, node.right.event_time)
    spec = _spec(node, one, other)
    return compiled(given, spec, _result(node, spec, left, right), CompiledJoin, second=second)


def compile_lookup(node: Lookup, given: OperatorInput) -> CompiledOperator:
    """Type a lookup against the columns of its streams; raises `ConfigError`."""
    left, right = given.frame, given.frame_of(node.right.upstream)
    second = _second(node, given)
    one = InputColumns(_columns(left), node.keys, None)
    other = InputColumns(_columns(right), node.right.keys, None)
    if not len(other.kept):
        raise ConfigError(
            f"lookup {node.uid!r}: the right stream has no column but its key ({', '.join(node.right.keys)}), so that there is nothing to "
            "look up; add one that says what you want to know, such as lit(true)",
            operator=node.uid,
        )
    spec = LookupSpec(one, other, node.inner, node.ttl)
    return compiled(given, spec, _side_by_side(node, left, right, []), CompiledJoin, second=second)


def _second(node: Join | Lookup, given: OperatorInput) -> SecondColumns:
    frame = given.frame_of(node.right.upstream)
    check_order(f"{node.uid}, right stream", node.right.order_by, frame)
    return SecondColumns.of(node, node.right, given.frame, frame)


def _spec(node: Join, left: InputColumns, right: InputColumns) -> JoinSpec:
    if node.windows is not None:
        return JoinSpec.by_window(left, right, node.windows, node.how)
    if node.within_us is not None:
        return replace(JoinSpec.by_interval(left, right, *node.within_us, node.how), at=node.at)
    return JoinSpec.unbounded(left, right)


def _input(
    node: Join, upstream: Node, frame: DataFrame, keys: tuple[str, ...], named: str | None
) -> InputColumns:
    time = event_time_of(upstream, frame, uid=node.uid, named=named) if node.judges_by_time else None
    return InputColumns(_columns(frame), keys, time)


def _result(node: Join, spec: JoinSpec, left: DataFrame, right: DataFrame) -> StructType:
    added: list[StructField] = []
    if spec.left.time is not None:
        kind = left.schema[spec.left.time.column].dataType
        added = [StructField(field.name, kind) for field in spec.added]
    return _side_by_side(node, left, right, added)


def _side_by_side(
    node: Join | Lookup, left: DataFrame, right: DataFrame, added: list[StructField]
) -> StructType:
    others = [field for field in right.schema.fields if field.name not in node.right.keys]
    fields = [*left.schema.fields, *others, *added]
    times = Counter(field.name.lower() for field in fields)
    twice = sorted({field.name for field in fields if times[field.name.lower()] > 1})
    if twice:
        time = " A window_end that is renamed is still the time of its result." if WINDOW_END in twice else ""
        raise ConfigError(
            f"{type(node).__name__.lower()} {node.uid!r}: the result would have two columns called {', '.join(twice)}; rename one of each "
            f"before, for instance with transform(lambda frame: frame.withColumnRenamed({twice[0]!r}, 'right_{twice[0]}')). Only the key "
            f"comes out once, by itself.{time}",
            operator=node.uid,
            columns=twice,
        )
    return all_nullable(StructType(fields))


def _columns(frame: DataFrame) -> pa.Schema:
    return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in frame.schema.fields])
