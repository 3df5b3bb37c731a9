"""The second sort number: a part of the file format, so what it gives must never change."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.ddl import arrow_type
from penstock.state.keys import order_number, order_numbers

ORDERED: dict[str, list[Any]] = {
    "byte": [-128, -1, 0, 127],
    "long": [-(2**63), -1, 0, 1, 2**63 - 1],
    "boolean": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 1, 1, tzinfo=dt.UTC),
    ],
    "double": [-math.inf, -1.5, -5e-324, 0.0, 5e-324, 1.5, math.inf, math.nan],
    "float": [-math.inf, -1.5, 0.0, 1.5, math.inf, math.nan],
    "decimal(18,2)": [
        Decimal("-9999999999999999.99"),
        Decimal("-0.01"),
        Decimal(0),
        Decimal("0.01"),
        Decimal("9999999999999999.99"),
    ],
}


@pytest.mark.parametrize("ddl", ORDERED)
def test_numbers_and_moments_are_in_their_own_order(ddl: str) -> None:
    """Numbers rise with the values, also in a slice of a longer column."""
    column = pa.array([ORDERED[ddl][0], *ORDERED[ddl]], arrow_type(ddl)).slice(1)
    numbers = order_numbers(column).tolist()
    assert numbers == sorted(set(numbers))
    assert [order_number(column.slice(at, 1)) for at in range(len(column))] == numbers


def test_zero_and_nan_have_one_number_each() -> None:
    """Values that are equal have equal numbers."""
    assert len(set(order_numbers(pa.array([0.0, -0.0])).tolist())) == 1
    assert len(set(order_numbers(pa.array([math.nan, -math.nan])).tolist())) == 1


KNOWN = {
    "": 7960286522194355700,
    "a": -8860845880269722424,
    "x" * 64: 7571731563554742739,
    "x" * 65: -467193847355987470,
}


def test_the_hash_of_a_text_never_changes() -> None:
    """Files that were written find their rows by these numbers."""
    assert {text: order_number(pa.array([text])) for text in KNOWN} == KNOWN


@given(st.lists(st.text(max_size=80), min_size=1, max_size=20))
def test_one_at_a_time_is_the_same_as_all_at_once(texts: list[str]) -> None:
    """Also for bytes, in a slice, and beside others of any length."""
    column = pa.array(["before", *texts]).slice(1)
    numbers = order_numbers(column).tolist()
    assert [order_number(column.slice(at, 1)) for at in range(len(column))] == numbers
    assert order_numbers(pa.array([text.encode() for text in texts])).tolist() == numbers
    by_text = dict(zip(texts, numbers, strict=True))
    assert len(set(by_text.values())) == len(by_text)


def test_structs_have_the_number_of_their_parts() -> None:
    """Two that differ in a field, or in which of them is null, differ."""
    kind = arrow_type("struct<a:long,b:string>")
    values = [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": None, "b": "x"},
        {"a": 1, "b": None},
    ]
    assert len(set(order_numbers(pa.array(values, kind)).tolist())) == len(values)
    assert len(set(order_numbers(pa.array([values[0]] * 3, kind)).tolist())) == 1
