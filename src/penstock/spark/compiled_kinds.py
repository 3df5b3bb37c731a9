"""How operators of some kinds are compiled: own code, joins and lookups. Driver."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.errors import ConfigError
from penstock.graph import Process
from penstock.operators.base import SecondInput
from penstock.operators.join import Join, Lookup
from penstock.operators.row_order import Order
from penstock.operators.states import state_layout
from penstock.spark.broadcast import BroadcastSide
from penstock.spark.compiled_operator import FormerOperator, former
from penstock.spark.event_times import event_time_of
from penstock.spark.joins import compile_join, compile_lookup
from penstock.spark.operators.base import OperatorInput
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
