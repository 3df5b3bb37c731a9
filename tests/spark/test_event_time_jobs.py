"""Event time in a running job: watermarks by partition, idle partitions, batches without data, restarts, the end of time."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.checkpoint.metadata import found_checkpoints, read_metadata
from penstock.graph import TimeSettings
from penstock.run.reading import ALL_ROWS, partition_name
from penstock.spark.event_times import NewestTimes, checked_time
from penstock.spark.plan_template import observed
from penstock.status.sentences import LIFE
from services.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.spark

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
START_US = int(START.timestamp()) * 1_000_000
SECOND_US = 1_000_000
MICROSECOND = dt.timedelta(microseconds=1)
COLUMNS = "k string, at timestamp"


def at(second: float) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


class Readings:
    """A log whose rows have a time, and a job that counts them in windows of ten seconds."""

    def __init__(self, spark: SparkSession, root: Path, partitions: int = 2) -> None:
        self.spark = spark
        self.ledger = Ledger(root)
        self.log = ps.sources.PartitionedLog(root / "readings", COLUMNS, partitions)

    def add(self, partition: int, *seconds: float | dt.datetime | None, key: str = "a") -> None:
        times = [at(one) if isinstance(one, int | float) else one for one in seconds]
        rows = pa.table({"k": [key] * len(times), "at": pa.array(times, pa.timestamp("us", "UTC"))})
        self.log.append(partition, rows)

    def job(self, *, rows_per_batch: int | None = None, lateness: str = "0s", **time: Any) -> ps.Job:
        job = self.ledger.job(parallelism=2)
        options: dict[str, Any] = {"out_of_order": "0s", "max_ahead": None, **time}
        frame = self.log.read(self.spark, rows_per_batch=rows_per_batch)
        rows = job.read(frame, uid="readings", event_time="at", **options)
        windows = rows.key_by("k").window(ps.windows.tumbling("10s"), lateness=lateness)
        windows.aggregate(uid="counts", n=F.count("*")).write_to(self.ledger.files("counts"), uid="out")
        return job

    def counts(self) -> dict[tuple[str, float], int]:
        """Closed windows: key and first second, and how many; none has two results."""
        rows = self.ledger.rows("counts")
        found = {(row["k"], (row["window_start"] - START).total_seconds()): row["n"] for row in rows}
        assert len(found) == len(rows)
        return found

    def newest(self) -> ps.types.Completed:
        storage = self.ledger.job(parallelism=2).storage
        return read_metadata(storage, found_checkpoints(storage)[-1])


@pytest.fixture
def readings(spark: SparkSession, tmp_path: Path) -> Readings:
    return Readings(spark, tmp_path)


def test_the_slowest_partition_decides_over_restarts_and_late_rows_are_counted(
    readings: Readings, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows close up to where the slowest partition is, however the input is cut; the watermark comes back; a drain closes the rest."""
    readings.add(0, 1, 12, 23, 34, 95)
    readings.add(1, 2, 13, 31)
    readings.job(rows_per_batch=2, idle_after=None).run(available_now=True)
    assert readings.counts() == {("a", 0): 2, ("a", 10): 2, ("a", 20): 1}
    time = readings.newest().barrier.time
    assert time.watermarks_us == {"counts": START_US + 31 * SECOND_US - 1}
    assert time.sources["readings"].newest_us == {
        partition_name([0]): START_US + 95 * SECOND_US,
        partition_name([1]): START_US + 31 * SECOND_US,
    }
    readings.add(1, 5, 6, 45)  # 5 and 6 are late: their window is closed, and was before the restart
    handle = readings.job(idle_after=None).start(available_now=True)
    handle.wait()
    assert readings.counts() == {("a", 0): 2, ("a", 10): 2, ("a", 20): 1, ("a", 30): 2}
    assert handle.progress.late_rows == readings.newest().late_rows == {"counts": 2}
    assert handle.progress.watermarks == {"counts": at(45) - MICROSECOND}
    assert handle.progress.due_next == {"counts": at(50) - MICROSECOND}
    with caplog.at_level(logging.INFO, LIFE.name):
        readings.job(idle_after=None).run(available_now=True)
        assert caplog.messages[-1] == (
            "job pv: watermark 2026-01-01 00:00:45 UTC, still open: counts (next at 2026-01-01 00:00:50 UTC); the next run goes on with it, "
            "drain=True closes it"
        )
        done = readings.job(idle_after=None).run(available_now=True, drain=True)
        assert (done.status, done.progress.late_rows) == ("finished", {"counts": 2})
        assert caplog.messages[-1] == "job pv: watermark 2026-01-01 00:00:45 UTC, nothing is open"
    closed = {("a", 0): 2, ("a", 10): 2, ("a", 20): 1, ("a", 30): 2, ("a", 40): 1, ("a", 90): 1}
    assert readings.counts() == closed
    time = readings.newest().barrier.time
    assert time.watermarks_us == {"counts": START_US + 45 * SECOND_US - 1}
    assert time.to_go_on_from_us == {}
    readings.add(0, 101, 112)
    readings.add(1, 103, 125)
    readings.job(idle_after=None).run(available_now=True)
    assert readings.counts() == {**closed, ("a", 100): 2}


