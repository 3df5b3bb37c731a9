"""The job of the demonstration, as a user would write it. Driver.

Two outputs show two things. SQLite has a row per app that is replaced by the newest count: it shows the state. Parquet gets the
counts of each batch appended: it shows what was delivered, and its sum tells at once when a batch was delivered twice or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import sinks
from penstock.config import Checkpointing
from penstock.demo.settings import JOB, DemoSettings
from penstock.job import Job
from penstock.recovery.restart import fixed_delay
from penstock.sources import PartitionedLog
from penstock.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE = "views"
SOURCE = "clicks"


def build_job(settings: DemoSettings, spark: SparkSession, storage: Storage) -> Job:
    """Count page views by app, end to end."""
    job = Job(
        JOB,
        storage=storage,
        local_dir=settings.root / "local",
        checkpoint=Checkpointing(interval="50ms", mode=settings.mode, retained=2),
        restart=fixed_delay(attempts=3),
    )
    log = PartitionedLog(settings.log_path)
    clicks = job.read(log.read(spark, rows_per_batch=settings.rows_per_batch), uid=SOURCE)

    views = clicks.key_by("app").aggregate(uid="views", on_bad_record="fail", ttl=None, **_counts())
    views.write_to(sinks.SQLite(settings.database_path, TABLE, mode="upsert", key=["app"]), uid="views-out")

    delivered = clicks.transform(_counts_of_a_batch)
    delivered.write_to(sinks.Files(settings.files_path, format="parquet"), uid="delivered-out")
    return job


def _counts_of_a_batch(batch: DataFrame) -> DataFrame:
    return batch.groupBy("app").agg(*(column.alias(name) for name, column in _counts().items()))


def _counts() -> dict[str, Column]:
    """How many, and two checksums over which ones."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

    return {"pv": F.count("*"), "event_sum": F.sum("event"), "event_xor": F.bit_xor("event")}
