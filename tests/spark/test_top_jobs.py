"""`top` in a running job: Spark's own row_number() over the whole input is the judge."""

from __future__ import annotations

import math
import sqlite3

import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark

FIRST = """
select app, product, sold, at, day, rank from (
  select *, row_number() over (partition by app order by sold desc, at) as rank from sales where app is not null
) where rank <= 3
"""
FIRST_PRODUCTS = """
select app, product, sold, at, day, rank from (
  select *, row_number() over (partition by app order by sold desc, day, product) as rank from (
    select *, row_number() over (partition by app, product order by at desc) as age from sales where app is not null
  ) where age = 1
) where rank <= 4
"""


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def sales(frame):
    """Numbers that rise and fall, with nulls and NaN, and some rows without a key."""
    at = F.col("offset") * 2 + F.col("partition")
    return frame.select(
        F.when(at % 13 != 0, F.col("app")).alias("app"),
        F.concat(F.lit("é"), (F.col("user") % 9).cast("string")).alias("product"),
        F.when(at % 17 == 0, None)
        .when(at % 19 == 0, float("nan"))
        .otherwise(at * 37 % 101 / 4)
        .alias("sold"),
        at.alias("at"),
        F.date_add(F.lit("2026-01-01").cast("date"), (at % 6).cast("int")).alias("day"),
    )


def stored(ledger, table):
    with sqlite3.connect(ledger.root / "out.db") as database:
        return sorted(database.execute(f"select * from {table}").fetchall(), key=repr)


def judged(spark, query):
    rows = spark.sql(query).withColumn("day", F.col("day").cast("string")).collect()
    return sorted(
        (
            tuple(None if isinstance(value, float) and math.isnan(value) else value for value in row)
            for row in rows
        ),
        key=repr,
    )


def test_the_first_rows_are_those_of_row_number(spark, ledger):
    """Over several batches and a restart at another parallelism the table has what row_number() says about the whole input."""
    for fill, parallelism in ((150, 2), (90, 3)):
        ledger.fill(fill, apps=3)
        job = ledger.job(parallelism=parallelism)
        sold = job.read(sales(ledger.log.read(spark, rows_per_batch=200)), uid="sales")
        first = sold.key_by("app").top(3, by=("sold desc", "at"), uid="first")
        products = sold.key_by("app").top(
            4, by=("sold desc", "day"), of="product", order_by="at", uid="products", on_bad_record="skip"
        )
        for name, stream in (("first", first), ("products", products)):
            sink = ps.sinks.SQLite(ledger.root / "out.db", table=name, mode="upsert", key=["app", "rank"])
            stream.write_to(sink, uid=f"{name}-out")
        first.bad_records().write_to(ledger.files("bad"), uid="bad-out")
        job.run(available_now=True)
        rows = sales(spark.createDataFrame(ledger.log.table().to_pandas()))
        rows.createOrReplaceTempView("sales")
        assert stored(ledger, "first") == judged(spark, FIRST)
        assert stored(ledger, "products") == judged(spark, FIRST_PRODUCTS)
        assert len(ledger.rows("bad")) == rows.where("app is null").count()


@pytest.mark.parametrize(
    ("column", "arguments", "reason"),
    [
        ("1 as one", {"by": "missing"}, "by names missing; there are app, user, one"),
        ("1 as one", {"by": "user", "of": "nothing"}, "of names nothing"),
        (
            "array(user) as list",
            {"by": "list desc"},
            r"list, an array<bigint>, which top\(\) cannot put in order",
        ),
        (
            "collate(app, 'UTF8_LCASE') as low",
            {"by": "user", "of": "low"},
            "low, a string collate UTF8_LCASE",
        ),
        ("1 as rank", {"by": "user"}, r"a column 'rank', and top\(\) adds one of this name"),
    ],
)
def test_what_cannot_be_ordered_is_refused(spark, ledger, column, arguments, reason):
    """Columns that are not there or have no order are refused by name before the start."""
    job = ledger.job()
    rows = job.read(ledger.log.read(spark).selectExpr("app", "user", column), uid="clicks")
    rows.key_by("app").top(3, **arguments, uid="best").write_to(ledger.files(), uid="out")
    with pytest.raises(ps.ConfigError, match=reason):
        job.start()


def test_another_order_needs_another_uid(spark, ledger):
    """Rows that were dropped cannot come back: a checkpoint with the first rows in another order is refused."""
    ledger.append(0, "a", 5)

    def job(n, by):
        made = ledger.job()
        clicks = made.read(ledger.log.read(spark), uid="clicks")
        clicks.key_by("app").top(n, by=by, uid="best").write_to(ledger.files(), uid="out")
        return made

    job(2, "user desc").run(available_now=True)
    for n, by in ((3, "user desc"), (2, "user")):
        with pytest.raises(ps.errors.IncompatibleStateError, match=r"(?s)'best'.*top . by user"):
            job(n, by).run(available_now=True)