def test_lateness_and_disorder_may_change(readings: Readings) -> None:
    """A longer lateness holds for windows that are not over yet; those that are stay over, also after the next start. Time never goes back."""

    def run(**settings: Any) -> tuple[list[tuple[float, int]], int]:
        readings.job(idle_after=None, **settings).run(available_now=True)
        rows = readings.ledger.rows("counts")
        found = sorted(((row["window_start"] - START).total_seconds(), row["n"]) for row in rows)
        return found, sum(readings.newest().late_rows.values())

    readings.add(0, 1, 12)
    readings.add(1, 3, 13)
    assert run() == ([(0, 2)], 0)
    readings.add(0, 5, 24)  # the window of 5 is over: nobody knows any more what was in it
    readings.add(1, 25)
    assert run(lateness="1h", out_of_order="20s") == ([(0, 2)], 1)
    assert readings.newest().barrier.time.watermarks_us == {"counts": START_US + 12 * SECOND_US - 1}
    readings.add(0, 6, 60)
    readings.add(1, 61)
    assert run(lateness="1h", out_of_order="20s") == ([(0, 2), (10, 2), (20, 2)], 2)
    readings.add(1, 14)  # late, and within the lateness that held when its window closed
    assert run(lateness="1h", out_of_order="0s") == ([(0, 2), (10, 2), (10, 3), (20, 2)], 2)
    readings.add(1, 15)
    assert run(lateness="0s", out_of_order="0s") == ([(0, 2), (10, 2), (10, 3), (20, 2)], 3)


def test_windows_close_when_no_data_comes(readings: Readings) -> None:
    """An idle partition does not hold the watermark; where time follows the clock the last window closes, in batches that read nothing."""
    readings.add(0, 1, 2, 15)
    handle = readings.job(idle_after="500ms", when_all_idle="follow_clock").start()
    try:
        wait_for(lambda: ("a", 0) in readings.counts())
        wait_for(lambda: ("a", 10) in readings.counts())
        batches = handle.progress.batches
        time.sleep(1.5)
        assert handle.progress.batches == batches  # nothing waits any more
        readings.add(1, 1000)
        wait_for(lambda: handle.progress.batches > batches)
    finally:
        handle.stop()
    assert readings.counts() == {("a", 0): 2, ("a", 10): 1}
    assert handle.progress.rows_in == 4
    again = readings.job(idle_after=None).start(available_now=True, drain=True)
    again.wait()
    assert readings.counts() == {("a", 0): 2, ("a", 10): 1, ("a", 1000): 1}
    assert again.progress.late_rows == {}


