"""The time of a batch, as Spark itself reports it, and how a measurement is written down. Driver."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

Found = dict[str, Any]
"""What a figure found: `ratio`, seconds (`..._s`), and whatever else is worth saying."""


class Runs(Protocol):
    """A job of Penstock, or a query of Spark, over the same input."""

    def run(self, spark: SparkSession) -> None:
        """Run over what is there, from where the last run ended."""


class BatchTimes(StreamingQueryListener):
    """Collects the duration of every batch with rows."""

    def __init__(self, on_batch: Callable[[], None] = lambda: None) -> None:
        self.seconds: list[float] = []
        self._on_batch = on_batch

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - PySpark's name
        """Nothing to do."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """One batch."""
        if event.progress.numInputRows > 0:
            self.seconds.append(event.progress.durationMs["triggerExecution"] / 1000)
            self._on_batch()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to do."""


@contextmanager
def batch_times(
    spark: SparkSession, batches: int, on_batch: Callable[[], None] = lambda: None
) -> Iterator[BatchTimes]:
    """Watch the batches of the query that runs inside; at the end all `batches` of them are in."""
    times = BatchTimes(on_batch)
    spark.streams.addListener(times)
    try:
        yield times
        _wait_for(lambda: len(times.seconds) >= batches)
    finally:
        spark.streams.removeListener(times)
    if len(times.seconds) != batches:
        raise RuntimeError(f"{batches} batches were expected, {len(times.seconds)} came")


def median_of(seconds: list[float], *, warm_up: int) -> float:
    """The median, the first ones left out."""
    return statistics.median(seconds[warm_up:])


def _wait_for(reached: Callable[[], bool], seconds: float = 30.0) -> None:
    """Listener events come a moment after the query."""
    until = time.monotonic() + seconds
    while not reached() and time.monotonic() < until:
        time.sleep(0.05)
