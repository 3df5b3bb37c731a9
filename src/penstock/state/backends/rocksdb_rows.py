"""Rows of state as the bytes that RocksDB keeps, and back. Runs in tasks on executors.

    key   = number of the table, 1 byte · sort key, 8 bytes, big-endian · second sort number, the same, where a key has many rows ·
            MessagePack array of the columns that tell rows apart
    value = MessagePack array of the value columns, stamps last

In a table by time the second sort number comes before the sort key. It may be negative, so its sign is turned: bytes are in the order
of rows. Equal keys have equal bytes: null is nil, every NaN is one NaN.
Text is kept as bytes, moments as integers, decimals as text, so that no value depends on what Python can express. Nothing is
unpickled; bytes that do not fit the columns are corrupt state.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CorruptStateError
from penstock.state.backends.base import KeyBatch, TableLayout
from penstock.state.backends.sorted_lookup import no_columns
from penstock.state.ddl import spark_type
from penstock.state.keys import GROUP_SHIFT, SortKeys
from penstock.state.lifetimes import STAMP_TYPE

NUMBER_BYTES = 8
_SIGN = np.uint64(1 << 63)

_ENCODER = msgspec.msgpack.Encoder()
_ROWS = msgspec.msgpack.Decoder(list[list[Any] | None])
_RAW = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NIL = b"\xc0"
_ARRAY = struct.Struct(">BI")  # the head of a MessagePack array of up to 2^32 items
_ARRAY_32 = 0xDD
_UNREADABLE = (
    msgspec.MsgspecError,
    pa.ArrowException,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
)
_STORED = (
    (pa.types.is_string, pa.binary()),
    (pa.types.is_date32, pa.int32()),
    (pa.types.is_timestamp, pa.int64()),
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_time64, pa.int64()),
)

Column = list[Any]


class RowCodec:
    """The codec of one table; `number` identifies the table."""

    def __init__(self, layout: TableLayout, number: int) -> None:
        self._layout = layout
        self.number = number
        self._identity = [_ColumnCodec(field.type, is_key=True) for field in layout.identity]
        self._value = [_ColumnCodec(field.type, is_key=False) for field in layout.value]
        self._table = bytes([number])
        self._prefix_bytes = 1 + NUMBER_BYTES * (1 + layout.ordered)

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """The range of bytes that holds all rows of the table."""
        return self._table, bytes([self._table[0] + 1])

    def start_of(self, number: int) -> bytes:
        """Before all rows whose first number is this one: the sort key, or in a table by time the time."""
        turned = number + (1 << 63) if self._layout.by_time else number
        return self._table + turned.to_bytes(NUMBER_BYTES, "big") if turned < 1 << 64 else self.bounds[1]

    def range_of(self, time: int, sort_key: int) -> tuple[bytes, bytes]:
        """In a table by time: the range of bytes that holds all rows with this time and sort key."""
        start = self.start_of(time) + sort_key.to_bytes(NUMBER_BYTES, "big")
        return start, self.start_of(time) + (sort_key + 1).to_bytes(NUMBER_BYTES, "big")

    def group_of(self, key: bytes) -> int:
        """The key group of a row."""
        at = 1 + NUMBER_BYTES * self._layout.by_time
        return int.from_bytes(key[at : at + NUMBER_BYTES], "big") >> GROUP_SHIFT

    def encode_keys(self, rows: KeyBatch) -> list[bytes]:
        """The encoded identity of each row."""
        prefixes = self._prefixes(rows).tobytes()
        width = self._prefix_bytes
        return [
            prefixes[at * width : (at + 1) * width] + row
            for at, row in enumerate(_encode(self._identity, rows.columns))
        ]

    def _prefixes(self, rows: KeyBatch) -> npt.NDArray[np.uint8]:
        numbers = [rows.sort_keys.view(np.uint64)]
        if rows.orders is not None:
            numbers.insert(0 if self._layout.by_time else 1, rows.orders.view(np.uint64) ^ _SIGN)
        prefixes = np.empty((len(rows), self._prefix_bytes), dtype=np.uint8)
        prefixes[:, 0] = self._table[0]
        big_endian = np.stack(numbers, axis=1).astype(">u8")
        prefixes[:, 1:] = np.frombuffer(big_endian.tobytes(), dtype=np.uint8).reshape(
            len(rows), self._prefix_bytes - 1
        )
        return prefixes

    def encode_values(self, values: pa.RecordBatch) -> list[bytes]:
        """The bytes of each row of values."""
        return _encode(self._value, values)

    def decode_keys(self, keys: Sequence[bytes], label: str) -> tuple[SortKeys, pa.RecordBatch]:
        """Sort keys and identity columns; `label` names the database in errors."""
        at = 1 + NUMBER_BYTES * self._layout.by_time
        numbers = b"".join(key[at : at + NUMBER_BYTES] for key in keys)
        if len(numbers) != NUMBER_BYTES * len(keys):
            raise _corrupt(label, "a key is too short")
        sort_keys = np.frombuffer(numbers, dtype=">i8").astype(np.int64)
        rest = [key[self._prefix_bytes :] for key in keys]
        return sort_keys, _decode(self._identity, rest, self._layout.identity, label=label)

    def decode_orders(self, keys: Sequence[bytes]) -> SortKeys | None:
        """The second sort numbers, of keys that `decode_keys` can read; None where a key has one row."""
        if not self._layout.ordered:
            return None
        at = 1 if self._layout.by_time else 1 + NUMBER_BYTES
        numbers = b"".join(key[at : at + NUMBER_BYTES] for key in keys)
        turned = np.frombuffer(numbers, dtype=">u8").astype(np.uint64) ^ _SIGN
        return turned.view(np.int64)

    def decode_values(self, values: Sequence[bytes | None], label: str) -> pa.RecordBatch:
        """Value columns, with nulls where there is no value."""
        return _decode(self._value, values, self._layout.value, label=label)

    def decode_stamps(self, values: Sequence[bytes], label: str) -> list[pa.Array]:
        """The stamps alone, which takes a fraction of the time."""
        columns, first = len(self._value), len(self._layout.visible)
        try:
            rows = _ROWS.decode(b"".join([_ARRAY.pack(_ARRAY_32, len(values)), *values]))
            return [pa.array([row[at] for row in rows if row], STAMP_TYPE) for at in range(first, columns)]
        except _UNREADABLE as cause:
            raise _corrupt(label, f"the stamps of a row cannot be read: {cause}") from cause


def restamping(stored: Sequence[str], layout: TableLayout, label: str) -> Callable[[bytes], bytes] | None:
    """A function that adapts values with these stamps to the stamps of the layout, with null for new ones; None if they are the same."""
    wanted = [lifetime.stamp for lifetime in layout.lifetimes]
    if list(stored) == wanted:
        return None
    columns = len(layout.visible)

    def fitting(value: bytes) -> bytes:
        try:
            row = _RAW.decode(value)
            stamps = dict(zip(stored, row[columns:], strict=True))
        except _UNREADABLE as cause:
            raise _corrupt(
                label, f"a row cannot be read as ({_described(layout.visible)}): {cause}"
            ) from cause
        return _ENCODER.encode([*row[:columns], *(stamps.get(stamp) for stamp in wanted)])

    return fitting


class _ColumnCodec:
    """A column as objects that MessagePack knows, by way of an Arrow type that has such objects."""

    def __init__(self, kind: pa.DataType, *, is_key: bool) -> None:
        self._kind = kind
        self._stored = _stored_type(kind)
        self._to_stored = pc.CastOptions(self._stored)
        # Spark lets invalid UTF-8 pass, and so does state.
        self._from_stored = pc.CastOptions(kind, allow_invalid_utf8=True)
        self._canonical = is_key and _has(kind, pa.types.is_floating)
        self._restore = _restoring(self._stored)

    def objects(self, column: pa.Array) -> Column:
        """One object for each row."""
        if column.type != self._stored:
            column = pc.cast(column, options=self._to_stored)
        found: Column = column.to_pylist()
        return [_one_nan(value) for value in found] if self._canonical else found

    def array(self, objects: Column) -> pa.Array:
        """The column again; raises Arrow's errors when the objects are of another kind."""
        if self._restore is not None:
            objects = [self._restore(value) for value in objects]
        array = pa.array(objects, self._stored)
        return array if self._stored == self._kind else pc.cast(array, options=self._from_stored)


