"""Values are compared as Spark orders them."""

from __future__ import annotations

import math
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial, partial_name, picked_type
from penstock.operators.aggregate.merge import finish, merge
from penstock.operators.values.row_order import compare

FLOATS = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5])
VALUES = st.fixed_dictionaries(
    {
        "x": st.none() | FLOATS,
        "s": st.none() | st.sampled_from(["", "a", "aa", "é", "\uffff", "𐍈"]),
        "many": st.none()
        | st.lists(st.none() | st.fixed_dictionaries({"f": st.none() | FLOATS}), max_size=3),
    }
)
TYPE = pa.struct(
    [
        ("x", pa.float64()),
        ("s", pa.string()),
        ("many", pa.list_(pa.struct([("f", pa.float64())]))),
    ]
)


def sign(left: Any, right: Any) -> int:
    """Plain Python's answer, for one pair."""
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if isinstance(left, dict):
        names = [name for name in ("x", "s", "many", "f") if name in left]
        return next((found for name in names if (found := sign(left[name], right[name]))), 0)
    if isinstance(left, list):
        pairs = (found for one, other in zip(left, right, strict=False) if (found := sign(one, other)))
        return next(pairs, (len(left) > len(right)) - (len(left) < len(right)))
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return math.isnan(left) - math.isnan(right)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return bool(left > right) - bool(left < right)


@given(pairs=st.lists(st.tuples(st.none() | VALUES, st.none() | VALUES), min_size=1, max_size=20))
def test_nested_values_are_compared_field_by_field(pairs: list[tuple[Any, Any]]) -> None:
    """Null comes first, NaN last, the zeros are one, texts are compared by bytes, and arrays element by element."""
    left, right = (pa.array([None, *side], TYPE).slice(1) for side in zip(*pairs, strict=True))
    assert compare(left, right).tolist() == [sign(*pair) for pair in pairs]


def _picking(kind: Kind, *, by: bool, timed: bool) -> AggregateColumn:
    value = pa.map_(pa.string(), pa.int64())
    kept = picked_type(value, TYPE if by else None, timed=timed)
    return AggregateColumn("x", kind, (Partial(partial_name("x", kind), kind, kept),), value)


rows = st.tuples(st.none() | st.just([("a", 1)]) | st.just([]), VALUES, st.integers(0, 3))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("kind", [Kind.MAX_BY, Kind.MIN_BY, Kind.FIRST, Kind.LAST])
@given(batches=st.lists(st.none() | rows, min_size=1, max_size=6))
def test_one_row_is_picked_over_batches(kind: Kind, batches: list[Any], *, timed: bool) -> None:
    """The value of the largest, smallest, first or last row is picked, of equal ones the later; it may be null, and a batch may have none."""
    by = kind in (Kind.MAX_BY, Kind.MIN_BY)
    spec = _picking(kind, by=by, timed=timed)
    (column,) = spec.partials
    state = pa.RecordBatch.from_pylist([{}], schema=pa.schema([(column.name, column.type)]))
    found = np.zeros(1, dtype=np.bool_)
    for row in batches:
        kept = None if row is None else dict(zip(("value", "by", "at"), row, strict=True))
        names = ["value", *(["by"] if by else []), *(["at"] if timed else [])]
        added = pa.array([kept and {name: kept[name] for name in names}], column.type)
        state = merge([spec], state, found, pa.RecordBatch.from_arrays([added], names=[column.name]))
        found = np.ones(1, dtype=np.bool_)
    known: list[tuple[Any, Any]] = [
        (row, place if not timed else (row[2], place)) for place, row in enumerate(batches) if row
    ]
    assert finish([spec], state).column(0).to_pylist() == [_expected(kind, known)]


def _expected(kind: Kind, known: list[tuple[Any, Any]]) -> Any:
    if not known:
        return None
    known.sort(key=_place)
    if kind in (Kind.FIRST, Kind.LAST):
        return known[0 if kind is Kind.FIRST else -1][0][0]
    down = -1 if kind is Kind.MIN_BY else 1

    def order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
        return down * sign(one[0][1], other[0][1])

    known.sort(key=cmp_to_key(order))  # stable: of equals the last
    return known[-1][0][0]


def _place(pair: tuple[Any, Any]) -> Any:
    return pair[1]