class Ticking(ps.KeyedProcess):
    """Sets a timer by the clock, and sets it again when it fires; each time it tells the watermark of its batch."""

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        ctx.set_timer(ctx.now + dt.timedelta(milliseconds=100), by="clock")
        return ()

    def on_timer(self, key: Any, timer: ps.types.Timer, ctx: ps.types.Context) -> Any:
        ctx.set_timer(ctx.now + dt.timedelta(milliseconds=100), by="clock")
        yield (key, ctx.watermark)


def test_rows_in_order_are_in_time_after_any_silence(readings: Readings) -> None:
    """All partitions have long been idle, and timers of another operator fired meanwhile: the watermark stays where the rows left it."""
    readings.add(0, 1, 12)
    readings.add(1, 2, 13)
    job = readings.job(idle_after="100ms")
    rows = job.read(
        readings.log.read(readings.spark), uid="again", event_time="at", out_of_order="0s", idle_after="100ms"
    )
    ticks = rows.key_by("k").process(Ticking(), schema="k string, at timestamp", uid="ticking")
    ticks.write_to(readings.ledger.files("ticks"), uid="ticks")
    handle = job.start()
    try:
        wait_for(lambda: len(readings.ledger.rows("ticks")) >= 8)
        assert {row["at"] for row in readings.ledger.rows("ticks")[2:]} == {at(12) - MICROSECOND}
        readings.add(0, 13, 25)
        readings.add(1, 14, 26)
        wait_for(lambda: ("a", 10) in readings.counts())
    finally:
        handle.stop()
    assert readings.counts() == {("a", 0): 2, ("a", 10): 4}
    assert handle.progress.late_rows == {}


def test_a_partition_that_is_silent_in_run_after_run_is_idle(readings: Readings) -> None:
    """Its silence counts over runs that end with their input, so that windows close; a run is not long enough for it by itself."""
    readings.add(0, 1, 12)
    readings.job(idle_after="1s").run(available_now=True)
    assert readings.counts() == {}
    known_us = readings.newest().barrier.time.sources["readings"].seen_us[partition_name([1])]
    readings.add(0, 13)
    wait_for(lambda: time.time() * SECOND_US > known_us + SECOND_US)
    readings.job(idle_after="1s").run(available_now=True)
    assert readings.counts() == {("a", 0): 1}
    readings.add(1, 14, 25)  # it comes back in order, and is in time
    readings.add(0, 26)
    readings.job(idle_after="1s").run(available_now=True)
    assert readings.counts() == {("a", 0): 1, ("a", 10): 3}


def test_what_came_while_a_batch_ran_is_not_late_by_a_tick_behind_it(readings: Readings) -> None:
    """A batch takes longer than partitions may be silent, and Spark looks again only after a while: until then nobody is idle."""
    readings.add(0, 1, 12)
    readings.add(1, 2)
    batches: list[DataFrame] = []

    def long_batch(rows: DataFrame) -> DataFrame:
        if readings.spark.sparkContext.getLocalProperty("streaming.sql.batchId") == "0" and not batches:
            batches.append(rows)
            readings.add(1, 5)  # Spark has planned the batch, and finds this with its next look
            time.sleep(0.5)
        return rows

    job = readings.ledger.job(parallelism=2, trigger="2s")
    read = job.read(
        readings.log.read(readings.spark),
        uid="readings",
        event_time="at",
        out_of_order="0s",
        idle_after="200ms",
        when_all_idle="follow_clock",
    )
    windows = read.transform(long_batch).key_by("k").window(ps.windows.tumbling("10s"))
    windows.aggregate(uid="counts", n=F.count("*")).write_to(readings.ledger.files("counts"), uid="out")
    handle = job.start()
    try:
        wait_for(lambda: ("a", 0) in readings.counts())
    finally:
        handle.stop()
    assert len(batches) == 1
    assert readings.counts()["a", 0] == 3
    assert handle.progress.late_rows == {}


