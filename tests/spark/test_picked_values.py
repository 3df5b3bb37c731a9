"""`max_by`, `min_by`, `first`, `last` and the extremes of nested values: Spark's own groupBy over rows in order is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import ConfigError
from penstock.spark.operators.aggregate_columns import describe

pytestmark = pytest.mark.spark


def hostile(frame: DataFrame) -> DataFrame:
    """Rows with nulls, NaN, both zeros, the ends of the calendar, maps, and structs and arrays of all these; some without a key."""
    user, case = F.col("user"), F.col("user") % 6
    x = F.when(case == 0, float("nan")).when(case == 1, -0.0).when(case == 2, 0.0).when(case == 4, user / 8)
    text = F.when(user % 7 > 0, F.concat(F.lit("é"), (user % 9).cast("string")))
    day = F.when(user % 5 == 0, F.lit("0001-01-01")).when(user % 5 == 1, "9999-12-31").otherwise("2026-01-01")
    at = F.when(user % 4 > 0, day.cast("timestamp"))
    return frame.select(
        F.when(user % 11 != 0, F.col("app")).alias("app"),
        user,
        x.alias("x"),
        text.alias("s"),
        at.alias("at"),
        F.when(user % 3 > 0, F.create_map(F.lit("x"), x, F.lit("s"), user / 2)).alias("m"),
        F.when(user % 8 > 0, F.struct(x.alias("x y"), F.array(text, text).alias("s"), at.alias("at"))).alias(
            "nested"
        ),
        F.when(user % 5 > 0, F.array(F.struct(x.alias("x"), F.lit(1).alias("one")))).alias("many"),
        F.array(F.lit(1), (user % 3).cast("int")).alias("whole"),
    )


def aggregates() -> dict[str, Any]:
    columns: dict[str, Any] = {"rows": F.count("*")}
    for name in ("user", "x", "s", "at", "m", "nested", "many", "whole"):
        columns[f"first_{name}"] = F.first(name)
        columns[f"last_{name}"] = F.last(name)
        columns[f"some_{name}"] = F.first(name, ignorenulls=True)
        columns[f"newest_{name}"] = F.expr(f"last_value({name}) ignore nulls")
        if name != "m":
            columns[f"max_by_{name}"] = F.max_by("user", name)
            columns[f"min_by_{name}"] = F.min_by("m", name)
            columns[f"max_{name}"] = F.max(name)
            columns[f"min_{name}"] = F.min(name)
    columns["best"] = F.max(F.struct(F.col("x") * 2, "user")).alias("ignored")
    return columns


def shown(frame: DataFrame) -> DataFrame:
    """Results as texts, which tell a null apart from anything else; the sign of a zero is not compared."""
    every = [
        F.to_json(F.struct(F.col(name).alias("v")), {"ignoreNullFields": "false"}) for name in aggregates()
    ]
    return frame.select(
        "app",
        *(
            F.regexp_replace(one, r"-0\.0", "0.0").alias(name)
            for one, name in zip(every, aggregates(), strict=True)
        ),
    )


def test_picked_values_are_those_of_one_group_by(spark: SparkSession, tmp_path: Path) -> None:
    """Over batches of any size, a restart at another parallelism, and with dead letters, results are those of rows in order."""
    ledger = Ledger(tmp_path, partitions=1)
    for fill, rows, parallelism in ((150, 64, 2), (21, 7, 3)):
        ledger.fill(fill)
        job = ledger.job(parallelism=parallelism)
        clicks = job.read(ledger.log.read(spark, rows_per_batch=rows), uid="clicks").transform(hostile)
        # a count of distinct values beside them lets Spark see rows more than once
        picked = clicks.key_by("app").aggregate(
            **aggregates(), distinct=F.count_distinct("user"), uid="picked"
        )
        picked.transform(shown).write_to(ledger.sqlite(), uid="out")
        picked.bad_records().write_to(ledger.files("bad"), uid="bad-out")
        job.run(available_now=True)
        every = hostile(spark.createDataFrame(ledger.log.table().to_pandas()).coalesce(1))
        columns = [column.alias(name) for name, column in aggregates().items()]
        truth = shown(every.where("app is not null").groupBy("app").agg(*columns))
        expected = {row["app"]: row.asDict() for row in truth.collect()}
        got = {row[0]: dict(zip(truth.columns, row, strict=True)) for row in ledger.rows_of("views")}
        assert got.keys() == expected.keys()
        for app, row in expected.items():
            assert {name: got[app][name] for name in row if got[app][name] != row[name]} == {
                name: value for name, value in row.items() if got[app][name] != value
            }
        assert len(ledger.rows("bad")) == every.where("app is null").count()


def test_state_of_picked_values_is_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    """A savepoint shows the values alone; one that is made of history lets a job go on as if it had seen the rows itself."""
    ledger = Ledger(tmp_path, partitions=1)

    def job(name: str) -> ps.Job:
        made = ps.Job(name, storage=tmp_path / f"{name}-store", checkpoint=ps.Checkpointing(interval="1ms"))
        picked = made.read(ledger.log.read(spark), uid="clicks").key_by("app")
        best = F.max_by(F.create_map("app", "user"), "user")
        last = picked.aggregate(last=F.last("user"), best=best, n=F.count_distinct("user"), uid="picked")
        last.write_to(ledger.files(name), uid="out")
        every = made.read(ledger.log.read(spark), uid="again").aggregate(
            rows=F.count("*"), newest=F.last("user"), users=F.count_distinct("user"), uid="every"
        )
        every.write_to(ledger.files(f"{name}-every"), uid="every-out")
        return made

    def state(path: Path) -> list[dict[str, Any]]:
        rows = ps.read_savepoint(spark, path).state("picked").collect()
        return sorted((row.asDict() for row in rows), key=lambda row: row["app"])

    ledger.append(0, "a", 3, user=5)
    ledger.append(0, "b", 1)
    one = job("one")
    one.run(available_now=True)
    handle = one.start()
    handle.stop(savepoint=tmp_path / "saved")
    expected = [
        {"app": "a", "last": 7, "best": {"a": 7}, "n": 3},
        {"app": "b", "last": 0, "best": {"b": 0}, "n": 1},
    ]
    assert state(tmp_path / "saved") == expected
    saved = ps.read_savepoint(spark, tmp_path / "saved")
    assert [row.asDict() for row in saved.state("every").collect()] == [{"rows": 4, "newest": 0, "users": 4}]
    assert sorted(row["users"] for row in saved.state("every", "users_values").collect()) == [0, 5, 6, 7]
    assert ledger.rows("one-every") == [{"rows": 4, "newest": 0, "users": 4}]
    past = spark.createDataFrame([("a", 5), ("a", 6), ("a", 7), ("b", 0)], "app string, user long").coalesce(
        1
    )
    ps.write_savepoint(
        tmp_path / "boot",
        job("two"),
        history={"picked": past, "every": past},
        positions=dict.fromkeys(("clicks", "again"), ledger.log.end_offsets()),
    )
    assert state(tmp_path / "boot") == expected
    ledger.append(0, "a", 2, user=1)
    job("two").run(available_now=True, savepoint=tmp_path / "boot")
    assert ledger.rows("two") == [{"app": "a", "last": 2, "best": [("a", 7)], "n": 5}]
    assert ledger.rows("two-every") == [{"rows": 6, "newest": 2, "users": 6}]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (lambda: F.expr("max_by(user, x, 2)"), "with 3 arguments"),
        (lambda: F.expr("first(user, rand() > 0)"), "neither a column nor true or false"),
        (lambda: F.max_by("user", "m"), "refused by Spark"),
        (lambda: F.first(F.col("s").cast("string collate UNICODE_CI")), "is not supported"),
        (lambda: F.max(F.struct(F.col("s").cast("string collate UNICODE_CI"))), "is not supported"),
    ],
)
def test_what_cannot_be_picked_is_refused(spark: SparkSession, column: Any, words: str) -> None:
    """Several rows of max_by, an order that Spark does not have, and collations, in which other values are equal, are refused by name."""
    frame = hostile(spark.createDataFrame([], "app string, user long"))
    with pytest.raises(ConfigError, match=words):
        describe("mine", column(), frame)
