"""`aggregate`: SQL aggregates per key over everything so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.operators.base import Operator
from penstock.operators.time_to_live import TimeToLive
from penstock.operators.timers import EVENT_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, eq=False)
class Aggregate(Operator):
    """SQL aggregates per key over everything so far."""

    columns: dict[str, Column]
    ttl: TimeToLive | None = None

    def describe(self) -> str:
        """The plan shows nothing but its name."""
        return "aggregate"

    @property
    def partly_aggregated(self) -> bool:
        """Spark reduces the rows of a key to one."""
        return True

    @property
    def lives_by_event_time(self) -> bool:
        """Where its time to live says so."""
        return self.ttl is not None and self.ttl.by == EVENT_TIME
