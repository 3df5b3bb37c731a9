"""The type language: Spark's DDL to Arrow types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.state.ddl import arrow_schema, arrow_type, spark_type

FLAT = {
    "long": pa.int64(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "string": pa.string(),
    "double": pa.float64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
    "decimal": pa.decimal128(10, 0),
    "decimal(5)": pa.decimal128(5, 0),
    "decimal( 38 , 18 )": pa.decimal128(38, 18),
}


@pytest.mark.parametrize("ddl", FLAT)
def test_flat_types(ddl: str) -> None:
    """Each of Spark's flat types has its Arrow type, in any case and with blanks around."""
    assert arrow_type(ddl) == FLAT[ddl]
    assert arrow_type(f"  {ddl.upper()} ") == FLAT[ddl]


def test_nested_types() -> None:
    """Arrays, maps and structs nest in each other."""
    found = arrow_type("map<string,array<struct<a:int,`odd name` : decimal(4,2), c map<int,date>>>>")
    struct = pa.struct(
        [("a", pa.int32()), ("odd name", pa.decimal128(4, 2)), ("c", pa.map_(pa.int32(), pa.date32()))]
    )
    assert found == pa.map_(pa.string(), pa.list_(struct))


def test_columns() -> None:
    """Columns may have a colon, backquotes and NOT NULL, which leaves them nullable."""
    found = arrow_schema("a long, b: array<string> NOT NULL, `c,``d` int not null,\n long string")
    assert found == pa.schema(
        [("a", pa.int64()), ("b", pa.list_(pa.string())), ("c,`d", pa.int32()), ("long", pa.string())]
    )


WRONG_TYPES = [
    ("", 0, "end of text"),
    ("   ", 3, "end of text"),
    ("strin", 0, "'strin'"),
    ("a long", 0, "'a'"),
    ("long long", 5, "expected the end"),
    ("array<long", 10, "expected '>'"),
    ("array long", 6, "expected '<'"),
    ("array<>", 6, "expected a type"),
    ("map<string>", 10, "expected ','"),
    ("struct<>", 7, "column name"),
    ("struct<a:int,A:int>", 13, "occurs twice"),
    ("decimal(39,0)", 0, "precision is 1 to 38"),
    ("decimal(4,5)", 0, "scale 0 to precision"),
    ("decimal(x)", 8, "expected a number"),
    ("`long`", 0, "expected a type"),
    ("array<long!>", 10, "unexpected character '!'"),
    ("array<" * 100 + "int" + ">" * 100, 384, "deep"),
]


@pytest.mark.parametrize(("ddl", "position", "problem"), WRONG_TYPES)
def test_wrong_type(ddl: str, position: int, problem: str) -> None:
    """A wrong type is refused with its text, the position, the problem and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        arrow_type(ddl)
    assert caught.value.facts == {"text": ddl, "position": position}
    assert repr(ddl) in str(caught.value)
    assert f"at position {position};" in str(caught.value)
    assert problem in str(caught.value)
    assert "timestamp_ntz" in str(caught.value)


WRONG_SCHEMAS = [
    ("a", 1, "expected a type, found 'end of text'"),
    ("a long,", 7, "column name"),
    ("a long b int", 7, "expected the end"),
    ("a long, b int, a string", 15, "column 'a' occurs twice"),
    ("a long, `A` int", 8, "column 'A' occurs twice"),
    ("a long not", 10, "expected NULL"),
    (", a int", 0, "column name"),
]


@pytest.mark.parametrize(("ddl", "position", "problem"), WRONG_SCHEMAS)
def test_wrong_schema(ddl: str, position: int, problem: str) -> None:
    """Wrong columns are refused with the position and the problem."""
    with pytest.raises(ConfigError, match="allowed types are") as caught:
        arrow_schema(ddl)
    assert caught.value.facts == {"text": ddl, "position": position}
    assert problem in str(caught.value)


def test_not_text() -> None:
    """Something that is no text is refused as a setting, not as a crash."""
    with pytest.raises(ConfigError, match="5 is not a type"):
        arrow_type(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ddl",
    [
        "long",
        "int",
        "short",
        "byte",
        "string",
        "double",
        "float",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "binary",
        "decimal(38,18)",
        "array<map<string,long>>",
        "struct<a:int,b:array<double>>",
    ],
)
def test_messages_name_a_type_as_its_schema_does(ddl: str) -> None:
    """The name of a type in an error is one that a schema takes; a type that Spark lacks keeps Arrow's name."""
    assert spark_type(arrow_type(ddl)) == ddl
    assert spark_type(pa.uint8()) == "uint8"
