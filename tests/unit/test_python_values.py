"""Columns become the same Python objects that Arrow makes of them, and maps dictionaries."""

# ruff: noqa: DTZ001, DTZ901 - the zone is given by the column

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.values.python_values import python_values
from services.tiers import share

VALUES = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(),
    pa.timestamp("us", tz="Europe/Berlin"): st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)),
    pa.timestamp("us", tz="+02:00"): st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)),
    pa.timestamp("ns"): st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
    pa.struct([("a", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "at": st.none() | st.datetimes()}
    ),
    pa.map_(pa.string(), pa.list_(pa.int8())): st.dictionaries(
        st.text(max_size=2), st.none() | st.lists(st.integers(0, 9), max_size=2), max_size=3
    ),
    pa.list_(pa.struct([("m", pa.map_(pa.int64(), pa.map_(pa.string(), pa.int64())))])): st.lists(
        st.fixed_dictionaries(
            {
                "m": st.none()
                | st.dictionaries(
                    st.integers(0, 3),
                    st.dictionaries(st.text(max_size=1), st.none() | st.integers(0, 3), max_size=2),
                    max_size=2,
                )
            }
        ),
        max_size=3,
    ),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=share(25))
@given(data=st.data())
def test_values_are_what_arrow_gives(kind, data):
    """Same values, same types, same time zones, nulls included; also of a part of a column and of a column in chunks."""
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20))
    whole = pa.array(values, type=kind)
    first = data.draw(st.integers(0, len(values)))
    for column in (whole, whole.slice(first), pa.chunked_array([whole, whole.slice(first)], type=kind)):
        expected = column.to_pylist(maps_as_pydicts="strict")
        assert list(map(repr, python_values(column))) == list(map(repr, expected))
        assert [getattr(value, "fold", 0) for value in python_values(column)] == [
            getattr(value, "fold", 0) for value in expected
        ]


def test_keys_of_a_map_that_could_change_are_tuples():
    """A dictionary cannot have lists or dictionaries as keys; what comes out can be stored again."""
    inner = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
    column = pa.array([[({"a": 1, "b": [2, 3]}, "x")]], pa.map_(inner, pa.string()))
    assert python_values(column) == [{(1, (2, 3)): "x"}]
    assert pa.array(python_values(column), column.type).equals(column)


def test_the_last_of_equal_keys_counts():
    """Spark can be told to let a key stand twice in a map."""
    assert python_values(pa.array([[("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int64()))) == [{"x": 2}]


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.decimal128(5, 1)], ids=str
)
def test_an_empty_column_has_no_values(kind):
    """No rows, or nothing but nulls, is no special case."""
    assert python_values(pa.array([], type=kind)) == []
    assert python_values(pa.nulls(3, kind)) == [None] * 3


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([2**60], pa.int64()).cast(pa.timestamp("us")),
    ],
    ids=["date", "timestamp"],
)
def test_what_python_cannot_hold_is_an_error(column):
    """A date after the year 9999 is refused as Arrow refuses it, and does not come out as a number."""
    with pytest.raises((OverflowError, ValueError)):
        python_values(column)


def test_the_ends_of_the_calendar():
    """The first and the last moment that Python knows come through."""
    ends = [datetime.min, datetime.max]
    assert python_values(pa.array(ends, pa.timestamp("us"))) == ends
    assert python_values(pa.array([date.min, date.max])) == [date.min, date.max]
    assert python_values(pa.array([Decimal("0.10")]))[0].as_tuple() == Decimal("0.10").as_tuple()
