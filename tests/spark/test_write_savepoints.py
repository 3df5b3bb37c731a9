"""Savepoints that are written: from history computed by a batch, and from other savepoints, repaired or with other key groups."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark

ROWS = 10_000
COLUMNS = "app string, count long, total long, by_user string, recent string"


class Visits(ps.KeyedProcess):
    """Every kind of state that a key has."""

    count = ps.ValueState("long", default=0)
    total = ps.ReducingState("long", lambda one, other: one + other)
    by_user = ps.MapState("long", "long")
    recent = ps.ListState("long")

    def process(self, key: str, rows: Any, ctx: ps.Context) -> Any:
        for row in rows:
            self.count.value += 1
            self.total.add(row.user)
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.recent.append(row.offset)
        by_user = ",".join(f"{user}:{n}" for user, n in sorted(self.by_user.items()))
        yield key, self.count.value, self.total.value, by_user, ",".join(map(str, self.recent))


class Site:
    """A log with a past and a present, and jobs over it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = ps.sources.PartitionedLog(root / "log", "app string, user long", 2)

    def fill(self, rows: int, *, seed: int = 0) -> None:
        for partition in range(2):
            numbers = range(seed, seed + rows // 2)
            apps = [f"app{(n * 7 + partition) % 23}" for n in numbers]
            users = pa.array([(n * n + partition) % 11 for n in numbers], pa.int64())
            self.log.append(partition, pa.table({"app": apps, "user": users}))

    def job(self, spark: Any, name: str, **settings: Any) -> ps.Job:
        job = ps.Job(
            "visits",
            storage=self.root / name / "store",
            local_dir=self.root / name / "local",
            checkpoint=ps.Checkpointing(interval="1ms"),
            restart=ps.no_restart(),
            **settings,
        )
        keyed = job.read(self.log.read(spark), uid="clicks").key_by("app")
        (self.root / name).mkdir(exist_ok=True)
        visits = keyed.process(Visits(), schema=COLUMNS, uid="visits", order_by=["offset", "partition"])
        visits.write_to(self._table(name, "visits"), uid="visits-out")
        views = keyed.aggregate(
            n=F.count("*"),
            total=F.sum("user"),
            mean=F.avg("user"),
            first=F.min("offset"),
            users=F.count_distinct("user"),
            uid="views",
        )
        views.write_to(self._table(name, "views"), uid="views-out")
        return job

    def _table(self, name: str, table: str) -> ps.sinks.SQLite:
        return ps.sinks.SQLite(self.root / name / "out.db", table=table, mode="upsert", key=["app"])

    def found(self, name: str, table: str) -> dict[str, tuple[Any, ...]]:
        with sqlite3.connect(self.root / name / "out.db") as database:
            return {app: tuple(rest) for app, *rest in database.execute(f"select * from {table}")}

    def past(self, spark: Any) -> Any:
        self.log.read(spark)  # whoever reads it first makes its format known
        return spark.read.format("penstock-log").option("path", str(self.log.path)).load()

    def state(self, spark: Any) -> dict[str, Any]:
        past = self.past(spark)
        return {
            "count": past.groupBy("app").agg(F.count("*").alias("count")),
            "total": past.groupBy("app").agg(F.sum("user").alias("total")),
            "by_user": past.groupBy("app", F.col("user").alias("by_user_key")).agg(
                F.count("*").alias("by_user")
            ),
            "recent": past.select(
                "app",
                F.struct("offset", "partition").alias("recent_position"),
                F.col("offset").alias("recent"),
            ),
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.fill(ROWS)
    return made


def test_bootstrapped_from_history(spark: Any, site: Site) -> None:
    """History computed by a batch, then the stream from there on: the same as streaming everything."""
    ends = site.log.end_offsets()
    saved = site.root / "boot"
    counts = ps.write_savepoint(
        saved,
        site.job(spark, "new"),
        {"visits": site.state(spark)},
        history={"views": site.past(spark)},
        positions={"clicks": ends},
        parallelism=3,
    )
    assert (counts["visits"]["values"], counts["visits"]["recent"]) == (23, ROWS)
    site.fill(600, seed=ROWS)
    handle = site.job(spark, "new").start(available_now=True, savepoint=saved)
    handle.wait()
    assert handle.progress.rows_in == 600
    site.job(spark, "all").run(available_now=True)
    for table in ("visits", "views"):
        assert site.found("new", table) == site.found("all", table)
