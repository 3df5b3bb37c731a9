"""Rows as bytes: every type there and back, one form for equal keys, the order of sort keys."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptStateError
from penstock.state.backends.base import VALUES as STATE_VALUES
from penstock.state.backends.base import StateLayout
from penstock.state.backends.rocksdb_rows import RowCodec
from penstock.state.ddl import arrow_schema, arrow_type
from penstock.state.keys import KeyBatch

MOMENT = dt.datetime(2026, 2, 3, 4, 5, 6, 789, dt.UTC)
NAIVE = MOMENT.replace(tzinfo=None)

VALUES: dict[str, list[Any]] = {
    "long": [0, -1, 2**63 - 1, -(2**63)],
    "int": [0, 2**31 - 1, -(2**31)],
    "short": [-(2**15), 7],
    "byte": [-128, 127],
    "string": ["", "a", "ä€😀", "\0", "x" * 70_000],
    "double": [0.0, -0.0, 0.1, 5e-324, math.inf, -math.inf],
    "float": [0.5, 2**-149, -math.inf],
    "boolean": [True, False],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31)],
    "timestamp": [MOMENT, dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
    "timestamp_ntz": [NAIVE, dt.datetime(9999, 12, 31)],  # noqa: DTZ001 - it has none
    "binary": [b"", b"\0\xff", bytes(300)],
    "decimal(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0)],
    "decimal(38,38)": [Decimal("1E-38"), Decimal("0." + "9" * 38)],
    "decimal(20,10)": [Decimal("1E-10"), Decimal("-12.5"), Decimal(0)],
    "array<string>": [[], ["a", None, ""]],
    "array<timestamp>": [[MOMENT, None]],
    "array<array<date>>": [[[dt.date(2026, 1, 1)], None, []]],
    "struct<a:int,b:struct<c:decimal(5,2),d:date>>": [
        {"a": 1, "b": {"c": Decimal("1.50"), "d": None}},
        {"a": None, "b": None},
    ],
    "map<string,long>": [[], [("a", 1), ("b", None)]],
    "map<int,map<string,array<timestamp_ntz>>>": [[(1, [("x", [NAIVE, None])]), (2, None), (3, [])]],
    "array<struct<k:string,m:map<date,decimal(10,2)>>>": [
        [{"k": "x", "m": [(dt.date(2026, 1, 1), Decimal("0.10"))]}, None, {"k": None, "m": None}]
    ],
    "struct<a:map<string,int>>": [{"a": [("x", 1)]}, {"a": None}],
}


def codec_of(key: str, value: str = "n long") -> RowCodec:
    layout = StateLayout(arrow_schema(key), arrow_schema(value))
    return RowCodec(layout.by_name[STATE_VALUES], 0)


def batch_of(ddl: str, *columns: list[Any]) -> pa.RecordBatch:
    schema = arrow_schema(ddl)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.mark.parametrize("kind", VALUES)
def test_every_type_comes_back(kind: str) -> None:
    """Every type of the language, with null and inside a slice, is the same after a trip through bytes, as key and as value."""
    given_values = [None, *VALUES[kind], None]
    batch = batch_of(f"a {kind}, b long", given_values, list(range(len(given_values)))).slice(1)
    codec = codec_of(f"a {kind}, b long", f"a {kind}, b long")
    keys = KeyBatch(np.arange(batch.num_rows, dtype=np.int64), batch)
    sort_keys, key_columns = codec.decode_keys(codec.encode_keys(keys), "db")
    values = codec.decode_values([*codec.encode_values(batch), None], "db")
    assert sort_keys.tolist() == keys.sort_keys.tolist()
    assert key_columns.schema == values.schema == batch.schema
    assert key_columns.equals(batch)
    assert values.slice(0, batch.num_rows).equals(batch)
    assert values.slice(batch.num_rows).to_pylist() == [{"a": None, "b": None}]


def test_every_type_of_the_language_is_tried() -> None:
    """No type can be declared that the table above lacks."""
    from penstock.state.ddl import ALLOWED_TYPES

    tried = {arrow_type(kind) for kind in VALUES}
    flat = [name for name in ALLOWED_TYPES if "<" not in name and "(" not in name]
    assert [name for name in flat if arrow_type(name) not in tried] == []


def test_all_nans_are_one_key() -> None:
    """NaN has many bit patterns; they are one key, also inside arrays and structs. Other numbers are told apart bit by bit."""
    patterns = [
        struct.unpack("<d", struct.pack("<Q", bits))[0]
        for bits in (0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 5)
    ]
    for ddl, wrap in (
        ("x double", lambda x: x),
        ("x array<double>", lambda x: [x]),
        ("x struct<y:double>", lambda x: {"y": x}),
    ):
        batch = batch_of(ddl, [wrap(x) for x in (*patterns, 0.1, 0.1 + 2**-56)])
        keys = codec_of(ddl).encode_keys(KeyBatch(np.zeros(5, dtype=np.int64), batch))
        assert len(set(keys[:3])) == 1
        assert len(set(keys)) == 3


def test_what_python_cannot_express() -> None:
    """Text that is no UTF-8 and moments beyond the year 9999, which Spark lets pass, come back as they were."""
    bad = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    far = pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    schema = arrow_schema("s string, t timestamp")
    batch = pa.RecordBatch.from_arrays([bad, far], schema=schema)
    codec = codec_of("k long", "s string, t timestamp")
    back = codec.decode_values(codec.encode_values(batch), "db")
    assert back.column(0).view(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok"]
    assert back.column(1).equals(far)


def test_columns_are_told_apart() -> None:
    """Keys of several columns never run into each other."""
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""), (None, "abc"), ("abc", None)]
    batch = batch_of("x string, y string", *(list(column) for column in zip(*pairs, strict=True)))
    keys = codec_of("x string, y string").encode_keys(KeyBatch(np.zeros(6, dtype=np.int64), batch))
    assert len(set(keys)) == 6


def test_state_without_columns() -> None:
    """An operator without state of its own still has rows."""
    codec = RowCodec(StateLayout(arrow_schema("k long"), pa.schema([])).by_name[STATE_VALUES], 0)
    empty = pa.RecordBatch.from_struct_array(pa.nulls(2, pa.struct([])))
    rows = codec.encode_values(empty)
    assert len(rows) == 2
    assert codec.decode_values([*rows, None], "db").num_rows == 3


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=50))
def test_bytes_are_in_the_order_of_sort_keys(sort_keys: list[int]) -> None:
    """RocksDB's order of bytes is the order of sort keys."""
    ordered = np.sort(np.array(sort_keys, dtype=np.int64))
    batch = batch_of("k long", [0] * len(ordered))
    keys = codec_of("k long").encode_keys(KeyBatch(ordered, batch))
    assert keys == sorted(keys)
    assert max(keys) < b"\x80"


@pytest.mark.parametrize(("ddl", "row"), [
    ("n struct<m:map<string,int>>", b"\x91\x05"), ("n struct<m:map<string,int>>", b"\x91\x81\xa1x\x01"), ("n map<string,int>", b"\x91\x91\x01"),
    ("n map<string,int>", b"\x91\x91\x91\x01"), ("n decimal(5,2)", b"\x91\xa1x"), ("n byte", b"\x91\xcd\xff\xff"), ("n string", b"\x91\x01"),
    ("n long", b"\x91\x01\x01"), ("n boolean", b"\x91\x05"), ("n date", b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
])  # fmt: skip
def test_rows_of_another_kind_are_corrupt(ddl: str, row: bytes) -> None:
    """Bytes that do not fit the columns are corrupt state, whatever their kind."""
    with pytest.raises(CorruptStateError, match="the database of db holds no rows of this state"):
        codec_of("k long", ddl).decode_values([row], "db")
