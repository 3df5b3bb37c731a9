"""Exact equality of keys, row by row, without a Python loop. Runs in tasks on executors.

Keys are equal as Spark groups them: null equals null, NaN equals NaN. Spark has made -0.0 to 0.0 before a key
gets here, so floating-point numbers are compared bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def rows_equal(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Flags:
    """Which rows are equal in all columns; both sides have the same types and length."""
    same = _column_equal(left[0], right[0])
    for left_column, right_column in zip(left[1:], right[1:], strict=True):
        same &= _column_equal(left_column, right_column)
    return same


def _column_equal(left: pa.Array, right: pa.Array) -> Flags:
    same = _values_equal(left, right)
    if left.null_count == 0 and right.null_count == 0:
        return same
    left_valid, right_valid = _flags(left.is_valid()), _flags(right.is_valid())
    same |= ~left_valid
    same &= left_valid == right_valid
    return same


def _values_equal(left: pa.Array, right: pa.Array) -> Flags:
    """Equality of rows that are valid on both sides; what it says about others means nothing."""
    kind = left.type
    if pa.types.is_floating(kind):
        return _floats_equal(left, right)
    if pa.types.is_struct(kind):
        return _structs_equal(left, right)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists_equal(left, right)
    if pa.types.is_nested(kind):
        return _python_equal(left, right)
    return _flags(pc.equal(left, right))


def _floats_equal(left: pa.Array, right: pa.Array) -> Flags:
    bits = _BITS[left.type]
    same = _flags(pc.equal(left.view(bits), right.view(bits)))
    if same.all():
        return same
    # NaN has many bit patterns; they are one key.
    return same | _flags(pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _structs_equal(left: pa.Array, right: pa.Array) -> Flags:
    fields = range(left.type.num_fields)
    if not fields:
        return np.ones(len(left), dtype=np.bool_)
    return rows_equal([left.field(i) for i in fields], [right.field(i) for i in fields])


def _lists_equal(left: pa.Array, right: pa.Array) -> Flags:
    """Lists are equal when they are as long as each other and no pair of items differs."""
    same = _flags(pc.equal(pc.list_value_length(left), pc.list_value_length(right)))
    alike = pa.array(np.flatnonzero(same))
    left, right = left.take(alike), right.take(alike)
    items_same = _column_equal(pc.list_flatten(left), pc.list_flatten(right))
    parents = pc.list_parent_indices(left).to_numpy(zero_copy_only=False)
    differing = np.flatnonzero(same)[np.unique(parents[~items_same])]
    same[differing] = False
    return same


def _python_equal(left: pa.Array, right: pa.Array) -> Flags:
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    return np.fromiter((_comparable(a) == _comparable(b) for a, b in pairs), dtype=np.bool_, count=len(left))


def _comparable(value: Any) -> Any:
    """The value with NaN replaced by something that equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN", float
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value


def _flags(array: pa.Array) -> Flags:
    """Arrow's bits as NumPy's booleans; null is false."""
    known = array.fill_null(fill_value=False) if array.null_count else array
    flags: Flags = known.to_numpy(zero_copy_only=False, writable=True)
    return flags
