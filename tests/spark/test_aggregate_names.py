"""The names of aggregates: by argument or by alias, any name, each once."""

from __future__ import annotations

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.spark.operators.aggregate import named_aggregates

pytestmark = pytest.mark.spark


def names(*columns: Column, **named: Column) -> list[str]:
    return list(named_aggregates(columns, named, keys=["app"], uid="views"))


@pytest.mark.usefixtures("spark")
def test_columns_are_named_by_alias_or_argument() -> None:
    """An alias may be any text, also that of an argument of `aggregate`; the order is the one in which they were written."""
    odd = ["page views", "uid", "schema", "a.b", "x`y"]
    aliased = [F.count("*").alias(name) for name in odd]
    assert names(*aliased, F.expr("sum(ms) AS total"), pv=F.count("*")) == [*odd, "total", "pv"]
    assert names(F.max("ms").alias("first").alias("last")) == ["last"]


@pytest.mark.usefixtures("spark")
def test_names_that_are_missing_or_taken() -> None:
    """They are refused where they were written, by name or by position."""
    count = F.count("*")
    for nameless in (count, F.expr("sum(ms)"), count.alias(""), F.col("ms")):
        with pytest.raises(
            ConfigError, match=r"^aggregate 'views': argument 2, .*, has no name of its own; write"
        ):
            names(count.alias("pv"), nameless)
    with pytest.raises(ConfigError, match="'PV' is the name of two columns"):
        names(count.alias("pv"), PV=count)
    with pytest.raises(ConfigError, match="'app' is the name of a key column too"):
        names(count.alias("app"))
    with pytest.raises(ConfigError, match="argument 1 is 'pv'; it takes columns"):
        names("pv")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name at least one column"):
        names()


def test_names_are_those_of_group_by(spark: SparkSession) -> None:
    """What Spark's own groupBy calls a column is what it is called here."""
    columns = [F.count("*").alias("page views"), F.expr("max(id) AS top")]
    assert names(*columns) == spark.range(1).groupBy("id").agg(*columns).columns[1:]
