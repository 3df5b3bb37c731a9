"""Keys and the numbers that sort rows of state. Driver and executors.

    sort key (63 bits) = key group (15 bits) · low 48 bits of the key's xxhash64

Spark computes both parts, so Python's `hash` is never involved. The key group is `hash(key) mod max_parallelism` with Spark's own
partitioning hash; subtask i of P owns the groups g with g mod P = i. Two keys may share a sort key, so every lookup also compares the
keys themselves.

The order number is the second sort number: it orders the rows of one key in a table, and is part of the file format. Numbers, dates and
timestamps sort in their natural order. Text, bytes, long decimals and structs sort by a hash, and rows with equal hashes are distinguished
by their columns. Equal values have equal numbers: every NaN counts as the same value, and -0.0 as 0.0.

Keys are equal if Spark groups them together: null equals null, NaN equals NaN. Spark turns -0.0 into 0.0 before a key arrives here, so
floating-point numbers are compared bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

GROUP_SHIFT = 48
MAX_KEY_GROUPS = 1 << 15
SORT_KEY = "__sort_key"
"""The column with the sort key, in rows for an operator and in rows of state."""
ORDER = "__order"
"""The column with the second sort number, where a key may have many rows."""

SortKeys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyBatch:
    """Distinct keys in ascending order of their sort key; row i of `columns` is the key of `sort_keys[i]`.

    In a table with several rows per key, `orders` has the second sort number of each row, and `columns` also has the other identity
    columns.
    """

    sort_keys: SortKeys
    columns: pa.RecordBatch
    orders: SortKeys | None = None

    def __len__(self) -> int:
        return len(self.sort_keys)

    def slice(self, start: int, stop: int) -> KeyBatch:
        """The keys from `start` up to `stop`, without a copy."""
        orders = None if self.orders is None else self.orders[start:stop]
        return KeyBatch(self.sort_keys[start:stop], self.columns.slice(start, stop - start), orders)

    def take(self, rows: npt.NDArray[np.int64]) -> KeyBatch:
        """The keys at these positions."""
        orders = None if self.orders is None else self.orders[rows]
        return KeyBatch(self.sort_keys[rows], self.columns.take(pa.array(rows)), orders)


def key_groups(sort_keys: SortKeys) -> npt.NDArray[np.int64]:
    """The key group of each sort key."""
    return sort_keys >> GROUP_SHIFT


def owner(group: int, parallelism: int) -> int:
    """The subtask that owns a key group."""
    return group % parallelism


def owners(groups: npt.NDArray[np.int64], parallelism: int) -> npt.NDArray[np.int64]:
    """The owning subtask of each of many groups."""
    return groups % parallelism


def share_groups(one: int, parallelism: int, other: int, other_parallelism: int) -> bool:
    """Whether subtask `one` and subtask `other`, at their parallelisms, own a common key group, for any number of groups."""
    return (one - other) % gcd(parallelism, other_parallelism) == 0


def groups_owned(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups of a subtask."""
    return range(subtask, max_parallelism, parallelism)


Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_64_BITS = (1 << 64) - 1
_WORD_BYTES = 8
_SHORT_BYTES = 64
"""Texts up to this length are hashed all at once, eight bytes of each in a round; longer ones one by one."""
_DIGITS_OF_AN_INTEGER = 18
_SIGN_BIT = np.int64(-(2**63))


def order_numbers(column: pa.Array) -> SortKeys:
    """The number of each value; the column has no nulls, and is no array or map."""
    kind = column.type
    if _is_integer_like(kind):
        return _integers(column)
    if pa.types.is_floating(kind):
        return _floats(column)
    return _hashes(column).view(np.int64)


def is_own_order(kind: pa.DataType) -> bool:
    """Whether the numbers of such values are in the order of the values: all but text, bytes, long decimals and structs."""
    return bool(_is_integer_like(kind) or pa.types.is_floating(kind))


def order_number(column: pa.Array) -> int:
    """The number of the only value of a column; much faster than `order_numbers` for an integer or a short text."""
    kind = column.type
    if pa.types.is_int64(kind):
        number: int = column[0].as_py()
        return number
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return int(order_numbers(column)[0])
    text: bytes = column[0].as_buffer().to_pybytes()
    if len(text) > _SHORT_BYTES:
        return int(order_numbers(column)[0])
    total = _mixed_one(len(text) + int(_GOLDEN))
    for start in range(0, len(text), _WORD_BYTES):
        total = _mixed_one(total ^ int.from_bytes(text[start : start + _WORD_BYTES], "little"))
    return total - (1 << 64) if total >> 63 else total


