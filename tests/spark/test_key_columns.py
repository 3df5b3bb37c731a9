"""Keys that Spark calls equal have one number and are one key."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from penstock.operators.grouping import group_rows
from penstock.spark.key_columns import float_keys, normalised, sort_key
from penstock.spark.versions import hashed_to, partition_by_number, repartitioned
from penstock.state.keys import SORT_KEY

pytestmark = pytest.mark.spark

NAN = "double('NaN')"
KEYS = {
    "double": ("0.0D", "-0.0D"),
    "float": ("float(0)", "-float(0)"),
    "struct": ("struct(-0.0D as x, 'a' as s)", "struct(0.0D as x, 'a' as s)"),
    "dotted": ("named_struct('a.b', -0.0D)", "named_struct('a.b', 0.0D)"),
    "array": ("array(-float(0), null)", "array(float(0), null)"),
    "deep": ("struct(array(struct(-0.0D as x)) as a)", "struct(array(struct(0.0D as x)) as a)"),
    "nan": (f"struct({NAN} as x)", f"struct(-{NAN} as x)"),
}


def test_zero_has_one_sign_wherever_it_stands_in_a_key(spark):
    """-0.0 is 0.0 and every NaN is one, in structs and arrays too: Spark's groupBy says the same."""
    first, second = ([F.expr(pair[at]).alias(name) for name, pair in KEYS.items()] for at in (0, 1))
    frame = spark.range(1).select(*first).union(spark.range(1).select(*second))
    for key in KEYS:
        assert frame.groupBy(key).count().count() == 1
    normal = normalised(frame, float_keys(frame, tuple(KEYS)))
    assert [field.dataType.simpleString() for field in normal.schema] == [
        field.dataType.simpleString() for field in frame.schema
    ]
    columns = [sort_key((key,), 128).alias(f"n_{key}") for key in KEYS]
    table = normal.select("*", *columns).toArrow()
    for key in KEYS:
        one = table.select([key, f"n_{key}"]).rename_columns([key, SORT_KEY])
        assert len(group_rows(one, [key]).keys) == 1, key


def test_a_missing_struct_stays_missing(spark):
    """Null is not made a struct of nulls, nor an empty array null."""
    frame = spark.sql(
        "select if(id > 0, struct(-0.0D as x), null) as s, array_repeat(-0.0D, 0) as a from range(2)"
    )
    normal = normalised(frame, float_keys(frame, ("s", "a")))
    assert normal.orderBy("s").toArrow().to_pylist() == [{"s": None, "a": []}, {"s": {"x": 0.0}, "a": []}]


@pytest.mark.parametrize("own", [True, False])
def test_rows_go_to_the_partition_of_their_number(spark, own):
    """By Spark's own means where it has them, and by its hash where it has not: 7 is no divisor of anything."""
    rows = spark.range(70).select(F.col("id"), (F.col("id") % 7).cast("int").alias("to"))
    if own:
        placed = repartitioned(rows, 7, partition_by_number(spark, F.col("to"), 7))
    else:
        placed = rows.repartition(7, hashed_to(spark, F.col("to"), 7))
    found = placed.select("to", F.spark_partition_id().alias("at")).collect()
    assert len(found) == 70
    assert [row for row in found if row["to"] != row["at"]] == []
