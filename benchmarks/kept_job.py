"""The job that `recovery_seconds` kills, as a file for `penstock run`, and the empty Spark job beside it. Where: in the environment.

python kept_job.py      # the empty one: a session, and one batch of `foreachBatch`
"""

from __future__ import annotations

import os
from pathlib import Path

from data import SCHEMA
from jobs import RESULT, PenstockCount
from pyspark.sql import DataFrame, SparkSession

import penstock as ps

ROOT = "PENSTOCK_BENCH_ROOT"


def job(spark: SparkSession) -> ps.Job:
    """Count the clicks of each user with own Python."""
    root = Path(os.environ[ROOT])
    counting = ps.Job(
        "kept",
        storage=root / "store",
        local_dir=root / "local",
        checkpoint=ps.Checkpointing(interval="100ms"),
    )
    clicks = counting.read(_clicks(spark, root), uid="clicks")
    counts = clicks.key_by("user").process(PenstockCount(), schema=RESULT, uid="count")
    counts.write_to(ps.sinks.Files(root / "out"), uid="out")
    return counting


def _clicks(spark: SparkSession, root: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(root / "clicks"))


def _empty() -> None:
    root = Path(os.environ[ROOT])
    spark = SparkSession.builder.master("local[2]").getOrCreate()

    def to_parquet(frame: DataFrame, _: int) -> None:
        frame.write.mode("append").parquet(str(root / "out"))

    query = _clicks(spark, root).writeStream.foreachBatch(to_parquet)
    query.option("checkpointLocation", str(root / "spark")).start().awaitTermination()


if __name__ == "__main__":
    _empty()
