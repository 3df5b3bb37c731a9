"""How operators of some kinds are compiled: own code, joins and lookups. Driver."""

from __future__ import annotations

from dataclasses import replace

from penstock.operators.base import SecondInput
from penstock.operators.join import Join, Lookup
from penstock.spark.compiled_operator import FormerOperator, former
from penstock.spark.joins import compile_join, compile_lookup
from penstock.spark.operators.base import OperatorInput, check_order
from penstock.spark.second_input import SecondColumns


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
