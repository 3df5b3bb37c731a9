"""Arrow values as JSON, on every Arrow that works."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BadRecordError
from penstock.sinks.json_text import json_lines, json_texts
from penstock.state.ddl import arrow_type

NESTED = "struct<m:map<string,array<map<long,string>>>,n:long>"


def batch_of(ddl: str, *values: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(list(values), arrow_type(ddl))], names=["v"])


def test_maps_are_objects_wherever_they_stand() -> None:
    """A map is an object, also inside lists, structs and maps; null stays null."""
    batch = batch_of(
        NESTED, {"m": [("a", [[(1, "x")], None]), ("b", None)], "n": 7}, {"m": None, "n": None}, None
    )
    lines = [json.loads(line) for line in json_lines(batch).splitlines()]
    assert lines == [
        {"v": {"m": {"a": [{"1": "x"}, None], "b": None}, "n": 7}},
        {"v": {"m": None, "n": None}},
        {"v": None},
    ]
    texts = json_texts(batch.column(0)).to_pylist()
    assert [text and json.loads(text) for text in texts] == [line["v"] for line in lines]


def test_a_key_that_stands_twice_is_refused() -> None:
    """An object would have lost one of the two."""
    batch = batch_of("map<string,long>", [("a", 1), ("a", 2)])
    with pytest.raises(BadRecordError, match="a map has the same key twice"):
        json_lines(batch)
    with pytest.raises(BadRecordError, match="a map has the same key twice"):
        json_texts(batch.column(0))


def test_rows_without_columns() -> None:
    """They are empty objects."""
    assert json_lines(pa.RecordBatch.from_struct_array(pa.nulls(2, pa.struct([])))) == b"{}\n{}\n"
