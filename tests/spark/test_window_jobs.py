"""Windows in running jobs, with Spark's own `window` and `session_window` over the whole input as the judge."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from services.patience import wait_for

pytestmark = pytest.mark.spark

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COLUMNS = "shop string, at timestamp, amount long, price decimal(8,2)"


class Payments:
    """A log of payments, with times that mostly rise."""

    def __init__(self, spark: SparkSession, root: Path, partitions: int = 2) -> None:
        self.spark = spark
        self.ledger = Ledger(root)
        self.log = ps.sources.PartitionedLog(root / "payments", COLUMNS, partitions)
        self._random = random.Random(7)
        self._second = 0.0

    def add(self, rows: int) -> None:
        for partition in (0, 1):
            given = [self._row() for _ in range(rows)]
            columns = list(zip(*given, strict=True))
            types = [pa.string(), pa.timestamp("us", "UTC"), pa.int64(), pa.decimal128(8, 2)]
            names = ["shop", "at", "amount", "price"]
            arrays = [pa.array(c, kind) for c, kind in zip(columns, types, strict=True)]
            self.log.append(partition, pa.table(arrays, names=names))

    def add_at(self, *seconds: float | None, shop: str = "a") -> None:
        """Rows of one shop at these times."""
        at = [None if one is None else START + dt.timedelta(seconds=one) for one in seconds]
        rows = {"shop": [shop] * len(at), "at": pa.array(at, pa.timestamp("us", "UTC"))}
        amounts = pa.array(range(len(at)), pa.int64())
        nothing = pa.nulls(len(at), pa.decimal128(8, 2))
        self.log.append(0, pa.table({**rows, "amount": amounts, "price": nothing}))

    def _row(self) -> tuple[Any, ...]:
        self._second += self._random.random() * 3
        at = START + dt.timedelta(seconds=self._second - self._random.random() * 20)
        amount = self._random.choice([None, *range(50)])
        return self._random.choice("abcde"), at, amount, None if amount is None else amount * 2

    def read(self, job: ps.Job, rows_per_batch: int | None = None, **time: Any) -> ps.types.Stream:
        frame = self.log.read(self.spark, rows_per_batch=rows_per_batch)
        return job.read(frame, uid="payments", event_time="at", **{"max_ahead": None, **time})

    def everything(self) -> DataFrame:
        """All rows, as a plain DataFrame."""
        rows = self.log.table().select(["shop", "at", "amount", "price"]).to_pylist()
        return self.spark.createDataFrame([tuple(row.values()) for row in rows], COLUMNS)


def aggregates() -> dict[str, Any]:
    return {
        "n": F.count("*"),
        "known": F.count("amount"),
        "total": F.sum("amount"),
        "least": F.min("at"),
        "most": F.max("amount"),
        "mean": F.avg("amount"),
        "paid": F.sum("price"),
        "dear": F.count_if(F.col("amount") > 25),
        "opened": F.first("amount"),
        "closed": F.last("amount", ignorenulls=True),
        "dearest": F.max_by("at", "amount"),
        "cheapest": F.min_by("at", "amount"),
    }


def counted() -> dict[str, Any]:
    """Counts of distinct values, among them NaN and a zero of either sign."""
    case = F.col("amount") % 3
    ratio = F.when(case == 0, float("nan")).when(case == 1, -0.0).otherwise(0.0)
    return {
        "kinds": F.count_distinct("amount"),
        "pairs": F.count_distinct("shop", "price"),
        "ratios": F.count_distinct(ratio),
        "mixed": F.count_distinct(ratio, F.encode("shop", "utf-8"), F.date_trunc("minute", "at")),
    }


def one_of_each() -> dict[str, Any]:
    """An aggregate of each kind: enough where only the windows are of another form."""
    every = aggregates() | counted()
    return {
        name: every[name] for name in ("n", "mean", "paid", "closed", "dearest", "kinds", "pairs", "ratios")
    }


def judged() -> dict[str, Any]:
    """The same as Spark says it, with rows in the order of their times, and the last of those that are equal."""
    known, at = F.col("amount").isNotNull(), F.col("at")
    return aggregates() | {
        "opened": F.min_by("amount", "at"),
        "closed": F.max_by("amount", F.when(known, at)),
        "dearest": F.max_by("at", F.when(known, F.struct("amount", "at"))),
        "cheapest": F.min_by("at", F.when(known, F.struct("amount", -F.unix_micros("at")))),
    }


class Listed(ps.WindowProcess):
    def process(
        self, key: str, window: ps.types.TimeWindow | None, rows: ps.types.Rows, ctx: ps.types.Context
    ) -> Iterator[Any]:
        assert window is not None
        assert all(window.start <= row.at < window.end for row in rows)
        assert [row.at for row in rows] == sorted(row.at for row in rows)
        yield key, window.start, window.end, len(rows), sum(row.amount or 0 for row in rows)


LISTED = "shop string, window_start timestamp, window_end timestamp, n long, total long"


@pytest.fixture
def payments(spark: SparkSession, tmp_path: Path) -> Payments:
    return Payments(spark, tmp_path)


KINDS: dict[str, tuple[Any, Callable[..., Column], tuple[str | None, ...]]] = {
    "tumbling": (ps.windows.tumbling("1min", offset="7s"), F.window, ("1 minute", None, "7 seconds")),
    "sliding": (ps.windows.sliding("50s", "20s"), F.window, ("50 seconds", "20 seconds")),
    "session": (ps.windows.session("4s"), F.session_window, ("4 seconds",)),
}
"""Ours, and Spark's own."""


