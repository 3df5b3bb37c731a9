"""What Penstock reads out of PySpark's aggregate columns, and that merged batches equal Spark's own groupBy."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import AggregateColumn, Kind, output_schema, state_schema
from penstock.operators.aggregate.merge import finish, merge
from penstock.spark.operators.aggregate_columns import SUPPORTED, describe, partials
from penstock.spark.versions import arrow_schema

pytestmark = pytest.mark.spark

SCHEMA = (
    "k int, i int, l long, small byte, f float, d double, p decimal(10,2), wide decimal(38,20), deep decimal(38,38), "
    "s string, raw binary, b boolean, day date, at timestamp, local timestamp_ntz"
)
EXACT = Context(prec=60)  # Python's own 28 digits are fewer than Spark's 38
BATCHES = 5
KEYS = 6


def aggregates() -> dict[str, Column]:
    columns: dict[str, Column] = {
        "rows": F.count("*"),
        "filled": F.count("d"),
        "pairs": F.call_function("count", F.col("i"), F.col("d")),
        "big": F.count_if(F.col("i") > 0),
        "twice": F.sum(F.col("i") * 2).alias("ignored"),
        "texted": F.expr("sum(l)"),
        "texted_avg": F.expr("avg(p + 1) as ignored"),
        "text_avg": F.avg(F.col("i").cast("string")),
        "every": F.every("b"),
        "some": F.some("b"),
        "any_": F.call_function("any", F.col("b")),
        "band": F.bool_and("b"),
        "bor": F.bool_or("b"),
    }
    for name in ("i", "l", "small", "f", "d", "p", "wide", "deep"):
        columns[f"sum_{name}"] = F.sum(name)
        columns[f"avg_{name}"] = F.avg(name)
    for name in ("i", "l", "small"):
        for function in (F.bit_and, F.bit_or, F.bit_xor):
            columns[f"{function.__name__}_{name}"] = function(name)
    for field in SCHEMA.split(", ")[1:]:
        name = field.split()[0]
        columns[f"min_{name}"] = F.min(name)
        columns[f"max_{name}"] = F.max(name)
    return columns


def random_rows(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Rows with nulls everywhere; key 0 has nothing but nulls, key 1 nothing but NaN."""
    rng = random.Random(seed)

    def row() -> tuple[Any, ...]:
        key = rng.randrange(KEYS)
        floating = float("nan") if key == 1 or rng.random() < 0.05 else rng.uniform(-1e3, 1e3)
        moment = dt.datetime(2020, 1, 1) + dt.timedelta(microseconds=rng.randrange(10**14))  # noqa: DTZ001
        values = (
            rng.randrange(-(2**30), 2**30),
            rng.randrange(-(2**50), 2**50),
            rng.randrange(-128, 128),
            floating,
            floating,
            EXACT.scaleb(rng.randrange(-(10**10) + 1, 10**10), -2),
            EXACT.scaleb(rng.randrange(-(10**24), 10**24), -20),
            EXACT.scaleb(rng.randrange(-(10**35), 10**35), -38),
            rng.choice(["", "a", "ab", "é", "z", "𐍈", "\uffff"]),
            rng.randbytes(rng.randrange(3)),
            rng.random() < 0.5,
            moment.date(),
            moment.replace(tzinfo=dt.UTC),
            moment,
        )
        return (key, *(None if key == 0 or rng.random() < 0.2 else value for value in values))

    return [row() for _ in range(count)]


def keyed_table(frame: DataFrame) -> pa.Table:
    return frame.toArrow().sort_by("k")


def close(mine: float | None, theirs: float | None) -> bool:
    """Equal but for the order of additions; null is only like null, NaN only like NaN."""
    if mine is None or theirs is None:
        return mine is theirs
    return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(mine) and math.isnan(theirs))


def run_batches(frame: DataFrame, columns: dict[str, Column]) -> tuple[list[AggregateColumn], pa.RecordBatch]:
    """Aggregate each fifth of the rows in Spark and merge the partials, key by key, into one state."""
    specs = [describe(name, column, frame) for name, column in columns.items()]
    wanted = [
        part
        for spec, column in zip(specs, columns.values(), strict=True)
        for part in partials(spec, column, frame)
    ]
    schema = state_schema(specs)
    state = pa.RecordBatch.from_pylist([{}] * KEYS, schema=schema)
    seen = np.zeros(KEYS, dtype=bool)
    for number in range(BATCHES):
        grouped = keyed_table(frame.where(F.col("n") % BATCHES == number).groupBy("k").agg(*wanted))
        new = grouped.combine_chunks().to_batches()[0]
        keys = new.column("k").to_numpy()
        merged = merge(specs, state.take(pa.array(keys)), seen[keys], new)
        rows = pa.array([int(np.flatnonzero(keys == k)[0]) + KEYS if k in keys else k for k in range(KEYS)])
        state = pa.Table.from_batches([state, merged]).take(rows).combine_chunks().to_batches()[0]
        seen[keys] = True
    assert seen.all()
    return specs, finish(specs, state)


