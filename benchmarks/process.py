"""Own Python code per key: `KeyedProcess` beside PySpark's `transformWithState`, the same count on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measure import clicks, noop, run_query, scratch, timed
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import penstock as ps


class SparkCount(StatefulProcessor):
    """The peer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self.count.get()[0] if self.count.exists() else 0
        now = before + sum(1 for _ in rows)
        self.count.update((now,))
        yield Row(user=key[0], n=now)

    def close(self) -> None:
        """Nothing is open."""


class PenstockCount(ps.KeyedProcess):
    """The same with Penstock."""

    count = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.count.value += len(rows)
        yield key, self.count.value


def measure(spark: SparkSession, *, rows: int, keys: int, batches: int = 3) -> dict[str, float]:
    """Seconds a batch, after one batch to warm up. Spark's results are dropped, Penstock's go into Parquet, exactly once."""
    with scratch() as root:
        log = clicks(root, rows=rows, keys=keys, batches=batches)

        def spark_alone() -> None:
            frame = log.read(spark, rows_per_batch=rows).groupBy("user")
            counted = frame.transformWithState(
                statefulProcessor=SparkCount(),
                outputStructType="user long, n long",
                outputMode="Update",
                timeMode="None",
            )
            run_query(noop(counted, "update"), root / "spark")

        def penstock() -> None:
            job = ps.Job(
                "bench",
                storage=root / "store",
                local_dir=root / "local",
                checkpoint=ps.Checkpointing(interval="1ms"),
            )
            stream = job.read(log.read(spark, rows_per_batch=rows), uid="clicks")
            stream.key_by("user").process(PenstockCount(), schema="user long, n long", uid="count").write_to(
                ps.sinks.Files(root / "out"), uid="out"
            )
            job.run(available_now=True)

        ours = timed(spark, penstock, warm_up=1, batches=batches)
        theirs = timed(spark, spark_alone, warm_up=1, batches=batches)
    return {"transform_with_state_s": theirs, "process_s": ours, "ratio": theirs / ours}
