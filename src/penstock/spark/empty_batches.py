"""Batches that read nothing, which the driver begins by itself when something is due: their rows, and whose jobs they are. Driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

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
