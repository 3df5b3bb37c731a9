"""Whether Spark has looked at its sources since the last batch, and found nothing. Driver.

Between the end of a batch and the next look nobody knows what has come: much may have, while the batch ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.state.lifetimes import in_microseconds

WAITING = "Waiting"
"""How what a query says of itself begins when it has looked and found nothing, or has a trigger that comes later."""


def waits(status: Mapping[str, Any]) -> bool:
    """Whether a query that says this does nothing at this moment."""
    return str(status["message"]).startswith(WAITING) and not status["isTriggerActive"]


class Silence:
    """Of one query. Asked again and again while no batch runs."""

    def __init__(self, trigger_s: float) -> None:
        self._pace_us = in_microseconds(trigger_s)
        self._since_us: int | None = None
        self._looked_us: int | None = None

    def broken(self) -> None:
        """A batch with rows begins: what had been seen before says nothing about what comes behind it."""
        self._since_us = self._looked_us = None

    def looked_us(self, query: StreamingQuery | None, now_us: int) -> int | None:
        """When the last look was that found nothing; None if there was none since the last batch.

        A query that waits has looked, and says what it found. One that is about to look, or to note what it found, says that there is
        nothing also when there is: it is not believed before it waits again.
        """
        if query is None:
            return None
        status = query.status
        if status["isDataAvailable"]:
            self.broken()
        elif waits(status):
            self._since_us = now_us if self._since_us is None else self._since_us
            self._looked_us = max(self._since_us, now_us - self._pace_us)
        return self._looked_us


_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class EmptyBatches:
    """No rows, with the columns of the merged sources. In a session like the one that Spark makes for the batches of a query."""

    def __init__(self, session: SparkSession, columns: StructType) -> None:
        self._session = session
        self._columns = columns

    @cached_property
    def frame(self) -> DataFrame:
        """The same for all of them."""
        own = SparkSession(self._session.sparkContext, self._session._jsparkSession.cloneSession())
        return own.createDataFrame([], self._columns)


@contextmanager
def in_group(context: SparkContext, group: str, what: str) -> Iterator[None]:
    """What this thread asks of Spark inside can be given up by the name of the group."""
    before = {name: context.getLocalProperty(name) for name in _GROUP}
    context.setJobGroup(group, what, interruptOnCancel=True)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]