def _is_integer_like(kind: pa.DataType) -> bool:
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind)
    return bool(whole or (pa.types.is_decimal(kind) and kind.precision <= _DIGITS_OF_AN_INTEGER))


def _integers(column: pa.Array) -> SortKeys:
    kind = column.type
    if pa.types.is_decimal(kind):
        # 16 bytes each, little-endian; what fits into 18 digits is in the lower half
        words = np.frombuffer(_data(column), dtype="<i8")
        numbers: SortKeys = words[2 * column.offset : 2 * (column.offset + len(column)) : 2].astype(np.int64)
        return numbers
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64())
    whole: SortKeys = pc.cast(column, pa.int64()).to_numpy(zero_copy_only=False)
    return whole


def _floats(column: pa.Array) -> SortKeys:
    """The bits of a double, turned so that they are in the order of the numbers; NaN is the greatest, as in Spark."""
    numbers = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    numbers = np.where(np.isnan(numbers), np.nan, numbers)
    bits = numbers.view(np.int64)
    ordered: SortKeys = np.where(bits >= 0, bits, ~bits ^ _SIGN_BIT)
    return ordered


def _hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_struct(kind):
        return _of_struct(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _of_bytes(column)
    if pa.types.is_decimal(kind):
        return _of_bytes(pc.cast(pc.cast(column, pa.string()), pa.binary()))
    return _mixed(order_numbers(column).view(np.uint64))


def _of_struct(column: pa.Array) -> Hashes:
    total = np.full(len(column), _GOLDEN, dtype=np.uint64)
    for index in range(column.type.num_fields):
        field = column.field(index)
        known = field.is_valid().to_numpy(zero_copy_only=False)
        part = np.zeros(len(column), dtype=np.uint64)
        if known.any():
            part[known] = _hashes(field.filter(pa.array(known)))
        total = _mixed(total ^ part) + _GOLDEN
    return total


def _of_bytes(column: pa.Array) -> Hashes:
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(column) else (0, 0)
    starts, lengths = offsets[:-1].astype(np.int64) - first, np.diff(offsets).astype(np.int64)
    total = _mixed(lengths.astype(np.uint64) + _GOLDEN)
    short = lengths <= _SHORT_BYTES
    data = _data(column)[first:last]
    for at in np.flatnonzero(~short).tolist():
        start = int(starts[at])
        total[at] = xxhash.xxh3_64_intdigest(data[start : start + int(lengths[at])])
    _hash_words(data, starts, np.where(short, lengths, 0), total)
    return total


def _hash_words(data: memoryview, starts: SortKeys, lengths: SortKeys, total: Hashes) -> None:
    """Mix the next eight bytes of every unfinished text into its hash."""
    padded = np.frombuffer(bytes(data) + bytes(_WORD_BYTES), dtype=np.uint8)
    words: Hashes = np.ndarray((len(padded) - _WORD_BYTES + 1,), dtype="<u8", buffer=padded, strides=(1,))
    for done in range(0, int(lengths.max(initial=0)), _WORD_BYTES):
        going_on = np.flatnonzero(lengths > done)
        left = np.minimum(lengths[going_on] - done, _WORD_BYTES).astype(np.uint64)
        unused = (np.uint64(_WORD_BYTES) - left) * np.uint64(8)
        word = (words[starts[going_on] + done] << unused) >> unused
        total[going_on] = _mixed(total[going_on] ^ word)


def _data(column: pa.Array) -> memoryview:
    buffer = column.buffers()[-1]
    return memoryview(b"") if buffer is None else memoryview(buffer)


def _mixed_one(number: int) -> int:
    """The same as `_mixed` for a single Python integer."""
    mixed = (number + int(_GOLDEN)) & _64_BITS
    mixed = ((mixed ^ (mixed >> 30)) * int(_MIX_1)) & _64_BITS
    mixed = ((mixed ^ (mixed >> 27)) * int(_MIX_2)) & _64_BITS
    return mixed ^ (mixed >> 31)


def _mixed(numbers: Hashes) -> Hashes:
    """Spread the bits (the last step of SplitMix64)."""
    mixed = numbers + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


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
    """Equality of rows that are valid on both sides; the result for other rows is undefined."""
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
