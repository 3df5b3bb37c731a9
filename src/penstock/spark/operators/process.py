"""The Spark side of own code: its rows, with those of its broadcast stream or second input. Driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.pandas.types import from_arrow_schema

from penstock.errors import ConfigError
from penstock.operators.process.operator import ProcessOperator
from penstock.operators.process.task import ProcessSpec
from penstock.spark.event_times import event_time_of
from penstock.spark.operators.base import (
    BatchInput,
    BroadcastSide,
    CompiledOperator,
    OperatorInput,
    SecondColumns,
    TaskFrame,
    check_order,
    compiled,
    in_order,
)
from penstock.state.keys import SORT_KEY


@dataclass(frozen=True)
class CompiledProcess(CompiledOperator):
    """Own code, and the columns of its other streams."""

    node: ProcessOperator
    broadcast: BroadcastSide | None = None
    second: SecondColumns | None = None

    def prepared(self, batch: BatchInput) -> TaskFrame:
        """The unchanged rows, in the order that the user has declared."""
        node = self.node
        rows = batch.rows.withColumn(SORT_KEY, batch.sort_key(node.keys))
        orders = [in_order(order) for order in node.order_by]
        if node.right is not None and self.second is not None:
            rows = self.second.beside(rows, batch.second(node.right), batch.sort_key)
            orders += self.second.order_by
        if node.broadcast is not None and self.broadcast is not None:
            side = batch.frame_of(node.broadcast.upstream)
            rows = self.broadcast.beside(rows, side, batch.every_subtask())
        return TaskFrame(rows, tuple(orders))


def compile_process(node: ProcessOperator, given: OperatorInput) -> CompiledOperator:
    """Type it against the columns of its streams; raises `ConfigError`."""
    check_order(node.uid, node.order_by, given.frame)
    broadcast, second = _broadcast(node, given), _second(node, given)
    timed = node.lives_by_event_time
    spec = ProcessSpec(
        node.code,
        given.key,
        node.results,
        given.graph.sides_read(node),
        None if broadcast is None else broadcast.names,
        None if second is None else second.as_input,
        event_time_of(node.upstream, given.frame, uid=node.uid) if timed else None,
        has_event_time=bool(given.graph.event_time_sources(node)),
    )
    result = from_arrow_schema(node.results)
    return compiled(given, spec, result, CompiledProcess, broadcast=broadcast, second=second)


def _broadcast(node: ProcessOperator, given: OperatorInput) -> BroadcastSide | None:
    if node.broadcast is None:
        return None
    side = given.frame_of(node.broadcast.upstream)
    check_order(f"{node.uid}, broadcast side", node.broadcast.order_by, side)
    check_broadcast_names(node.uid, side.columns)
    return BroadcastSide.of(given.frame, side, node.broadcast.order_by)


def _second(node: ProcessOperator, given: OperatorInput) -> SecondColumns | None:
    if node.right is None:
        return None
    frame = given.frame_of(node.right.upstream)
    check_order(f"{node.uid}, right stream", node.right.order_by, frame)
    found = SecondColumns.of(node, node.right, given.frame, frame)
    if not node.lives_by_event_time:
        return found
    return replace(found, event_time=event_time_of(node.right.upstream, frame, uid=node.uid))


def check_broadcast_names(uid: str, columns: Sequence[str]) -> None:
    """Refuse a broadcast stream with two columns of one name, because they cannot be distinguished on the way to tasks."""
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise ConfigError(
            f"operator {uid!r}: its broadcast side has two columns called {twice[0]!r}; give each a name of its own",
            operator=uid,
        )
