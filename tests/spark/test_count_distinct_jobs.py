"""`count_distinct` in a running job: Spark's own groupBy over the whole input is the judge."""

from __future__ import annotations

import sqlite3

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def with_columns_of_all_types(frame):
    """Rows with nulls, NaN and both zeros, and some without a key."""
    user = F.col("user")
    case = user % 5
    return frame.select(
        F.when(user % 11 != 0, F.col("app")).alias("app"),
        user,
        F.when(case == 0, float("nan"))
        .when(case == 1, -0.0)
        .when(case == 2, 0.0)
        .when(case == 4, user / 8)
        .alias("x"),
        (F.when(case < 3, user % 3) * 0.5).cast("float").alias("f"),
        F.when(user % 7 > 0, F.concat(F.lit("é"), (user % 9).cast("string"))).alias("s"),
        F.encode((user % 4).cast("string"), "utf-8").alias("raw"),
        F.date_add(F.lit("2026-01-01").cast("date"), (user % 6).cast("int")).alias("day"),
        (user % 8).cast("timestamp").alias("at"),
        (user % 12).cast("decimal(38,4)").alias("p"),
        (user % 2 == 0).alias("b"),
        F.array(user).alias("nested"),
    )


def aggregates():
    single = ("user", "x", "f", "s", "raw", "day", "at", "p", "b")
    return {
        **{f"n_{name}": F.count_distinct(name) for name in single},
        "rows": F.count("*"),
        "both": F.count_distinct("s", "x"),
        "many": F.count_distinct("user", "day", "b"),
        "text": F.expr("count(distinct user % 13)"),
        "total": F.sum("user"),
    }


def test_counts_are_those_of_one_group_by(spark, ledger):
    """Over several batches, a restart at another parallelism, and with rows without a key, counts equal those of all rows at once."""
    for fill, parallelism in ((150, 2), (90, 3)):
        ledger.fill(fill)
        job = ledger.job(parallelism=parallelism)
        clicks = job.read(with_columns_of_all_types(ledger.log.read(spark, rows_per_batch=200)), uid="clicks")
        counted = clicks.key_by("app").aggregate(**aggregates(), uid="counted")
        counted.write_to(ledger.sqlite(), uid="out")
        counted.bad_records().write_to(ledger.files("bad"), uid="bad-out")
        job.run(available_now=True)
        rows = with_columns_of_all_types(spark.createDataFrame(ledger.log.table().to_pandas()))
        columns = [column.alias(name) for name, column in aggregates().items()]
        truth = rows.where("app is not null").groupBy("app").agg(*columns).collect()
        with sqlite3.connect(ledger.root / "out.db") as database:
            assert sorted(database.execute("select * from views").fetchall()) == sorted(map(tuple, truth))
        assert len(ledger.rows("bad")) == rows.where("app is null").count()


def test_only_distinct_counts_and_other_policies(spark, ledger):
    """A job may have nothing but a distinct count, alone in its operator, and rows without a key are skipped or fail it."""
    ledger.fill(60)
    job = ledger.job(on_bad_record="skip")
    clicks = job.read(with_columns_of_all_types(ledger.log.read(spark)), uid="clicks")
    clicks.key_by("app").aggregate(n=F.count_distinct("user"), uid="users").write_to(
        ledger.sqlite(), uid="out"
    )
    ok = clicks.where("app is not null")
    ok.key_by("b").aggregate(n=F.count_distinct("s"), uid="texts", ttl="1h", on_bad_record="fail").write_to(
        ledger.sqlite("texts", "b"), uid="texts-out"
    )
    handle = job.start(available_now=True)
    handle.wait()
    rows = with_columns_of_all_types(spark.createDataFrame(ledger.log.table().to_pandas()))
    good = rows.where("app is not null")
    assert ledger.counts() == {
        row.app: row.n for row in good.groupBy("app").agg(F.count_distinct("user").alias("n")).collect()
    }
    assert ledger.counts("texts") == {
        row.b: row.n for row in good.groupBy("b").agg(F.count_distinct("s").alias("n")).collect()
    }
    assert handle.progress.bad_records == {"users": rows.where("app is null").count()}


def test_an_aggregate_is_not_asked_about_rows_that_are_not_its_own(spark, ledger):
    """Neither a row that stands for a value nor one that is skipped is computed: an aggregate may have an answer to null, or fail."""
    ledger.log.append(0, pa.table({"app": ["a", "a", "a", None], "user": pa.array([1, 2, 2, 0], pa.int64())}))
    user, zero = F.col("user"), F.lit(0)

    def fragile():
        return {
            "share": F.sum(F.lit(60) / F.coalesce(user, zero)),
            "half": F.sum(F.lit(60) / F.coalesce(user, zero) / 2),
            "large": F.sum(F.coalesce(user, F.lit(2**62))),
            "rows": F.count("*"),
        }

    job = ledger.job(on_bad_record="skip")
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    beside = {"n": F.count_distinct("user"), "m": F.count_distinct(F.lit(60) / user)}
    clicks.key_by("app").aggregate(**fragile(), **beside, uid="beside").write_to(
        ledger.files("beside"), uid="beside-out"
    )
    clicks.key_by("app").aggregate(**fragile(), uid="alone").write_to(ledger.files("alone"), uid="alone-out")
    job.run(available_now=True)
    truth = {"app": "a", "share": 120.0, "half": 60.0, "large": 5, "rows": 3}
    assert ledger.rows("beside") == [{**truth, "n": 2, "m": 2}]
    assert ledger.rows("alone") == [truth]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (lambda: F.count_distinct("nested"), r"distinct values of array<bigint> cannot be counted"),
        (lambda: F.count_distinct("user", F.struct("s")), r"distinct values of struct<s:string> cannot"),
        (lambda: F.count_distinct(F.collate("s", "UTF8_LCASE")), r"string collate UTF8_LCASE cannot"),
        (lambda: F.count_distinct("missing"), r"refused by Spark.*missing"),
    ],
)
def test_what_cannot_be_counted_exactly_is_refused(spark, ledger, column, reason):
    """Nested types and collations are refused by name before the start."""
    job = ledger.job()
    clicks = job.read(with_columns_of_all_types(ledger.log.read(spark)), uid="clicks")
    clicks.key_by("app").aggregate(n=column(), uid="counted").write_to(ledger.sqlite(), uid="out")
    with pytest.raises(ps.ConfigError, match=reason):
        job.start()


def test_a_count_of_distinct_values_is_not_a_count(spark, ledger):
    """To count something else under the same name is refused: what is stored is not what was asked for."""
    ledger.append(0, "a", 3)

    def job(column):
        made = ledger.job()
        clicks = made.read(ledger.log.read(spark), uid="clicks")
        clicks.key_by("app").aggregate(n=column, uid="counted").write_to(ledger.sqlite(), uid="out")
        return made

    job(F.count("user")).run(available_now=True)
    ledger.log.append(1, pa.table({"app": ["a"], "user": pa.array([1], pa.int64())}))
    with pytest.raises(ps.errors.IncompatibleStateError, match="counted"):
        job(F.count_distinct("user")).run(available_now=True)
