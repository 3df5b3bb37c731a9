"""SQL aggregates: `aggregate` beside Spark's native `groupBy().count()` with the RocksDB state store."""

from __future__ import annotations

from measure import clicks, noop, run_query, scratch, timed
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps


def measure(spark: SparkSession, *, rows: int, keys: int, batches: int = 5) -> dict[str, float]:
    """Seconds a batch, after two to warm up. Spark's results are dropped, Penstock's go into Parquet, exactly once."""
    with scratch() as root:
        log = clicks(root, rows=rows, keys=keys, batches=batches)

        def spark_alone() -> None:
            counted = log.read(spark, rows_per_batch=rows).groupBy("user").count()
            run_query(noop(counted, "update"), root / "spark")

        def penstock() -> None:
            job = ps.Job(
                "bench",
                storage=root / "store",
                local_dir=root / "local",
                checkpoint=ps.Checkpointing(interval="1ms"),
            )
            stream = job.read(log.read(spark, rows_per_batch=rows), uid="clicks")
            stream.key_by("user").aggregate(n=F.count("*"), uid="count").write_to(
                ps.sinks.Files(root / "out"), uid="out"
            )
            job.run(available_now=True)

        theirs = timed(spark, spark_alone, warm_up=2, batches=batches)
        ours = timed(spark, penstock, warm_up=2, batches=batches)
    return {"spark_native_s": theirs, "aggregate_s": ours, "ratio": theirs / ours}
