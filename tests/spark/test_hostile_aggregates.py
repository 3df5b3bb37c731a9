"""Aggregates that Spark computes over hostile keys and values, in every mode, on every backend, with every policy for bad rows."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.state.ddl import arrow_schema

pytestmark = pytest.mark.spark

KEYS = ("k", "part")
WHOSE = (*KEYS, "window_start", "window_end")
COLUMNS = (
    "id long, k double, part struct<s:string,x:double>, at timestamp, x double, many array<float>, day date, exact decimal(38,18), "
    "m map<string,struct<x:double,n:array<map<string,double>>>>, deep array<struct<m:map<string,array<double>>>>"
)
SCHEMA = arrow_schema(COLUMNS)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ENDS = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC), None]
REALS = [math.nan, -0.0, 0.0, math.inf, 5e-324, None, 1.5]


def row(number: int) -> dict[str, Any]:
    """The parts of a row change at different paces, so that hostile values meet in many combinations."""
    real, other = REALS[number % 7], REALS[number // 7 % 7]
    return {
        "id": number,
        "k": None if number % 11 == 0 else [math.nan, -0.0, 0.0][number % 3],
        "part": {"s": ["", "\0", None][number // 3 % 3], "x": [-0.0, 0.0, None][number // 2 % 3]},
        "at": ENDS[number // 5 % 3] if number % 5 == 0 else START + dt.timedelta(minutes=number),
        "x": real,
        "many": None if number % 2 else [-0.0, None, math.nan],
        "day": [dt.date.min, dt.date.max, None][number % 3],
        "exact": Decimal(number - 30).scaleb(-18),
        "m": None if number % 4 == 0 else [("a", None), ("b", {"x": real, "n": [[("", other)], None]})],
        "deep": None if number % 6 == 0 else [{"m": [("\0", [real, None])]}, {"m": None}, None],
    }


def aggregates() -> dict[str, Any]:
    return {
        "n": F.count("*"),
        "ids": F.sum("id"),
        "total": F.sum("x"),
        "mean": F.avg("exact"),
        "most": F.max("x"),
        "last_day": F.max("day"),
        "newest": F.max_by("m", "id"),
        "kinds": F.count_distinct("x"),
    }


def shown(rows: DataFrame, *names: str) -> Counter[str]:
    """Results as texts; the sign of a zero is not compared."""
    text = F.to_json(F.struct(*names), {"ignoreNullFields": "false"})
    return Counter(one[0].replace("-0.0", "0.0") for one in rows.select(text).collect())


def as_they_came(rows: DataFrame) -> Counter[str]:
    """Rows as texts, down to the sign of a zero, but for their keys, of which -0.0 and 0.0 are one."""
    columns = [name for name in SCHEMA.names if name not in KEYS]
    return Counter(one[0] for one in rows.select(F.to_json(F.struct(*columns))).collect())


class Hostile:
    """A job over hostile rows, and Spark's own `groupBy` over the same rows."""

    def __init__(self, spark: SparkSession, root: Path, *, null_keys: bool) -> None:
        self.spark, self.ledger = spark, Ledger(root)
        self.log = ps.sources.PartitionedLog(root / "hostile", COLUMNS, 1)
        rows = [row(number) for number in range(60) if null_keys or number % 11]
        self.log.append(0, pa.Table.from_pylist(rows, SCHEMA))
        self.without_key = [one["id"] for one in rows if one["k"] is None]
        self.with_key = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)).where("k is not null")
        self.columns = [column.alias(name) for name, column in aggregates().items()]

    def keyed(self, job: ps.Job) -> ps.types.KeyedStream:
        frame = self.log.read(self.spark, rows_per_batch=35)
        return job.read(frame, uid="rows", event_time="at", out_of_order="10min").key_by(*KEYS)

    def found(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.ledger.root / name))

    def check_all(self) -> None:
        """The last result of each key is that of all its rows."""
        last = self.found("all").groupBy(*KEYS).agg(F.max_by(F.struct(*aggregates()), "n").alias("last"))
        expected = self.with_key.groupBy(*KEYS).agg(*self.columns)
        names = (*KEYS, *aggregates())
        assert shown(last.select(*KEYS, "last.*"), *names) == shown(expected, *names)

    def check_windows(self) -> None:
        """Each row is in a window or late, and both as Spark sees them."""
        late, results = self.found("late"), self.found("windows")
        is_late = F.col("id").isin([one["id"] for one in late.select("id").collect()])
        assert as_they_came(late) == as_they_came(self.with_key.where(is_late))
        assert self.with_key.where(~is_late & (F.col("at").isNull() | (F.year("at") == 9999))).count() == 0
        in_time = self.with_key.where(~is_late)
        counted = results.select(F.sum("n"), F.sum("ids")).first()
        assert counted == in_time.select(F.count("*"), F.sum("id")).first()
        windows = results.select(F.col("k").alias("w_k"), F.col("part").alias("w_part"), *WHOSE[2:])
        own = "k <=> w_k and part <=> w_part and at >= window_start and at < window_end"
        expected = in_time.join(windows, F.expr(own)).groupBy(*WHOSE).agg(*self.columns)
        assert shown(results, *WHOSE, *aggregates()) == shown(expected, *WHOSE, *aggregates())

    def check_letters(self, name: str) -> None:
        """Every row without a key is a dead letter, with the numbers that it had."""
        letters = sorted(
            (json.loads(one["row"]) for one in self.ledger.rows(name)), key=lambda one: one["id"]
        )
        assert [one["id"] for one in letters] == self.without_key
        for letter in letters:
            real = row(letter["id"])["x"]
            assert str(letter["x"]) == str(real)
            assert not letter["m"] or str(letter["m"][1][1]["x"]) == str(real)


@pytest.mark.parametrize(
    ("mode", "backend", "windows"),
    [
        (ps.EXACTLY_ONCE, "filesystem", ps.windows.session("90s")),
        (ps.AT_LEAST_ONCE, "memory", ps.windows.tumbling("30min")),
        (ps.AT_MOST_ONCE, "rocksdb", None),
    ],
    ids=[
        "exactly once, session, dead letters",
        "at least once, tumbling, skip",
        "at most once, no window, fail",
    ],
)
def test_aggregates_of_hostile_rows(
    spark: SparkSession, tmp_path: Path, mode: ps.Mode, backend: str, windows: Any
) -> None:
    """Results are those of Spark's own groupBy; late rows and dead letters are the rows as they came."""
    tolerant = windows is not None
    hostile = Hostile(spark, tmp_path, null_keys=tolerant)
    ledger, checkpoint = hostile.ledger, ps.Checkpointing(interval="1ms", mode=mode)
    job = ledger.job(backend=backend, checkpoint=checkpoint, on_bad_record="skip" if tolerant else "fail")
    keyed = hostile.keyed(job)
    if windows is None:
        keyed.aggregate(**aggregates(), uid="all").write_to(ledger.files("all"), uid="out")
    else:
        results = keyed.window(windows).aggregate(**aggregates(), uid="windows")
        results.write_to(ledger.files("windows"), uid="out")
        results.late().write_to(ledger.files("late"), uid="late-out")
        if mode is ps.EXACTLY_ONCE:
            results.bad_records().write_to(ledger.files("bad"), uid="bad-out")
    handle = job.start(available_now=True, drain=True)
    handle.wait()

    if windows is None:
        hostile.check_all()
        return
    hostile.check_windows()
    assert handle.progress.bad_records == {"windows": len(hostile.without_key)}
    if mode is ps.EXACTLY_ONCE:
        hostile.check_letters("bad")
