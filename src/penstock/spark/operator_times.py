"""What an operator knows of event time: whether any comes to it, and which column of its rows has it. Driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from penstock.graph import Graph
from penstock.operators.base import Operator
from penstock.operators.time_column import TimeColumn
from penstock.spark.event_times import event_time_of


@dataclass(frozen=True)
class OperatorTimes:
    """Of one operator."""

    has_event_time: bool = False
    """Whether a source in front of it has event time."""
    column: TimeColumn | None = None
    """The time of its rows, where its state lives by it."""


def operator_times(node: Operator, frame: DataFrame, graph: Graph) -> OperatorTimes:
    """Looked up once; `frame` has the columns of its rows. Raises `ConfigError` where the time of rows is needed and is not there."""
    column = event_time_of(node.upstream, frame, uid=node.uid) if node.lives_by_event_time else None
    return OperatorTimes(bool(graph.event_time_sources(node)), column)
