"""Timers in a running job: they fire when no data comes, over a restart, by the clock, and at the end of a drained input."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from services.patience import wait_for

pytestmark = pytest.mark.spark

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
RESULT = "k string, what string, at timestamp"


class Watching(ps.KeyedProcess):
    """Says when a key was silent: ten seconds in event time, and half a second by the clock."""

    count = ps.ValueState("long", default=0)
    last = ps.ValueState("timestamp", ttl=ps.TimeToLive("30s", by="event_time"))

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        self.count.value += len(rows)
        if self.last.value is not None:
            ctx.delete_timer(self.last.value + dt.timedelta(seconds=10))
        self.last.value = max(rows.column("at"))
        ctx.set_timer(self.last.value + dt.timedelta(seconds=10))
        if key == "clock":
            ctx.set_timer(ctx.now + dt.timedelta(seconds=0.5), by="clock")

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[tuple[Any, ...]]:
        late = "" if ctx.watermark is not None and timer.at <= ctx.watermark else "early "
        yield key, f"{late}{timer.by} {self.count.value}", timer.at if timer.by == "event_time" else START


class InColumns(ps.BatchProcess):
    """The same in columns, on the same state."""

    count = ps.ValueState("long", default=0)
    last = ps.ValueState("timestamp", ttl=ps.TimeToLive("30s", by="event_time"))

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> None:
        raise AssertionError("no rows come")

    def on_timers(
        self, keys: ps.types.BatchKeys, timers: ps.types.BatchTimers, state: ps.types.BatchState
    ) -> Any:
        counts = state["count"].take(timers.key_index).to_pylist()
        what = [f"columns {one}" for one in counts]
        return {"k": keys["k"].take(timers.key_index), "what": what, "at": timers["at"]}


class Watched:
    """A log whose rows have a time, and a job that watches its keys."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.ledger = Ledger(root)
        self.log = ps.sources.PartitionedLog(root / "readings", "k string, at timestamp", 1)

    def add(self, key: str, *seconds: float) -> None:
        times = [START + dt.timedelta(seconds=one) for one in seconds]
        rows = pa.table({"k": [key] * len(times), "at": pa.array(times, pa.timestamp("us", "UTC"))})
        self.log.append(0, rows)

    def job(self, operator: Any = None, *, parallelism: int = 2, **time: Any) -> ps.Job:
        job = self.ledger.job(parallelism=parallelism)
        options: dict[str, Any] = {"out_of_order": "0s", "max_ahead": None, "idle_after": None, **time}
        rows = job.read(self.log.read(self.spark), uid="readings", event_time="at", **options)
        silent = rows.key_by("k").process(operator or Watching(), schema=RESULT, uid="watch")
        silent.write_to(self.ledger.files("silent"), uid="out")
        return job

    def silent(self) -> list[tuple[str, str, float]]:
        found = self.ledger.rows("silent")
        return sorted((row["k"], row["what"], (row["at"] - START).total_seconds()) for row in found)


@pytest.fixture
def watched(spark: SparkSession, tmp_path: Path) -> Watched:
    return Watched(spark, tmp_path)


def test_timers_wait_over_restarts_and_fire_when_no_data_comes(watched: Watched) -> None:
    """What was set by one run fires in the next, with other subtasks and in the other form; the last one when all is silent."""
    watched.add("a", 1, 5)
    watched.add("b", 2)
    watched.add("c", 14)
    watched.job().run(available_now=True)
    assert watched.silent() == [("b", "event_time 1", 12.0)]
    watched.add("c", 20)
    watched.job(parallelism=3).run(available_now=True)
    assert watched.silent() == [("a", "event_time 2", 15.0), ("b", "event_time 1", 12.0)]
    handle = watched.job(InColumns(), idle_after="200ms", when_all_idle="follow_clock").start()
    try:
        wait_for(lambda: ("c", "columns 2", 30.0) in watched.silent())
    finally:
        handle.stop()
    assert len(watched.silent()) == 3


def test_timers_by_the_clock_fire_when_no_data_comes(watched: Watched) -> None:
    """The driver runs a batch of its own, and none when nothing waits any more."""
    watched.add("clock", 1)
    handle = watched.job().start()
    try:
        wait_for(lambda: ("clock", "early clock 1", 0.0) in watched.silent())
    finally:
        handle.stop()
    assert watched.silent() == [("clock", "early clock 1", 0.0)]


def test_all_timers_in_event_time_fire_when_a_drained_input_ends(watched: Watched) -> None:
    """However far ahead they are; and state that lived by event time is gone."""
    watched.add("a", 1)
    watched.add("b", 50)
    watched.job().run(available_now=True, drain=True)
    assert watched.silent() == [("a", "event_time 1", 11.0), ("b", "event_time 1", 60.0)]


def test_a_time_to_live_by_event_time(watched: Watched) -> None:
    """An aggregate of a key is forgotten when the watermark is so far behind its newest row; each batch has one row here."""
    for key, second in (("a", 0), ("b", 31), ("a", 31), ("b", 62), ("b", 64), ("a", 65)):
        watched.add(key, second)
    job = watched.ledger.job(parallelism=2)
    frame = watched.log.read(watched.spark, rows_per_batch=1)
    options: dict[str, Any] = {"out_of_order": "0s", "max_ahead": None, "idle_after": None}
    rows = job.read(frame, uid="readings", event_time="at", **options)
    ttl = ps.TimeToLive("30s", by="event_time")
    counts = rows.key_by("k").aggregate(uid="counts", n=F.count("*"), ttl=ttl)
    counts.write_to(watched.ledger.files("silent"), uid="out")
    job.run(available_now=True)
    found = sorted((row["k"], row["n"]) for row in watched.ledger.rows("silent"))
    assert found == [("a", 1), ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)]


def test_event_time_to_live_needs_event_time(watched: Watched) -> None:
    """Refused before anything starts: nothing would ever expire."""
    job = watched.ledger.job(parallelism=2)
    rows = job.read(watched.log.read(watched.spark), uid="readings")
    with pytest.raises(
        ps.ConfigError, match="has a time to live by event time, but no source that it reads has event time"
    ):
        rows.key_by("k").process(Watching(), schema=RESULT, uid="watch")
    with pytest.raises(ps.ConfigError, match="has a time to live by event time"):
        rows.key_by("k").aggregate(uid="counts", n=F.count("*"), ttl=ps.TimeToLive("1h", by="event_time"))