def test_times_that_cannot_be_believed(readings: Readings) -> None:
    """They count as late and do not carry the watermark away; where that is asked for they end the run."""
    absurd = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
    readings.add(0, 1, None, absurd, 12)
    readings.add(1, 3, 13)
    handle = readings.job(max_ahead="1d", idle_after=None).start(available_now=True)
    handle.wait()
    assert readings.counts() == {("a", 0): 2}
    assert handle.progress.late_rows == {"counts": 2}
    readings.add(0, None)
    with pytest.raises(ps.BadRecordError, match="1 row has no event time"):
        readings.job(max_ahead="1d", bad_event_time="fail").run(available_now=True)
    plain = ps.Job("plain", storage=readings.ledger.root / "plain", restart=ps.no_restart())
    rows = plain.read(readings.log.read(readings.spark), uid="rows", event_time="at", bad_event_time="fail")
    rows.write_to(readings.ledger.files("plain"), uid="plain-out")
    with pytest.raises(ps.BadRecordError, match="source 'rows': 3 rows have no event time"):
        plain.run(available_now=True)


class Passing(ps.KeyedProcess):
    """Gives every row as it came."""

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            yield (key, row.at)


def test_each_row_is_judged_by_the_settings_of_its_own_source(readings: Readings) -> None:
    """A row without a time of another source ends nothing, and a union with results of an operator does not believe the year 9999."""
    root, spark = readings.ledger.root, readings.spark
    lax, bounded = (Readings(spark, root / name, 1) for name in ("lax", "bounded"))
    readings.add(0, 2)
    lax.add(0, 1, None, key="b")
    bounded.add(0, 3, dt.datetime(9999, 1, 1, tzinfo=dt.UTC), key="c")
    job = readings.ledger.job(parallelism=2)
    strict = job.read(readings.log.read(spark), uid="strict", event_time="at", bad_event_time="fail")
    others = [
        job.read(one.log.read(spark), uid=uid, event_time="at", max_ahead=ahead)
        for uid, one, ahead in (("lax", lax, None), ("bounded", bounded, "1d"))
    ]
    passed = strict.key_by("k").process(Passing(), schema=COLUMNS, uid="passed")
    mixed = passed.union(others[1].select("k", "at"))
    for uid, rows in (("counts", strict.union(others[0])), ("mixed", mixed)):
        counts = rows.key_by("k").window(ps.windows.tumbling("10s")).aggregate(uid=uid, n=F.count("*"))
        counts.write_to(readings.ledger.files(uid), uid=f"{uid}-out")
    mixed.write_to(readings.ledger.files("plain"), uid="plain-out")
    handle = job.start(available_now=True, drain=True)
    handle.wait()
    found = {uid: [(row["k"], row["n"]) for row in readings.ledger.rows(uid)] for uid in ("counts", "mixed")}
    assert {uid: sorted(rows) for uid, rows in found.items()} == {
        "counts": [("a", 1), ("b", 1)],
        "mixed": [("a", 1), ("c", 1)],
    }
    assert handle.progress.late_rows == {"counts": 1, "mixed": 1}
    assert sorted(row["at"].year for row in readings.ledger.rows("plain")) == [2026, 2026, 9999]


@pytest.mark.parametrize("results_first", [True, False])
def test_a_moment_is_not_taken_for_the_end_of_a_window(readings: Readings, *, results_first: bool) -> None:
    """Where rows of a source meet results of windows in one column, they are in the windows that begin with them, in either order."""
    other = Readings(readings.spark, readings.ledger.root / "other", 1)
    readings.add(0, 1)
    other.add(0, 10, 20, 25, key="b")
    job = readings.ledger.job(parallelism=1)
    mine, rows = (
        job.read(one.log.read(readings.spark), uid=uid, event_time="at")
        for uid, one in (("mine", readings), ("rows", other))
    )
    rows = rows.select("k", "at")
    counts = mine.key_by("k").window(ps.windows.tumbling("10s")).aggregate(uid="counts", n=F.count("*"))
    ends = counts.transform(lambda frame: frame.select("k", F.col("window_end").alias("at")))
    both = ends.union(rows) if results_first else rows.union(ends)
    again = (
        both.key_by("k")
        .window(ps.windows.tumbling("10s"), event_time="at")
        .aggregate(uid="again", n=F.count("*"))
    )
    again.write_to(readings.ledger.files("again"), uid="out")
    job.run(available_now=True, drain=True)
    found = [(row["k"], row["window_start"].second, row["n"]) for row in readings.ledger.rows("again")]
    assert sorted(found) == [("a", 10, 1), ("b", 10, 1), ("b", 20, 2)]


