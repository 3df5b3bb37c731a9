"""Arrow columns as rows of a COPY for PostgreSQL, in CSV or in the binary format. Executors; types also on the driver.

In CSV, Arrow's writer quotes every text and leaves a null empty, which is how COPY distinguishes '' from NULL. Nested values are JSON;
times with a zone are written in UTC; the server rounds digits below a microsecond.

In the binary format, no value is formatted and the server has no text to parse. A row is the number of its fields, and each field
its length (-1 for NULL) and its bytes. Fixed columns without nulls, and the lengths before all others, are laid out with NumPy; Arrow
joins these pieces with the texts. What has no simple binary form (decimals, uuid, enumerations, ...) or does not fit the column is sent
as CSV, and the server reports what is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.errors import BadRecordError
from penstock.sinks.json_text import check_years, json_texts, timestamp_texts
from penstock.sinks.sql.values import Conversions, ValueKind, as_text, converted, date_texts, sql_type

_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")


_TEXTS = ("text", "varchar", "bpchar")
TYPES = {
    ValueKind.WHOLE: sql_type("bigint", "int2", "int4", "int8", "numeric"),
    ValueKind.SINGLE: sql_type("real", "float4", "float8"),
    ValueKind.DOUBLE: sql_type("double precision", "float8"),
    ValueKind.DECIMAL: sql_type("numeric", "numeric"),
    ValueKind.BOOLEAN: sql_type("boolean", "bool"),
    ValueKind.DATE: sql_type("date", "date"),
    ValueKind.TIME: sql_type("time", "time"),
    ValueKind.LOCAL_TIMESTAMP: sql_type("timestamp", "timestamp"),
    ValueKind.INSTANT: sql_type("timestamptz", "timestamptz"),
    ValueKind.DURATION: sql_type("interval", "interval"),
    ValueKind.BYTES: sql_type("bytea", "bytea"),
    ValueKind.NESTED: sql_type("jsonb", "json", "jsonb", *_TEXTS),
    ValueKind.NULL: sql_type("text"),
    ValueKind.TEXT: sql_type("text"),
}
"""The type for each kind. Nulls fit everywhere; text fits every type except numbers, booleans, times and bytes."""


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as CSV for COPY."""
    columns = list(converted(batch, _CONVERSIONS, "PostgreSQL"))
    text = io.BytesIO()
    names = [str(index) for index in range(len(columns))]
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=names), text, _CSV)
    return text.getvalue()


def _hexadecimal(column: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.large_string()
    )


def _microseconds(column: pa.Array) -> pa.Array:
    """Format intervals in microseconds: the server does not read negative ones in ISO 8601."""
    numbers = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(numbers, "microseconds", " ")


_CONVERSIONS: Conversions = {
    ValueKind.LOCAL_TIMESTAMP: timestamp_texts,
    ValueKind.INSTANT: timestamp_texts,
    ValueKind.DATE: date_texts,
    ValueKind.DURATION: _microseconds,
    ValueKind.NESTED: json_texts,
    ValueKind.BYTES: _hexadecimal,
    ValueKind.DECIMAL: as_text,
    ValueKind.TIME: as_text,
    ValueKind.NULL: as_text,
    ValueKind.SINGLE: lambda column: column.cast(pa.float32()),
}
"""Conversions for CSV; numbers, booleans and texts need none."""


Bytes = npt.NDArray[np.uint8]
"""A matrix with one line per row."""
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_EPOCH_DAYS = 10_957
"""PostgreSQL counts from 2000-01-01."""
_DAY_US = 86_400_000_000
_JOINED = pa.large_binary()


def binary_rows(batch: pa.RecordBatch, declared: Sequence[str]) -> bytes | None:
    """Return the rows of a batch for columns of these types in the binary format; None if they must be sent as CSV."""
    try:
        fields = [_encoded(column, name) for column, name in zip(batch.columns, declared, strict=True)]
    except (pa.ArrowException, BadRecordError, OverflowError):
        return None
    if any(field is None for field in fields):
        return None
    joined = pc.binary_join_element_wise(*_pieces(fields, batch.num_rows), pa.scalar(b"", _JOINED))
    offsets = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1, joined.offset * 8)
    body = joined.buffers()[2].slice(offsets[0], offsets[-1] - offsets[0])
    return b"".join((HEADER, body, TRAILER))


