"""The jobs of the figure about timers: a count per key, and a timer that fires a second after the key had rows; beside PySpark's.

Driver; the classes run in workers too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jobs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessorHandle

import penstock as ps

DELAY_MS = 1_000


class PenstockReminder(jobs.PenstockCount):
    """Counts, and sets a timer by the clock for every key with rows; says so when it fires."""

    def process(self, key, rows, ctx):
        ctx.set_timer(ctx.now + timedelta(milliseconds=DELAY_MS), by="clock")
        yield from super().process(key, rows, ctx)

    def on_timer(self, key, timer, ctx):
        yield key, 0


class SparkReminder(jobs.SparkCount):
    """The same for `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + DELAY_MS)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(user=key[0], n=0)


class EndlessQuery(jobs.SparkQuery):
    """With timers by the clock Spark runs batches without data for ever, also over an input that ends: so it is stopped by hand."""

    def run(self, spark: SparkSession) -> None:
        """Run over what is there, until a batch has no rows any more."""
        counted = self.count(self.clicks.read(spark))
        writer = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.root / "spark")).start()
        try:
            while not self._is_done([one.numInputRows for one in query.recentProgress]):
                time.sleep(0.2)
        finally:
            query.stop()

    def _is_done(self, rows: list[int]) -> bool:
        return any(rows) and rows[-1] == 0


def by_timer(stream: ps.types.Stream) -> ps.types.Stream:
    """Own Python code with a timer per key."""
    return stream.key_by("user").process(PenstockReminder(), schema=jobs.RESULT, uid="count")


def spark_timer(frame: DataFrame) -> DataFrame:
    """PySpark's own timers."""
    return frame.groupBy("user").transformWithState(
        statefulProcessor=SparkReminder(),
        outputStructType=jobs.RESULT,
        outputMode="Update",
        timeMode="ProcessingTime",
    )
