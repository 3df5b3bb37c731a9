"""The job that most figures run, in all its forms: count the clicks of each user. Driver; the counting classes run in workers too.

Penstock writes its results into Parquet, with a checkpoint every batch; Spark's results are dropped, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from data import Clicks
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import penstock as ps
from penstock.spark.job_handle import JobHandle

Count = Callable[[ps.types.Stream], ps.types.Stream]
RESULT = "user long, n long"
AT_ONCE = 4
"""So many checkpoints may be under way, so that a slow one does not spare the next batch its own."""


class PenstockCount(ps.KeyedProcess):
    """A count per key in Python, with Penstock."""

    count = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.count.value += len(rows)
        yield key, self.count.value


class SparkCount(StatefulProcessor):
    """The same for `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        now = self._counted(sum(1 for _ in rows))
        yield Row(user=key[0], n=now)

    def close(self) -> None:
        """Nothing is open."""

    def _counted(self, more: int) -> int:
        now = (self.count.get()[0] if self.count.exists() else 0) + more
        self.count.update((now,))
        return now


class SparkPandasCount(SparkCount):
    """The same for `transformWithStateInPandas`."""

    def handleInputRows(  # type: ignore[override]  # noqa: N802 - PySpark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        now = self._counted(sum(len(frame) for frame in rows))
        yield pd.DataFrame({"user": [key[0]], "n": [now]})


def by_process(stream: ps.types.Stream) -> ps.types.Stream:
    """Own Python code per key."""
    return stream.key_by("user").process(PenstockCount(), schema=RESULT, uid="count")


class PenstockBatchCount(ps.BatchProcess):
    """The same for all keys of a batch at once."""

    count = ps.ValueState("long", default=0)

    def process_batch(self, keys, batch, state):
        now = state["count"].to_numpy() + np.bincount(batch.key_index, minlength=len(keys))
        state["count"] = now
        return {"user": keys["user"], "n": now}


def by_process_batch(stream: ps.types.Stream) -> ps.types.Stream:
    """Own Python code for all keys at once."""
    return stream.key_by("user").process(PenstockBatchCount(), schema=RESULT, uid="count")


def by_aggregate(stream: ps.types.Stream) -> ps.types.Stream:
    """An SQL aggregate."""
    return stream.key_by("user").aggregate(n=F.count("*"), uid="count")


def spark_native(frame: DataFrame) -> DataFrame:
    """The same in the JVM, with Spark's state store."""
    return frame.groupBy("user").count()


def spark_python(frame: DataFrame) -> DataFrame:
    """PySpark's own state per key, in rows."""
    return frame.groupBy("user").transformWithState(
        statefulProcessor=SparkCount(), outputStructType=RESULT, outputMode="Update", timeMode="None"
    )


def spark_pandas(frame: DataFrame) -> DataFrame:
    """PySpark's own state per key, in pandas."""
    return frame.groupBy("user").transformWithStateInPandas(
        statefulProcessor=SparkPandasCount(), outputStructType=RESULT, outputMode="Update", timeMode="None"
    )


@dataclass
class PenstockJob:
    """Each run is a run of the same job: it goes on from the checkpoint that the one before left."""

    clicks: Clicks
    root: Path
    count: Count
    backend: str = "filesystem"
    mode: ps.Mode = ps.EXACTLY_ONCE
    interval: str = "1ms"
    retained: int = 1
    look_on: Callable[[JobHandle], None] = JobHandle.wait
    time: Mapping[str, Any] = field(default_factory=dict)
    """What `read` is told about event time."""

    @property
    def state_dir(self) -> Path:
        """Where the state files of the operator lie in storage."""
        return self.root / "store" / "bench" / "state" / "count"

    def run(self, spark: SparkSession) -> None:
        """Run over what is there, and look on with `look_on`."""
        checkpointing = ps.Checkpointing(
            interval=self.interval, mode=self.mode, retained=self.retained, max_concurrent=AT_ONCE
        )
        job = ps.Job(
            "bench",
            storage=self.root / "store",
            local_dir=self.root / "local",
            backend=self.backend,
            checkpoint=checkpointing,
        )
        clicks = job.read(self.clicks.read(spark), uid="clicks", **self.time)
        self.count(clicks).write_to(ps.sinks.Files(self.root / "out"), uid="out")
        handle = job.start(available_now=True)
        self.look_on(handle)
        handle.wait()


@dataclass
class SparkQuery:
    """Spark without Penstock, into the cheapest sink that it has."""

    clicks: Clicks
    root: Path
    count: Callable[[DataFrame], DataFrame]
    output_mode: ClassVar[str] = "update"

    def run(self, spark: SparkSession) -> None:
        """Run over what is there."""
        counted = self.count(self.clicks.read(spark))
        run_query(counted.writeStream.format("noop").outputMode(self.output_mode), self.root / "spark")


def run_query(writer: Any, checkpoint: Path) -> None:
    """Run Spark's own query over everything that is there."""
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