def build(payments: Payments, name: str) -> ps.Job:
    """Windows of one kind over one stream, in every form, and windows of ten rows."""
    job = payments.ledger.job(parallelism=2)
    rows = payments.read(job, rows_per_batch=120, out_of_order="30s")
    by_shop = rows.key_by("shop")
    windows = KINDS[name][0]
    found = by_shop.window(windows).aggregate(uid="found", **aggregates(), **counted())
    found.write_to(payments.ledger.files("found"), uid="found-out")
    code = by_shop.window(windows).process(Listed(), schema=LISTED, uid="code", order_by="at")
    code.write_to(payments.ledger.files("code"), uid="code-out")
    everything = rows.window(windows).aggregate(uid="all", **one_of_each())
    everything.write_to(payments.ledger.files("all"), uid="all-out")
    tens = by_shop.window(ps.windows.count(10)).aggregate(
        uid="tens", **one_of_each(), known=F.count("amount")
    )
    tens.write_to(payments.ledger.files("tens"), uid="tens-out")
    return job


def summed_by_spark(
    every: DataFrame, keys: list[str], window: Column, names: Iterable[str]
) -> list[tuple[Any, ...]]:
    """What Spark says about the rows of each window.

    It finds the windows first, then their rows: asked for both at once, it counts some distinct values of a `session_window` twice, and gets 3
    where there are but NaN and 0.0.
    """
    windows = every.groupBy(*keys, window.alias("w")).count().select(*keys, "w.start", "w.end")
    own = windows.select(*(F.col(key).alias(f"of_{key}") for key in keys), "start", "end")
    within = (F.col("at") >= F.col("start")) & (F.col("at") < F.col("end"))
    for key in keys:
        within &= F.col(key) == F.col(f"of_{key}")
    columns = judged() | counted()
    found = every.join(own, within).groupBy(*keys, "start", "end")
    summed = found.agg(*(columns[name].alias(name) for name in names))
    return [tuple(row) for row in summed.collect()]


