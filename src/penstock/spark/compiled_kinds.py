"""How operators of some kinds are compiled: aggregates, own code, joins and lookups. Driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.config import OnBadRecord
from penstock.errors import ConfigError
from penstock.graph import Process
from penstock.operators.aggregate import Aggregate
from penstock.operators.base import SecondInput
from penstock.operators.distinct_values import aggregate_layout, counting_distinct
from penstock.operators.everything import EVERYTHING
from penstock.operators.join import Join, Lookup
from penstock.operators.row_order import Order
from penstock.operators.states import state_layout
from penstock.spark.aggregate_columns import describe, distinct_values, partials
from penstock.spark.broadcast import BroadcastSide
from penstock.spark.compiled_operator import FormerOperator, former
from penstock.spark.dead_letters import all_nullable, grouped_with_bad_rows, rows_that_count
from penstock.spark.event_times import event_time_of
from penstock.spark.joins import compile_join, compile_lookup
from penstock.spark.key_columns import quoted
from penstock.spark.operators.base import OperatorInput
from penstock.spark.picked_values import with_arrival
from penstock.spark.second_input import SecondColumns


def compiled_aggregate(node: Aggregate, given: OperatorInput) -> FormerOperator:
    """SQL aggregates by key; raises `ConfigError` for what cannot be merged, or grouped."""
    frame, policy = given.frame, given.on_bad_record
    specs = tuple(describe(name, column, frame) for name, column in node.columns.items())
    result = (
        frame.groupBy(*map(quoted, node.keys))
        .agg(*(column.alias(name) for name, column in node.columns.items()))
        .drop(EVERYTHING)
        .schema
    )
    distinct = tuple(
        distinct_values(spec, node.columns[spec.name], frame) for spec in counting_distinct(specs)
    )
    counts = rows_that_count(node.keys, policy, distinct=bool(distinct))
    parts = tuple(part for spec in specs for part in partials(spec, node.columns[spec.name], frame, counts))
    if policy is OnBadRecord.KEEP:
        numbered = with_arrival(frame, specs)
        _check_grouping(node, lambda: grouped_with_bad_rows(numbered, node.keys, parts, policy, distinct))
        result = all_nullable(result)
    operator = former(given, aggregate_layout(specs, given.key, node.ttl), result)
    return replace(operator, specs=specs, partials=parts, distinct=distinct)


def _check_grouping(node: Aggregate, grouped: Callable[[], DataFrame]) -> None:
    try:
        _ = grouped().schema
    except AnalysisException as error:
        raise ConfigError(
            f"operator {node.uid!r}: the rows have a column of a type by which Spark cannot group, so that aggregate cannot keep bad "
            f"rows; drop that column before key_by, or set on_bad_record='skip': {error}",
            operator=node.uid,
        ) from error


def compiled_join(node: Join, given: OperatorInput) -> FormerOperator:
    """Rows of two streams side by side."""
    right = given.frame_of(node.right.upstream)
    second, join = _second(node, node.right, given), compile_join(node, given.frame, right)
    operator = former(given, join.spec.layout(), join.result)
    return replace(operator, second=second, join=join)


def compiled_lookup(node: Lookup, given: OperatorInput) -> FormerOperator:
    """Rows with the latest row of another stream beside them."""
    right = given.frame_of(node.right.upstream)
    second, lookup = _second(node, node.right, given), compile_lookup(node, given.frame, right)
    operator = former(given, lookup.spec.layout(), lookup.result)
    return replace(operator, second=second, lookup=lookup)


def compiled_process(node: Process, given: OperatorInput) -> FormerOperator:
    """Own code."""
    _check_order(node.uid, node.order_by, given.frame)
    broadcast, second = None, None
    if node.broadcast is not None:
        side = given.frame_of(node.broadcast.upstream)
        _check_order(f"{node.uid}, broadcast side", node.broadcast.order_by, side)
        check_names(node.uid, side.columns)
        broadcast = BroadcastSide.of(given.frame, side, node.broadcast.order_by)
    if node.right is not None:
        second = _second(node, node.right, given)
        if node.lives_by_event_time:
            right = given.frame_of(node.right.upstream)
            second = replace(second, event_time=event_time_of(node.right.upstream, right, uid=node.uid))
    operator = former(given, state_layout(node.operator, given.key), from_arrow_schema(node.output))
    sides = given.graph.sides_read(node)
    return replace(operator, sides=sides, broadcast=broadcast, second=second)


def _second(node: Process | Join | Lookup, right: SecondInput, given: OperatorInput) -> SecondColumns:
    frame = given.frame_of(right.upstream)
    _check_order(f"{node.uid}, right stream", right.order_by, frame)
    return SecondColumns.of(node, right, given.frame, frame)


def _check_order(of: str, order_by: tuple[Order, ...], frame: DataFrame) -> None:
    missing = [order.column for order in order_by if order.column not in frame.columns]
    if missing:
        raise ConfigError(
            f"operator {of!r}: order_by names {', '.join(missing)}; there are {', '.join(frame.columns)}"
        )


def check_names(uid: str, columns: list[str]) -> None:
    """Refuse a broadcast side with two columns of one name: they could not be told apart on the way."""
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise ConfigError(
            f"operator {uid!r}: its broadcast side has two columns called {twice[0]!r}; give each a name of its own",
            operator=uid,
        )
