"""What the benchmarks share: data, the time of a batch as Spark reports it, and a job that is watched."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import penstock as ps

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def clicks(root: Path, *, rows: int, keys: int, batches: int, seed: int = 7) -> ps.sources.PartitionedLog:
    """A log with `batches` times `rows` rows over about `keys` users, in two partitions."""
    log = ps.sources.PartitionedLog(root / "log", "user long, amount long", 2)
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        for partition in (0, 1):
            half = rows // 2
            users = rng.integers(0, keys, half)
            log.append(partition, pa.table({"user": users, "amount": rng.integers(0, 100, half)}), sync=False)
    return log


class BatchTimes(StreamingQueryListener):
    """Collects the duration of every batch with rows."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - PySpark's name
        """Nothing to do."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """One batch."""
        if event.progress.numInputRows > 0:
            self.seconds.append(event.progress.durationMs["triggerExecution"] / 1000)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to do."""


def timed(spark: SparkSession, run: Callable[[], None], *, warm_up: int, batches: int) -> float:
    """Median seconds of a batch, the first `warm_up` of them left out."""
    times = BatchTimes()
    spark.streams.addListener(times)
    try:
        run()
        wait_for(lambda: len(times.seconds) >= batches)
    finally:
        spark.streams.removeListener(times)
    return statistics.median(times.seconds[warm_up:])


def wait_for(reached: Callable[[], bool], seconds: float = 30.0) -> None:
    """Listener events come a moment after the query."""
    import time

    until = time.monotonic() + seconds
    while not reached() and time.monotonic() < until:
        time.sleep(0.05)


def run_query(writer: Any, checkpoint: Path) -> None:
    """Run Spark's own query over everything that is there."""
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def noop(frame: DataFrame, mode: str) -> Any:
    """The cheapest sink that Spark has: results are computed and dropped."""
    return frame.writeStream.format("noop").outputMode(mode)
