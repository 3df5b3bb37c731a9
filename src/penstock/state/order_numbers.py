"""The second sort number of a row: what orders the rows of one key in a table. Part of the file format; driver and executors.

Numbers, dates and moments are their own order, so that rows come out in theirs. Text, bytes, long decimals and structs have a
hash; rows that share one are told apart by their columns, as keys are.

Equal values have equal numbers: every NaN is one, and -0.0 is 0.0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.state.keys import SortKeys

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
    """That of the only value of a column; of a whole number or a short text in a fraction of the time that many at once need for one."""
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
    """Take eight bytes of every text that is still going on, and mix them into its hash."""
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
    """`_mixed`, for one number."""
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
