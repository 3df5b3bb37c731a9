"""Schemas and types as users write them: DDL, Spark's own types, lists of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from penstock import KeyedProcess, ValueState
from penstock.errors import ConfigError
from penstock.sources import PartitionedLog
from penstock.state.ddl import arrow_schema, schema_ddl, type_ddl

VIEWS = pa.schema([("app", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize(
    "given",
    [
        "app string, n long",
        ["app string", "n long"],
        ["app string", ("n", "long")],
        (("app", T.StringType()), ("n", T.LongType())),
        [T.StructField("app", T.StringType()), "n long"],
        T.StructType().add("app", "string").add("n", "long"),
    ],
)
def test_every_way_to_write_a_schema(given: Any) -> None:
    """They all mean the same columns."""
    assert arrow_schema(schema_ddl(given)) == VIEWS


def test_nested_types_and_odd_names() -> None:
    """Spark's types become the DDL that Spark itself reads, with names of any letters."""
    inner = T.StructType().add("x`y", T.DecimalType(5, 2))
    given = (
        T.StructType()
        .add("a b", T.MapType(T.StringType(), T.ArrayType(inner)))
        .add("m.x", T.TimestampNTZType())
    )
    ddl = schema_ddl(given)
    assert ddl == "`a b` map<string,array<struct<`x``y`:decimal(5,2)>>>, `m.x` timestamp_ntz"
    assert arrow_schema(ddl).names == ["a b", "m.x"]
    assert schema_ddl([("m.x", "date")]) == "`m.x` date"


def test_state_takes_types_of_spark() -> None:
    """`ValueState(LongType())` is the same state as `ValueState("long")`."""

    class Visits(KeyedProcess):
        visits = ValueState(T.LongType(), default=0)
        pages = ValueState(T.ArrayType(T.StringType()))

        def process(self, key: Any, rows: Any, ctx: Any) -> None: ...

    assert Visits.visits.arrow_type == ValueState("long").arrow_type
    assert Visits.pages.arrow_type == ValueState("array<string>").arrow_type


def test_a_log_is_described_by_the_same_schemas(tmp_path: Path) -> None:
    """A log that was made with a `StructType` is opened with DDL, and refuses other columns."""
    PartitionedLog(tmp_path / "log", T.StructType().add("app", "string").add("n", "long"), 1)
    assert PartitionedLog(tmp_path / "log", "app string, n long").schema == VIEWS
    with pytest.raises(ConfigError, match="exists with schema 'app string, n bigint', not 'app string'"):
        PartitionedLog(tmp_path / "log", ["app string"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, r"schema=5 is not a schema: it takes DDL .*, a StructType, or a list"),
        (None, r"schema=None is not a schema"),
        (T.LongType(), r"schema=LongType\(\) is not a schema"),
        (T.StructType, r"StructType is a class: write StructType\(\)"),
        ([], r"schema=\[\] has no columns"),
        (T.StructType(), r"schema=StructType\(\[\]\) has no columns"),
        ("", r"schema='' has no columns"),
        (["a string, b long"], r"schema has 'a string, b long' as one of its columns, but it names several"),
        ([("a",)], r"schema has \('a',\) as one of its columns: it takes"),
        ([("", "long")], r"schema has \('', 'long'\)"),
        ([("a", T.LongType)], r"LongType is a class: write LongType\(\)"),
        ([("a", "long, b long")], r"cannot read the type 'long, b long'"),
        (["a string", "A long"], r"column 'A' occurs twice"),
        (T.StructType().add("a", T.VarcharType(5)), r"cannot read .* found 'varchar'"),
        (T.StructType().add("a", T.StringType("UNICODE")), r"cannot read .* found 'collate'"),
    ],
)
def test_what_is_no_schema_is_refused(given: Any, said: str) -> None:
    """It is refused where it was written, with what was given and what can be."""
    with pytest.raises(ConfigError, match=said):
        schema_ddl(given)


@pytest.mark.parametrize(
    "given", [5, None, T.LongType, T.NullType(), "", ["long"], T.StructField("a", T.LongType())]
)
def test_what_is_no_type_is_refused(given: Any) -> None:
    """So is a type."""
    with pytest.raises(ConfigError, match=r"type=.* is not a type|cannot read the type"):
        type_ddl(given)