def test_the_slower_of_two_sources_decides(readings: Readings) -> None:
    """Both have partitions of their own: one as the log tells them, the other by a column; a third has no time, and is not asked."""
    other = Readings(readings.spark, readings.ledger.root / "other", 1)
    readings.add(0, 1, 12, 55)
    readings.add(1, 2, 47)
    other.add(0, 3, 33, key="b")
    other.add(0, 25, 38, key="c")
    timeless = ps.sources.PartitionedLog(readings.ledger.root / "timeless", COLUMNS, 1)
    job = readings.ledger.job(parallelism=2)
    left = job.read(
        readings.log.read(readings.spark, rows_per_batch=2),
        uid="left",
        event_time="at",
        out_of_order="0s",
        idle_after=None,
    )
    right = job.read(
        other.log.read(readings.spark, rows_per_batch=2),
        uid="right",
        event_time="at",
        out_of_order="1s",
        idle_after=None,
        partition_by=["k"],
    )
    third = job.read(timeless.read(readings.spark), uid="third")
    rows = left.union(right).union(third)
    rows.key_by("k").window(ps.windows.tumbling("10s")).aggregate(uid="counts", n=F.count("*")).write_to(
        readings.ledger.files("counts"), uid="out"
    )
    job.run(available_now=True)
    assert readings.counts() == {("a", 0): 2, ("a", 10): 1, ("b", 0): 1, ("c", 20): 1}
    time = readings.newest().barrier.time
    assert time.watermarks_us == {"counts": START_US + 32 * SECOND_US - 1}
    assert time.sources["right"].newest_us == {
        partition_name(["b"]): START_US + 33 * SECOND_US,
        partition_name(["c"]): START_US + 38 * SECOND_US,
    }


class Alarm(ps.KeyedProcess):
    """Fails when its timer fires, when no row is about."""

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        ctx.set_timer(ctx.now + dt.timedelta(seconds=1), by="clock")
        return ()

    def on_timer(self, key: Any, timer: ps.types.Timer, ctx: ps.types.Context) -> Any:
        raise ValueError(f"nobody answers the alarm of {key}")


def test_a_failure_when_no_data_comes_is_a_failure_of_the_job(readings: Readings) -> None:
    """It is told as one in a batch with rows, and the job ends by it."""
    readings.add(0, 1)
    job = readings.ledger.job(parallelism=2)
    rows = job.read(readings.log.read(readings.spark), uid="readings")
    rows.key_by("k").process(Alarm(), schema="k string", uid="alarm").write_to(
        readings.ledger.files("counts"), uid="out"
    )
    handle = job.start()
    with pytest.raises(ps.JobFailedError, match="nobody answers the alarm of a"):
        handle.wait(PATIENCE_S)
    assert handle.progress.batches == 1


