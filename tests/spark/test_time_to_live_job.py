"""State with a time to live in a running job, over restarts, while the clock of the driver goes on, and back."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps
from penstock.checkpoint.metadata import found_checkpoints, read_metadata
from penstock.clock import SystemClock

pytestmark = pytest.mark.spark

HOUR_S = 3600.0


class Visits(ps.KeyedProcess):
    """Rows of an app in this visit, and ever."""

    visit = ps.ValueState("long", default=0, ttl="24h")
    ever = ps.ValueState("long", default=0)
    users = ps.MapState("long", "long", ttl=ps.TimeToLive("24h", since="read"))

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        self.visit.value += len(rows)
        self.ever.value += len(rows)
        for row in rows:
            self.users[row.user] = 1
        yield key, f"{self.visit.value} of {self.ever.value} by {len(self.users)}"


class Job:
    """The same job again and again, at another time of the driver."""

    def __init__(self, spark: Any, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark = spark
        self.ledger = ledger
        self.later_s = 0.0
        monkeypatch.setattr(SystemClock, "wall", lambda _: time.time() + self.later_s)

    def run(self, later_s: float, operator: ps.KeyedProcess | None = None, ttl: Any = "24h") -> None:
        """One row for app0, by a user of its own, at this time."""
        self.later_s = later_s
        self.ledger.append(0, "app0", 1, user=int(later_s))
        job = self.ledger.job(parallelism=1)
        clicks = job.read(self.ledger.log.read(self.spark, rows_per_batch=100), uid="clicks")
        visits = clicks.key_by("app").process(
            operator or Visits(), schema="app string, visits string", uid="visits"
        )
        visits.write_to(self.ledger.sqlite(), uid="out")
        counts = clicks.key_by("app").aggregate(uid="counts", ttl=ttl, n=F.count("*"))
        counts.write_to(self.ledger.files("counts"), uid="counts-out")
        job.run(available_now=True)

    @property
    def visits(self) -> Any:
        return self.ledger.counts()["app0"]

    @property
    def newest(self) -> ps.types.Completed:
        storage = self.ledger.job(parallelism=1).storage
        return read_metadata(storage, found_checkpoints(storage)[-1])


class Forever(Visits):
    """The same without a time to live."""

    visit = ps.ValueState("long", default=0)
    users = ps.MapState("long", "long")


def test_state_expires_by_the_time_of_the_driver(
    spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values expire over restarts, time does not go back with the clock, and a time to live is switched off and on again."""
    job = Job(spark, Ledger(tmp_path), monkeypatch)
    job.run(0)
    job.run(23 * HOUR_S)
    assert job.visits == "2 of 2 by 2"
    job.run(46 * HOUR_S)
    assert job.visits == "3 of 3 by 2"
    job.run(71 * HOUR_S)
    assert job.visits == "1 of 4 by 1"
    reached_us = job.newest.now_us
    job.run(48 * HOUR_S)
    assert job.visits == "2 of 5 by 2"
    assert job.newest.now_us == reached_us
    job.run(96 * HOUR_S, Forever(), ttl=None)
    assert job.visits == "1 of 6 by 1"
    job.run(1001 * HOUR_S)
    job.run(1024 * HOUR_S)
    assert job.visits == "3 of 8 by 3"
    counts = sorted(row["n"] for row in job.ledger.rows("counts"))
    assert counts == sorted([1, 2, 3, 1, 2, 1, 2, 3])