def _pieces(fields: Sequence[Any], rows: int) -> list[pa.Array]:
    """Return the pieces of a row in order: fixed bytes, then a field of varying length, and so on."""
    pieces: list[pa.Array] = []
    fixed = [_repeated(len(fields).to_bytes(2, "big"), rows)]
    for field in fields:
        if isinstance(field, np.ndarray):
            fixed += [_repeated(field.shape[1].to_bytes(4, "big"), rows), field]
            continue
        lengths = pc.fill_null(pc.binary_length(field), -1).to_numpy(zero_copy_only=False)
        fixed.append(_matrix(lengths, ">i4"))
        pieces += [_array(np.hstack(fixed)), pc.fill_null(field, b"")]
        fixed = []
    return [*pieces, _array(np.hstack(fixed))] if fixed else pieces


def _encoded(column: pa.Array, declared: str) -> Bytes | pa.Array | None:
    """A matrix for values of one length, an array for others or with nulls, None for what has no form here."""
    if pa.types.is_dictionary(column.type):
        return _encoded(column.cast(column.type.value_type), declared)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), _JOINED)
    if pa.types.is_nested(column.type):
        return _texts(json_texts(column), declared)
    for matches, convert in _FIXED:
        if matches(column.type):
            matrix = convert(column, declared)
            return matrix if matrix is None or not column.null_count else _with_nulls(matrix, column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return None if declared in {"json", "jsonb"} else _texts(column, declared)
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(_JOINED) if is_bytes and declared == "bytea" else None


def _texts(column: pa.Array, declared: str) -> pa.Array | None:
    texts = column.cast(pa.large_string()).cast(_JOINED)
    if declared in {"text", "varchar", "bpchar", "json"}:
        return texts
    if declared == "jsonb":  # a version before the text
        return pc.binary_join_element_wise(pa.scalar(b"\x01", _JOINED), texts, pa.scalar(b"", _JOINED))
    return None


def _whole(column: pa.Array, declared: str) -> Bytes | None:
    width = {"int2": 2, "int4": 4, "int8": 8}.get(declared)
    return None if width is None else _numbers(column, f"int{width * 8}", f">i{width}")


def _float(column: pa.Array, declared: str) -> Bytes | None:
    width = {"float4": 4, "float8": 8}.get(declared)
    return None if width is None else _numbers(column, f"float{width * 8}", f">f{width}")


def _boolean(column: pa.Array, declared: str) -> Bytes | None:
    return _numbers(column, "uint8", "u1") if declared == "bool" else None


def _date(column: pa.Array, declared: str) -> Bytes | None:
    days = column.cast(pa.date32()).view(pa.int32())
    check_years(days, units_per_day=1)
    return _numbers(pc.subtract(days, _EPOCH_DAYS), "int32", ">i4") if declared == "date" else None


def _timestamp(column: pa.Array, declared: str) -> Bytes | None:
    wanted = "timestamp" if column.type.tz is None else "timestamptz"
    if declared != wanted or column.type.unit == "ns":
        return None
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    check_years(microseconds, units_per_day=_DAY_US)
    return _numbers(pc.subtract(microseconds, _EPOCH_DAYS * _DAY_US), "int64", ">i8")


def _time(column: pa.Array, declared: str) -> Bytes | None:
    if declared != "time" or column.type.unit == "ns":
        return None
    return _numbers(column.cast(pa.time64("us")).view(pa.int64()), "int64", ">i8")


def _duration(column: pa.Array, declared: str) -> Bytes | None:
    """Microseconds; no days, no months."""
    if declared != "interval" or column.type.unit == "ns":
        return None
    microseconds = _numbers(column.cast(pa.duration("us")).view(pa.int64()), "int64", ">i8")
    return np.hstack([microseconds, _repeated(bytes(8), len(column))])


_FIXED: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, str], Bytes | None]]] = [
    (pa.types.is_integer, _whole),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _duration),
]


def _numbers(column: pa.Array, arrow: str, layout: str) -> Bytes:
    """Cast with care (a number that does not fit raises) and turn the bytes; a null is any number."""
    safe = column.cast(pa.type_for_alias(arrow))
    return _matrix(
        (pc.fill_null(safe, 0) if safe.null_count else safe).to_numpy(zero_copy_only=False), layout
    )


def _matrix(values: npt.NDArray[Any], layout: str) -> Bytes:
    turned = np.ascontiguousarray(values.astype(layout))
    return turned.view(np.uint8).reshape(len(values), turned.itemsize)


def _repeated(value: bytes, rows: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(value, np.uint8), (rows, len(value)))


def _with_nulls(matrix: Bytes, column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), _array(matrix), pa.scalar(None, _JOINED))


def _array(matrix: Bytes) -> pa.Array:
    """The lines of a matrix as values, without a copy."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(_JOINED, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