def test_what_read_refuses(spark: SparkSession, readings: Readings) -> None:
    """Before anything starts, with what to do."""
    frame, job = readings.log.read(spark), readings.ledger.job()
    wrong: Sequence[tuple[dict[str, Any], str]] = [
        ({"event_time": "when"}, "there are partition, offset, k, at"),
        ({"event_time": "k"}, "has to be a timestamp"),
        ({"event_time": "at", "out_of_order": "soon"}, "not a duration"),
        ({"event_time": "at", "idle_after": "0s"}, "more than 0 s"),
        ({"event_time": "at", "partition_by": "nobody"}, "tell its partitions apart"),
        ({"event_time": "at", "bad_event_time": "skip"}, "choose 'late' or 'fail'"),
        ({"event_time": "at", "when_all_idle": "go"}, "choose 'wait' or 'follow_clock'"),
        ({"event_time": "at", "when_all_idle": "follow_clock", "idle_after": None}, "has no effect"),
        ({"idle_after": None}, "has idle_after and no event_time"),
    ]
    for options, message in wrong:
        with pytest.raises(ps.ConfigError, match=message):
            job.read(frame, uid="readings", **options)
    with pytest.raises(ps.ConfigError, match="drain=True needs available_now=True"):
        readings.job().start(drain=True)


def test_how_partitions_are_found_out(
    spark: SparkSession, readings: Readings, caplog: pytest.LogCaptureFixture
) -> None:
    """By the source's own column, as long as it is still that; otherwise there is one watermark for all of it, and that is said."""
    frame = readings.log.read(spark)

    def partition(of: DataFrame, by: str | None = None) -> tuple[tuple[str, ...] | None, bool]:
        time = checked_time(ps.EventTime("at", partition_by=by), of, "s")
        assert time is not None
        return time.partition, time.in_positions

    assert partition(frame.where("k <> 'x'").select("*", F.lit(1))) == (("partition",), True)
    assert partition(frame, by="k") == (("k",), False)
    assert partition(frame.drop("partition"), by="k") == (("k",), False)
    assert not caplog.messages
    for without in (frame.withColumn("partition", F.lit(1)), frame.drop("partition")):
        caplog.clear()
        assert partition(without) == ((), False)
        (said,) = caplog.messages
        assert said.startswith("source 's': its rows do not tell their partitions any more")
        assert "Keep the column partition until read()" in said
    assert partition(frame.union(frame)) == ((), False)


@pytest.mark.parametrize("columns", [(), ("p",), ("t", "p")])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_newest_times_are_those_of_the_rows(
    spark: SparkSession, columns: tuple[str, ...], kind: str, adaptive: bool
) -> None:
    """Noted on the way, also where rows are used twice, kept or counted, and in a pass of its own: without nulls and what is absurd."""
    rows = spark.sql(
        f"""select cast(id % 3 as int) as p, concat('t/', id % 2) as t, id,
        cast(case when id % 10 = 9 then null when id = 98 then timestamp'9999-01-01'
        else timestamp_micros({START_US} + id) end as {kind}) as at from range(100)"""
    )
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    now_us = START_US + 10 * SECOND_US
    settings = {"s": TimeSettings("at", 0, None, 100 * SECOND_US, columns, in_positions=True)}
    expected: dict[str, int] = {}
    for row in range(98):
        if row % 10 != 9:
            parts = [{"p": row % 3, "t": f"t/{row % 2}"}[column] for column in columns]
            expected[partition_name(parts) if parts else ALL_ROWS] = START_US + row
    names = {"s": tuple(expected)} if columns else {}
    for run in (
        lambda frame: frame.select("id").union(frame.select("id")),
        lambda frame: frame.groupBy("p").count().union(frame.persist().groupBy("id").count()),
        lambda frame: frame.repartition(3, "p").groupBy().count(),
    ):
        times = NewestTimes(settings, names, now_us)
        assert not times.needs_a_pass("s")
        ran = run(times.observed("s", rows, lambda _: F.lit(now_us + 100 * SECOND_US)))
        ran.collect()
        times.take(observed(spark, ran._jdf.queryExecution().observedMetrics()))
        assert times.found == {"s": expected}
    if columns:
        alone = NewestTimes(settings, {}, now_us)
        assert alone.needs_a_pass("s")
        alone.look_through("s", rows)
        assert alone.found == {"s": expected}
    spark.catalog.clearCache()