@pytest.mark.parametrize("name", KINDS)
def test_windows_are_sparks_own(payments: Payments, name: str) -> None:
    """Over batches, a restart and the end of the input each window has one result, that of Spark over everything."""
    payments.add(90)
    build(payments, name).run(available_now=True)
    payments.add(50)
    build(payments, name).run(available_now=True, drain=True)
    every = payments.everything()
    _, judge, times = KINDS[name]
    window = judge("at", *times)
    rows = summed_by_spark(every, ["shop"], window, aggregates() | counted())
    assert_same(payments.ledger.rows("found"), rows)
    assert_same(payments.ledger.rows("all"), summed_by_spark(every, [], window, one_of_each()))
    listed = [(row[0], row[1], row[2], row[3], row[5] or 0) for row in rows]
    assert_same(payments.ledger.rows("code"), listed)
    tens = payments.ledger.rows("tens")
    assert {row["n"] for row in tens} == {10}
    assert all(row["kinds"] == row["pairs"] <= row["known"] for row in tens)  # a price is an amount doubled
    assert {row["ratios"] for row in tens} <= {1, 2}
    assert any(row["kinds"] > 1 for row in tens)
    counts = every.groupBy("shop").count().collect()
    assert len(tens) == sum(row["count"] // 10 for row in counts)


LATE: dict[str, tuple[Any, list[tuple[float, float, int]], list[float]]] = {
    "tumbling": (
        ps.windows.tumbling("10s"),
        [(0, 10, 2), (0, 10, 4), (10, 20, 2), (20, 30, 1), (30, 40, 1)],
        [-1, 8, 9.5],
    ),
    "session": (
        ps.windows.session("3s"),
        [(1, 5, 2), (8, 16.5, 5), (9, 16.5, 3), (21, 24, 1), (30, 33, 1)],
        [-1, 3],
    ),
}
"""Windows, their results, and what is late for them; -1 stands for a row without a time."""


def late_job(payments: Payments, name: str) -> ps.Job:
    """The same windows in all forms, with five seconds of lateness, and what comes too late for each."""
    job = payments.ledger.job(parallelism=2)
    every = payments.read(job, out_of_order="0s")
    rows = every.key_by("shop")
    plan = rows.window(LATE[name][0], lateness="5s")
    counted = plan.aggregate(uid="counted", n=F.count("*"), times=F.count_distinct("at"))
    code = plan.process(Listed(), schema=LISTED, uid="code", order_by="at")
    whole = every.window(LATE[name][0], lateness="5s").aggregate(
        uid="all", n=F.count("*"), times=F.count_distinct("at")
    )
    for uid, stream in (("counted", counted), ("code", code), ("all", whole)):
        stream.write_to(payments.ledger.files(uid), uid=f"{uid}-out")
        stream.late().write_to(payments.ledger.files(f"{uid}-late"), uid=f"{uid}-late-out")
    return job


def seconds(row: dict[str, Any]) -> tuple[float, float, int]:
    start, end = ((row[name] - START).total_seconds() for name in ("window_start", "window_end"))
    return start, end, row["n"]


@pytest.mark.parametrize("name", LATE)
def test_late_rows_update_or_come_out(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Within the lateness a window has another result; behind it the row comes out as it came, and is counted."""
    payments = Payments(spark, tmp_path, partitions=1)
    payments.add_at(1, 2, 12, 13.5)
    late_job(payments, name).run(available_now=True)
    payments.add_at(9, 3, None, 21)  # the window of 9 and 3 is over, but awaited; the session of 3 is not
    late_job(payments, name).run(available_now=True)
    payments.add_at(8, 9.5, 30)  # alone 8 would be late, but it touches a session that is awaited
    handle = late_job(payments, name).start(available_now=True, drain=True)
    handle.wait()
    _, results, late = LATE[name]
    for uid in ("counted", "code", "all"):
        assert sorted(map(seconds, payments.ledger.rows(uid))) == results
        came_late = [row["at"] for row in payments.ledger.rows(f"{uid}-late")]
        assert sorted(-1 if at is None else (at - START).total_seconds() for at in came_late) == late
    for uid in ("counted", "all"):
        assert all(row["times"] == row["n"] for row in payments.ledger.rows(uid))
    assert handle.progress.late_rows == dict.fromkeys(("counted", "code", "all"), len(late))


def test_early_results_come_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """An open window gives a result some time after it has changed, although no data comes; then none, until it changes or closes."""
    payments = Payments(spark, tmp_path, partitions=1)
    job = payments.ledger.job(parallelism=2)
    rows = payments.read(job, out_of_order="0s", idle_after=None).key_by("shop")
    counted = rows.window(ps.windows.tumbling("1h"), early="500ms").aggregate(uid="counted", n=F.count("*"))
    counted.write_to(payments.ledger.files("counted"), uid="out")
    payments.add_at(1, 2)

    def results() -> list[int]:
        return [row["n"] for row in payments.ledger.rows("counted")]

    handle = job.start()
    try:
        wait_for(lambda: results() == [2])
        payments.add_at(3, 4, 5)
        wait_for(lambda: results() == [2, 5])
        batches = handle.progress.batches
        time.sleep(1.5)
        assert handle.progress.batches == batches  # nothing waits
    finally:
        handle.stop()
    assert sorted(map(seconds, payments.ledger.rows("counted"))) == [(0, 3600, 2), (0, 3600, 5)]


def test_windows_of_windows_and_the_first_of_each(payments: Payments) -> None:
    """The result of a window has the time of its last moment, so a chain of windows loses nothing; `top` ranks within a window."""
    payments.add(80)
    job = payments.ledger.job(parallelism=2)
    rows = payments.read(job, rows_per_batch=60, out_of_order="30s")
    short = rows.key_by("shop").window(ps.windows.tumbling("10s")).aggregate(uid="short", n=F.count("*"))
    total = short.transform(lambda frame: frame.withColumn("all", F.lit("all"))).key_by("all")
    long = total.window(ps.windows.tumbling("1min")).aggregate(uid="long", n=F.sum("n"), windows=F.count("*"))
    long.write_to(payments.ledger.files("long"), uid="long-out")
    best = short.key_by("window_end").top(2, by=["n desc", "shop"], uid="best")
    best.write_to(payments.ledger.files("best"), uid="best-out")
    job.run(available_now=True, drain=True)
    every = payments.everything()
    counts = every.groupBy("shop", F.window("at", "10 seconds").alias("w")).agg(F.count("*").alias("n"))
    expected = counts.groupBy(F.window("w.start", "1 minute").alias("m")).agg(
        F.sum("n").alias("n"), F.count("*").alias("windows")
    )
    assert_same(
        payments.ledger.rows("long"),
        [("all", *row) for row in expected.select("m.start", "m.end", "n", "windows").collect()],
    )
    newest = {
        (row["window_end"], row["rank"]): (row["shop"], row["n"]) for row in payments.ledger.rows("best")
    }
    ranked: dict[Any, list[tuple[int, str]]] = {}
    for row in counts.select("shop", "w.end", "n").collect():
        ranked.setdefault(row["end"].timestamp(), []).append((-row["n"], row["shop"]))
    first = {
        (end, rank): (shop, -n)
        for end, found in ranked.items()
        for rank, (n, shop) in enumerate(sorted(found)[:2], 1)
    }
    assert {(end.timestamp(), rank): value for (end, rank), value in newest.items()} == first


def assert_same(got: list[dict[str, Any]], expected: list[tuple[Any, ...]]) -> None:
    assert sorted(map(_plain, (tuple(row.values()) for row in got))) == sorted(map(_plain, expected))


def _plain(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Moments as seconds, since Spark gives them without a time zone."""
    return tuple(str(value.timestamp()) if isinstance(value, dt.datetime) else str(value) for value in row)
