"""What an operator knows of event time: whether any comes to it, and which column of its rows has it. Driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.engine.aggregate_task import EVENT_TIME_US
from penstock.graph import Graph
from penstock.operators.base import Operator
from penstock.operators.clock import OperatorClock
from penstock.operators.time_column import TimeColumn
from penstock.spark.event_times import event_time_of, in_microseconds


@dataclass(frozen=True)
class OperatorTimes:
    """Of one operator."""

    has_event_time: bool = False
    """Whether a source in front of it has event time."""
    column: TimeColumn | None = None
    """The time of its rows, where its state lives by it."""

    def newest(self, frame: DataFrame, clock: OperatorClock) -> tuple[Column, ...]:
        """An aggregate beside those of `aggregate`: the newest event time of the rows of a key that makes sense."""
        if self.column is None:
            return ()
        time = in_microseconds(self.column, frame)
        believed = time <= F.lit(clock.judging(self.column).latest_us)
        return (F.max(F.when(believed, time)).alias(EVENT_TIME_US),)


def operator_times(node: Operator, frame: DataFrame, graph: Graph) -> OperatorTimes:
    """Looked up once; `frame` has the columns of its rows. Raises `ConfigError` where the time of rows is needed and is not there."""
    column = event_time_of(node.upstream, frame, uid=node.uid) if node.lives_by_event_time else None
    return OperatorTimes(bool(graph.event_time_sources(node)), column)
