"""What Penstock adds to a batch of 1,000 rows, beside the same `foreachBatch` without it.

Both group, count per key, pass the counts through Python as Arrow and write them as Parquet. Penstock also keeps the counts over all
batches as state and stages the output. A second peer drops its output, so that the Parquet writers cancel out of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import jobs
import pyarrow as pa
from bench import Bench
from data import Clicks
from measure import Found, median_of
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ROWS = 1000
KEYS = 100
WARM_UP = 15


def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def measure(bench: Bench) -> Found:
    """Median seconds a batch; Penstock with the interval that a job has when nothing is said."""
    with bench.scratch() as root:
        clicks = Clicks(root)
        batches = clicks.uniform(ROWS, KEYS, batches=bench.size(60, 20))

        def to_parquet(frame: DataFrame, _: int) -> None:
            counted(frame).write.mode("append").parquet(str(root / "plain"))

        def to_nowhere(frame: DataFrame, _: int) -> None:
            counted(frame).write.mode("append").format("noop").save()

        def foreach(function: Callable[[DataFrame, int], None], name: str) -> float:
            writer = clicks.read(bench.spark).writeStream.foreachBatch(function)
            times = bench.watch(name, lambda: jobs.run_query(writer, root / name), batches=batches)
            return median_of(times.seconds, warm_up=WARM_UP)

        plain = foreach(to_parquet, "foreachBatch")
        job = jobs.PenstockJob(clicks, root, jobs.by_aggregate, interval="10s")
        ours = median_of(bench.run("Penstock", job, batches=batches).seconds, warm_up=WARM_UP)
        bare = foreach(to_nowhere, "foreachBatch without output")
    return {
        "foreach_batch_s": plain,
        "foreach_batch_without_output_s": bare,
        "penstock_s": ours,
        "ratio": ours / plain,
        "ratio_without_output": ours / bare,
    }


def counted(frame: DataFrame) -> DataFrame:
    """Counts per key, once through Python."""
    frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
    frame.sparkSession.conf.set("spark.sql.shuffle.partitions", "2")
    counts = frame.groupBy("user").agg(F.count("*").alias("n"))
    return counts.mapInArrow(passed_on, counts.schema)
