"""Which columns may be stored as another type: those of which every value is one of the other type."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DataType, NullType

from penstock.spark.savepoint_rows import loses_nothing, spark_type
from penstock.state.ddl import arrow_type

SAFE = [
    ("int", "long"),
    ("byte", "short"),
    ("int", "double"),
    ("short", "float"),
    ("float", "double"),
    ("int", "decimal(10,0)"),
    ("long", "decimal(20,1)"),
    ("decimal(10,2)", "decimal(12,3)"),
    ("string", "string"),
    ("timestamp", "timestamp"),
    ("array<int>", "array<long>"),
    ("map<string,int>", "map<string,long>"),
    ("struct<a:int,b:string>", "struct<a:long,b:string>"),
]
UNSAFE = [
    ("long", "int"),
    ("long", "double"),
    ("int", "float"),
    ("double", "float"),
    ("double", "long"),
    ("long", "decimal(18,0)"),
    ("decimal(10,2)", "decimal(10,3)"),
    ("decimal(10,2)", "decimal(10,1)"),
    ("decimal(10,0)", "long"),
    ("int", "string"),
    ("string", "int"),
    ("timestamp", "timestamp_ntz"),
    ("timestamp_ntz", "timestamp"),
    ("date", "timestamp"),
    ("boolean", "int"),
    ("struct<a:int,b:string>", "struct<b:string,a:int>"),
    ("struct<a:int>", "struct<a:int,b:int>"),
    ("array<int>", "map<int,int>"),
]


def kind(ddl: str) -> DataType:
    """A type of Spark's, without a session."""
    return spark_type(arrow_type(ddl))


@pytest.mark.parametrize(("found", "wanted"), SAFE)
def test_may_be_cast(found: str, wanted: str) -> None:
    """Every value of the one type is a value of the other."""
    assert loses_nothing(kind(found), kind(wanted))


@pytest.mark.parametrize(("found", "wanted"), UNSAFE)
def test_may_not_be_cast(found: str, wanted: str) -> None:
    """Some value would become another one, or none."""
    assert not loses_nothing(kind(found), kind(wanted))


def test_nothing_is_of_every_type() -> None:
    """A column of which Spark knows only that it is null may become any."""
    assert loses_nothing(NullType(), kind("array<long>"))
