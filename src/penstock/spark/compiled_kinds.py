"""How operators of some kinds are compiled: aggregates, own code, joins and lookups. Driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock.config import OnBadRecord
from penstock.errors import ConfigError
from penstock.operators.aggregate import Aggregate
from penstock.operators.base import SecondInput
from penstock.operators.distinct_values import aggregate_layout, counting_distinct
from penstock.operators.everything import EVERYTHING
from penstock.operators.join import Join, Lookup
from penstock.spark.aggregate_columns import describe, distinct_values, partials
from penstock.spark.compiled_operator import FormerOperator, former
from penstock.spark.dead_letters import all_nullable, grouped_with_bad_rows, rows_that_count
from penstock.spark.joins import compile_join, compile_lookup
from penstock.spark.key_columns import quoted
from penstock.spark.operators.base import OperatorInput, check_order
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


def _second(node: Join | Lookup, right: SecondInput, given: OperatorInput) -> SecondColumns:
    frame = given.frame_of(right.upstream)
    check_order(f"{node.uid}, right stream", right.order_by, frame)
    return SecondColumns.of(node, right, given.frame, frame)
