"""What Penstock adds to a batch of 1,000 rows, beside the same `foreachBatch` without it.

Both group, count per key, pass the counts through Python as Arrow and write them as Parquet. Penstock also keeps the counts over all
batches as state and stages the output. A second peer drops its output, so that the Parquet writers cancel out of nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from measure import clicks, run_query, scratch, timed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps

ROWS = 1000


def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def measure(spark: SparkSession, *, batches: int = 60, warm_up: int = 15) -> dict[str, float]:
    """Median seconds a batch."""
    with scratch() as root:
        log = clicks(root, rows=ROWS, keys=100, batches=batches)

        def counted(frame: DataFrame) -> DataFrame:
            frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
            frame.sparkSession.conf.set("spark.sql.shuffle.partitions", "2")
            counts = frame.groupBy("user").agg(F.count("*").alias("n"))
            return counts.mapInArrow(passed_on, counts.schema)

        def to_parquet(frame: DataFrame, _: int) -> None:
            counted(frame).write.mode("append").parquet(str(root / "plain"))

        def to_nowhere(frame: DataFrame, _: int) -> None:
            counted(frame).write.mode("append").format("noop").save()

        def foreach(function: object, name: str) -> float:
            writer = log.read(spark, rows_per_batch=ROWS).writeStream.foreachBatch(function)
            return timed(spark, lambda: run_query(writer, root / name), warm_up=warm_up, batches=batches)

        def penstock() -> None:
            job = ps.Job("bench", storage=root / "store", local_dir=root / "local")
            stream = job.read(log.read(spark, rows_per_batch=ROWS), uid="clicks")
            stream.key_by("user").aggregate(n=F.count("*"), uid="count").write_to(
                ps.sinks.Files(root / "out"), uid="out"
            )
            job.run(available_now=True)

        plain = foreach(to_parquet, "parquet")
        ours = timed(spark, penstock, warm_up=warm_up, batches=batches)
        bare = foreach(to_nowhere, "nowhere")
    return {
        "foreach_batch_s": plain,
        "foreach_batch_without_output_s": bare,
        "penstock_s": ours,
        "ratio": ours / plain,
        "ratio_without_output": ours / bare,
    }