def _encode(codecs: list[_ColumnCodec], batch: pa.RecordBatch) -> list[bytes]:
    if not codecs:
        return [_ENCODER.encode(())] * batch.num_rows
    columns = [codec.objects(column) for codec, column in zip(codecs, batch.columns, strict=True)]
    return [_ENCODER.encode(row) for row in zip(*columns, strict=True)]


def _decode(
    codecs: list[_ColumnCodec], rows: Sequence[bytes | None], schema: pa.Schema, *, label: str
) -> pa.RecordBatch:
    absent = [None] * len(codecs)
    try:
        # All rows in one call: as the items of one array, nil where there is none.
        joined = [_ARRAY.pack(_ARRAY_32, len(rows)), *(_NIL if row is None else row for row in rows)]
        decoded = [absent if row is None else row for row in _ROWS.decode(b"".join(joined))]
        if set(map(len, decoded)) - {len(codecs)}:
            raise _corrupt(label, f"a row does not have {len(codecs)} columns")
        if not codecs:
            return no_columns(len(rows))
        columns = list(zip(*decoded, strict=True)) or [()] * len(codecs)
        arrays = [codec.array(list(column)) for codec, column in zip(codecs, columns, strict=True)]
    except _UNREADABLE as cause:
        raise _corrupt(label, f"a row cannot be read as ({_described(schema)}): {cause}") from cause
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type whose Python objects MessagePack can carry without loss."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), _stored_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    for is_kind, stored in _STORED:
        if is_kind(kind):
            return stored
    return kind


def _restoring(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """How to make what MessagePack gives what Arrow wants: text to decimals, entries of maps to tuples; None: no need."""
    if not _has(kind, lambda inner: pa.types.is_map(inner) or pa.types.is_decimal(inner)):
        return None
    if pa.types.is_decimal(kind):
        return lambda text: None if text is None else Decimal(text)
    if pa.types.is_map(kind):
        key, item = _restored(kind.key_type), _restored(kind.item_type)
        return lambda entries: entries and [(key(k), item(v)) for k, v in entries]
    if pa.types.is_struct(kind):
        fields = {field.name: _restored(field.type) for field in kind}
        return lambda row: row and {name: fields[name](value) for name, value in row.items()}
    item = _restored(kind.value_type)
    return lambda items: items and [item(value) for value in items]


def _restored(kind: pa.DataType) -> Callable[[Any], Any]:
    return _restoring(kind) or (lambda value: value)


def _has(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type or one inside it is of the wanted kind."""
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return wanted(kind) or any(_has(one, wanted) for one in inner)


def _one_nan(value: Any) -> Any:
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, dict):
        return {name: _one_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_one_nan(item) for item in value]
    return value


def _corrupt(label: str, problem: str) -> CorruptStateError:
    return CorruptStateError(
        f"the database of {label} holds no rows of this state: {problem}; restore an older checkpoint",
        file=label,
    )


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)