@pytest.mark.parametrize("seed", [1, 2])
def test_merged_batches_equal_one_group_by(spark: SparkSession, seed: int) -> None:
    """Five merged batches give what one groupBy over everything gives: same values, same types."""
    rows = [(*row, n) for n, row in enumerate(random_rows(seed, 400))]
    frame = spark.createDataFrame(rows, SCHEMA + ", n long").coalesce(1).cache()
    columns = aggregates()
    specs, merged = run_batches(frame, columns)
    whole = frame.groupBy("k").agg(*[column.alias(name) for name, column in columns.items()]).orderBy("k")
    expected = keyed_table(whole).drop_columns("k")
    types = arrow_schema(whole.drop("k").schema)
    assert output_schema(specs).types == types.types
    for name in columns:
        mine, theirs = merged.column(name).to_pylist(), expected.column(name).to_pylist()
        if pa.types.is_float64(merged.schema.field(name).type):
            assert all(map(close, mine, theirs)), (name, seed, mine, theirs)
        else:
            assert str(mine) == str(theirs), (name, seed)


@pytest.fixture
def ansi_off(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.usefixtures("ansi_off")
def test_overflow_without_ansi_is_that_of_group_by(spark: SparkSession) -> None:
    """Without ANSI mode sums wrap or are null, and text that is no number is skipped, wherever the batches are cut."""
    huge, near = 9 * 10**37, 9 * 10**36
    amounts: list[list[int | None]] = [
        [huge, huge, huge, 1, None],  # overflows from batch to batch
        [huge, 5, 7, None, None, huge],  # inside the first batch
        [5, 7, huge, 1, 1, None, None, huge],  # inside a later one
        [1, 2, None, 4, 5],
        [None, None, None, None, None],
        [near, None, None, None, None],  # the sum fits, the average does not
    ]
    rows = [
        (k, Decimal(v) if v else None, (v and min(v, 2**62)), str(v or "none"), n)
        for k, values in enumerate(amounts)
        for n, v in enumerate(values)
    ]
    frame = (
        spark.createDataFrame(rows, "k int, w decimal(38,0), l long, s string, n long").coalesce(1).cache()
    )
    columns = {
        "sum_w": F.sum("w"),
        "avg_w": F.avg("w"),
        "sum_l": F.sum("l"),
        "sum_s": F.sum("s"),
        "avg_s": F.avg("s"),
    }
    _, merged = run_batches(frame, columns)
    whole = keyed_table(frame.groupBy("k").agg(*[column.alias(name) for name, column in columns.items()]))
    assert whole["sum_w"].null_count == 4
    assert min(whole["sum_l"].drop_null().to_pylist()) < 0
    assert merged.to_pylist() == whole.drop_columns("k").to_pylist()


@pytest.mark.usefixtures("ansi_off")
@pytest.mark.parametrize(
    ("written", "ansi"), [("true", True), ("TRUE", True), (" True ", True), ("False", False)]
)
def test_ansi_is_read_as_spark_reads_it(spark: SparkSession, written: str, ansi: bool) -> None:
    """A setting may be written in any case, also with SQL."""
    spark.sql(f"SET spark.sql.ansi.enabled={written}")
    assert describe("n", F.sum("id"), spark.range(1)).ansi is ansi


def test_kinds_and_state_columns(spark: SparkSession) -> None:
    """An aggregate keeps itself, an average a sum and a count, under names that depend only on its own name."""
    frame = spark.createDataFrame([], SCHEMA)
    spec = describe("mean", F.mean("p"), frame)
    assert spec.kind is Kind.AVG
    assert [(p.name, p.rule, p.type) for p in spec.partials] == [
        ("__mean_sum", Kind.SUM, pa.decimal128(20, 2)),
        ("__mean_count", Kind.COUNT, pa.int64()),
    ]
    assert spec.output == pa.decimal128(14, 6)
    assert [p.name for p in describe("all", F.sum("p"), frame).partials] == ["__all_sum", "__all_count"]
    assert describe("pv", F.count("*"), frame).partials[0].name == "__pv_count"
    assert describe("m", F.avg("l"), frame).partials[0].type == pa.float64()


def test_rows_that_do_not_count_add_nothing(spark: SparkSession) -> None:
    """Beside rows that do not count, each aggregate is that of the others alone, of the same type; what would fail is not computed."""
    rows = [(*row, n) for n, row in enumerate(random_rows(3, 60))]
    frame = spark.createDataFrame(rows, SCHEMA + ", n long").coalesce(1)
    counts = F.col("n") % 2 == 0
    columns = {
        **aggregates(),
        "starred": F.count(frame["*"]),
        "failing": F.sum(F.lit(60) / F.coalesce(F.when(counts, F.lit(2)), F.lit(0))),
        "raising": F.avg(F.when(counts, 1).otherwise(F.raise_error(F.lit("computed")).cast("int"))),
        "texts": F.avg(F.when(counts, "7").otherwise("no number")),
        "constant": F.count(F.lit(1)),
    }
    specs = [describe(name, column, frame) for name, column in columns.items()]

    def taken(only: Column | None) -> list[Column]:
        return [part for spec in specs for part in partials(spec, columns[spec.name], frame, only)]

    alone = frame.where(counts).groupBy("k").agg(*taken(None))
    beside = frame.groupBy("k").agg(*taken(counts))
    assert [one.dataType for one in beside.schema] == [one.dataType for one in alone.schema]
    assert str(keyed_table(beside).to_pylist()) == str(keyed_table(alone).to_pylist())


def test_streams_can_be_described(spark: SparkSession) -> None:
    """A streaming DataFrame is described without being started."""
    stream = spark.readStream.format("rate").load()
    assert describe("top", F.max("timestamp"), stream).output == pa.timestamp("us", tz="UTC")


REFUSED = {
    "distinct_star": (lambda: F.expr("count(distinct *)"), r"count\(DISTINCT \*\), which names no columns"),
    "part_star": (lambda: F.count("i.*"), r"has a \* for columns in count"),
    "more_than_star": (lambda: F.expr("count(*, i)"), r"has a \* for columns in count"),
    "sum_star": (lambda: F.sum("*"), r"has a \* for columns in sum"),
    "sum_distinct": (lambda: F.sum_distinct("i"), r"sum\(DISTINCT"),
    "avg_distinct": (lambda: F.expr("avg(distinct i)"), r"avg\(DISTINCT"),
    "approx": (
        lambda: F.approx_count_distinct("i"),
        r"approx_count_distinct.*count_distinct\(\.\.\.\) is exact",
    ),
    "collect": (lambda: F.collect_list("i"), "collect_list"),
    "stddev": (lambda: F.stddev("i"), "stddev"),
    "median": (lambda: F.median("i"), "median"),
    "try_sum": (lambda: F.try_sum("i"), "try_sum"),
    "arithmetic": (lambda: F.sum("i") + 1, r"expression with '\+'"),
    "arithmetic_text": (lambda: F.expr("sum(i) + 1"), r"expression 'sum\(i\) \+ 1'"),
    "cast": (lambda: F.sum("i").cast("double"), "a cast of a result"),
    "plain": (lambda: F.col("i"), "the plain column i"),
    "constant": (lambda: F.lit(1), "the constant 1"),
    "filter": (lambda: F.expr("sum(i) filter (where i > 1)"), "FILTER clause"),
    "window": (lambda: F.sum("i").over(Window.partitionBy("k")), "window function"),
    "case": (lambda: F.when(F.col("i") > 1, F.sum("i")), "the expression"),
    "no_column": (lambda: "sum(i)", "not a column"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused(spark: SparkSession, case: str) -> None:
    """Anything but a supported aggregate is refused by name, with what is supported and what to do instead."""
    make, reason = REFUSED[case]
    with pytest.raises(ConfigError, match=reason) as caught:
        describe("mine", make(), spark.createDataFrame([], SCHEMA))
    text = str(caught.value)
    assert "'mine'" in text
    assert all(name in text for name in SUPPORTED)
    assert "transform()" in text
    assert "process()" in text


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (lambda: F.sum("missing"), "refused by Spark.*missing"),
        (
            lambda: F.max(F.array(F.expr("make_dt_interval(1)"))),
            "max of array<interval day to second> is not",
        ),
        (lambda: F.max(F.collate("s", "UTF8_LCASE")), "max of string collate UTF8_LCASE is not supported"),
        (lambda: F.sum(F.expr("make_dt_interval(1)")), "sum of interval day to second is not supported"),
    ],
)
def test_types_that_cannot_be_merged_are_refused(spark: SparkSession, column: Any, reason: str) -> None:
    """An unknown column or a type without a merge rule is refused before anything runs."""
    with pytest.raises(ConfigError, match=reason):
        describe("mine", column(), spark.createDataFrame([], SCHEMA))
