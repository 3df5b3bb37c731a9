"""A script for `test_oldest_spark`: a small job, run twice, over all that differs between Sparks; prints what came out as a line of JSON."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import functions as F

import penstock as ps

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROWS = 60
ROWS_PER_BATCH = 25


class Count(ps.KeyedProcess):
    """Counts rows per key and emits the new count."""

    count = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.count.value += len(rows)
        yield key, self.count.value


def rows(first: int) -> list[dict[str, Any]]:
    return [
        {"app": f"app{n % 7}", "day": DAY + dt.timedelta(days=n % 5)} for n in range(first, first + ROWS // 2)
    ]


def run(root: Path, spark: Any) -> int:
    """Read what was added, in batches; returns how many."""
    log = ps.sources.PartitionedLog(root / "log")
    job = ps.Job("old", storage=root / "storage", local_dir=root / "local", parallelism=3)
    clicks = job.read(log.read(spark, rows_per_batch=ROWS_PER_BATCH), uid="clicks")
    apps = clicks.key_by("app").process(Count(), schema="app string, n long", uid="apps")
    apps.write_to(sink(root, "app"), uid="apps-out")
    days = clicks.key_by("day").aggregate(n=F.count("*"), uid="days")
    days.write_to(sink(root, "day"), uid="days-out")
    handle = job.start(available_now=True)
    handle.wait()
    return handle.progress.batches


def sink(root: Path, column: str) -> ps.sinks.SQLite:
    return ps.sinks.SQLite(root / "out.db", table=f"by_{column}", mode="upsert", key=[column])


def main() -> None:
    root = Path(sys.argv[1])
    spark = ps.local_session("oldest")
    log = ps.sources.PartitionedLog(root / "log", "app string, day timestamp", 2)
    batches = []
    for first in (0, 1000):
        log.append(0, rows(first))
        log.append(1, rows(first + 500))
        batches.append(run(root, spark))
    with sqlite3.connect(root / "out.db") as database:
        by_app, by_day = (
            dict(database.execute(f"select * from by_{column}").fetchall()) for column in ("app", "day")
        )
    truth = log.table()
    print(
        json.dumps(
            {
                "spark": pyspark.__version__,
                "batches": batches,
                "by_app": by_app,
                "true_by_app": Counter(truth["app"].to_pylist()),
                "by_day": sorted(by_day.values()),
                "true_by_day": sorted(Counter(truth["day"].to_pylist()).values()),
            }
        )
    )


if __name__ == "__main__":
    main()
