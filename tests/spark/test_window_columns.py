"""Rows by key and stretch of time, and late rows, as Spark computes them for windows; Spark's own `window` is the judge."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.config import OnBadRecord
from penstock.errors import ConfigError
from penstock.graph import Graph, Source, TimeSettings, Transform, Union
from penstock.operators.bad_records import ROWS
from penstock.operators.event_time import OperatorClock
from penstock.operators.window.base import ABSURD, LATE
from penstock.operators.window.operator import Window
from penstock.operators.window.time import PANE
from penstock.spark.event_times import event_time_of, in_microseconds
from penstock.spark.operators.base import OperatorInput
from penstock.spark.operators.window import CompiledTimeWindow, compile_window
from penstock.windows import Windows

KEY = pa.schema([("shop", pa.string())])
AT = TimeSettings("at", 0, None, None)


def source(frame: DataFrame, event_time: TimeSettings | None = AT) -> Source:
    return Source("rows", frame, None, event_time)


def window_of(frame: DataFrame, windows: Windows, lateness_us: int = 0) -> CompiledTimeWindow:
    columns = {"n": F.count("*"), "total": F.sum("amount"), "mean": F.avg("amount")}
    node = Window("w", source(frame), ("shop",), windows, lateness_us, columns=columns)
    empty = frame.limit(0)
    given = OperatorInput(node, Graph(), lambda _: empty, empty, KEY, (), OnBadRecord.FAIL)
    compiled = compile_window(node, given)
    assert isinstance(compiled, CompiledTimeWindow)
    return compiled


@pytest.fixture(scope="module")
def payments(spark: SparkSession) -> DataFrame:
    """Times from 1969 to 1971 at odd microseconds, in both kinds of timestamp."""
    number = F.col("id") * F.lit(7_919_000_013) - F.lit(3_000_000_000_007)
    return spark.range(2_000).select(
        (F.col("id") % 7).cast("string").alias("shop"),
        F.timestamp_micros(number).alias("at"),
        (F.lit("1970-01-01").cast("timestamp_ntz") + F.make_dt_interval(secs=number / 1_000_000)).alias(
            "plain"
        ),
        (F.col("id") % 11).alias("amount"),
    )


@pytest.mark.parametrize("column", ["at", "plain"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_times_are_their_microseconds(
    spark: SparkSession, payments: DataFrame, column: str, zone: str
) -> None:
    """With a time zone and without, before 1970 and after, whatever the session's time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        time = event_time_of(source(payments), payments, uid="w", named=column)
        wrong = payments.withColumn("us", in_microseconds(time, payments)).where(
            (F.col("us") + 3_000_000_000_007) % 7_919_000_013 != 0
        )
        assert wrong.count() == 0
        assert payments.select(in_microseconds(time, payments)).distinct().count() == 2_000
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_panes_of_tumbling_windows_are_sparks_windows(payments: DataFrame) -> None:
    """Each row of the reduced batch is a window of Spark's `groupBy(window(...))`, with offset, also before 1970."""
    compiled = window_of(payments, ps.windows.tumbling("7h", offset="40min"))
    reduced = compiled.grouped(payments, lambda make: F.lit(make(OperatorClock())))
    got = reduced.select("shop", F.timestamp_micros(PANE), "__n_count", "__total_sum", ROWS)
    expected = payments.groupBy("shop", F.window("at", "7 hours", startTime="40 minutes")).agg(
        F.count("*").alias("n"), F.sum("amount").alias("total")
    )
    expected = expected.select("shop", "window.start", "n", "total", "n")
    assert sorted(map(tuple, got.collect())) == sorted(map(tuple, expected.collect()))


def test_late_and_absurd_rows_are_apart(spark: SparkSession) -> None:
    """They are counted by kind, take no part in any sum, and are given as they came; of a row without a key only the key counts."""
    second = 1_000_000
    rows = [
        ("a", 5, 1),
        ("a", 61, 2),
        ("a", 130, 1 << 62),
        ("a", 131, 1 << 62),
        ("b", None, 3),
        ("b", 10**9, 4),
        (None, 1, 5),
    ]
    at = [(key, None if t is None else dt.datetime.fromtimestamp(t, dt.UTC), v) for key, t, v in rows]
    frame = spark.createDataFrame(at, "shop string, at timestamp, amount long")
    compiled = window_of(frame, ps.windows.tumbling("1min"), lateness_us=30 * second)
    compiled = replace(compiled, time=replace(compiled.time, ahead_us=1000 * second))
    clock = OperatorClock(before_us=150 * second - 1)
    late = compiled.late_rows(frame, lambda make: F.lit(make(clock)))
    assert late.schema == frame.schema
    assert sorted(row.amount for row in late.collect()) == [1, 2, 3, 4]
    reduced = compiled.grouped(
        frame.where("amount < 9 and shop is not null"), lambda make: F.lit(make(clock))
    )
    got = {(row.shop, row[PANE]): (row[ROWS], row["__total_sum"]) for row in reduced.collect()}
    assert got == {("a", LATE): (2, None), ("b", ABSURD): (2, None)}


def test_which_column_has_the_time(payments: DataFrame) -> None:
    """It is inherited by name, may be named, and is refused where it is missing, no timestamp, or ambiguous."""
    stream = source(payments)
    same = Transform(stream, lambda frame: frame)
    assert event_time_of(same, payments, uid="w").column == "at"
    other = Union(stream, source(payments, TimeSettings("plain", 0, None, None)))
    assert event_time_of(other, payments, uid="w", named="plain").column == "plain"
    with pytest.raises(
        ConfigError, match="union: one stream has its event time in 'at', the other in 'plain'"
    ):
        event_time_of(other, payments, uid="w")
    with pytest.raises(
        ConfigError, match="operator 'w' needs the time of its rows, and no source of this stream has any"
    ):
        event_time_of(source(payments, None), payments, uid="w")
    with pytest.raises(ConfigError, match="which the stream before has in 'at', and there is no such column"):
        event_time_of(same, payments.drop("at"), uid="w")
    with pytest.raises(ConfigError, match="its event time 'amount' is a bigint, and has to be a timestamp"):
        event_time_of(same, payments, uid="w", named="amount")
    windows = Window("first", stream, ("shop",), ps.windows.tumbling("1min"), columns={"n": F.count("*")})
    results = payments.limit(0).select("shop", F.col("at").alias("window_end"))
    assert event_time_of(windows, results, uid="w").earlier_us == 1
    assert event_time_of(windows, results, uid="w", named="window_end").earlier_us == 1
