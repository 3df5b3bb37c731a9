"""Arrow columns as PostgreSQL reads them: the rows of a COPY in CSV. Executors; the types also on the driver.

Arrow's writer quotes every text and leaves a null empty, which is how COPY tells '' from NULL. Nested values are JSON;
times with a zone are written in UTC; digits below a microsecond are rounded by the server.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.errors import BadRecordError
from penstock.sinks.json_text import json_texts, timestamp_texts
from penstock.sinks.sql.values import SqlType, date_texts, is_bytes

_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")


def _type(name: str, *fitting: str) -> SqlType:
    return SqlType(name, frozenset(fitting))


_TEXTS = ("text", "varchar", "bpchar")
_WHOLE = _type("bigint", "int2", "int4", "int8", "numeric")
_SINGLE = _type("real", "float4", "float8")
_DOUBLE = _type("double precision", "float8")
_DECIMAL = _type("numeric", "numeric")
_BOOLEAN = _type("boolean", "bool")
_DATE = _type("date", "date")
_TIME = _type("time", "time")
_LOCAL_TIMESTAMP = _type("timestamp", "timestamp")
_TIMESTAMP = _type("timestamptz", "timestamptz")
_DURATION = _type("interval", "interval")
_BYTES = _type("bytea", "bytea")
_JSON = _type("jsonb", "json", "jsonb", *_TEXTS)
PLAIN_TEXT = _type("text")
"""Fits whatever the server reads from text, but numbers, booleans, times and bytes."""


def sql_type(data_type: pa.DataType) -> SqlType:
    """Say what a column becomes."""
    types = pa.types
    if types.is_dictionary(data_type):
        return sql_type(data_type.value_type)
    if types.is_timestamp(data_type):
        return _LOCAL_TIMESTAMP if data_type.tz is None else _TIMESTAMP
    for matches, found in (
        (types.is_integer, _WHOLE),
        (types.is_float16, _SINGLE),
        (types.is_float32, _SINGLE),
        (types.is_floating, _DOUBLE),
        (types.is_decimal, _DECIMAL),
        (types.is_boolean, _BOOLEAN),
        (types.is_date, _DATE),
        (types.is_time, _TIME),
        (types.is_duration, _DURATION),
        (is_bytes, _BYTES),
        (types.is_nested, _JSON),
    ):
        if matches(data_type):
            return found
    return PLAIN_TEXT


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Write the rows of a batch for COPY."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            columns.append(_printable(column))
        except (pa.ArrowException, BadRecordError) as error:
            raise BadRecordError(
                f"column {field.name!r} of type {field.type} holds a value that PostgreSQL cannot store: {error}",
                column=field.name,
            ) from error
    text = io.BytesIO()
    names = [str(index) for index in range(len(columns))]
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=names), text, _CSV)
    return text.getvalue()


def _printable(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return _printable(column.cast(column.type.value_type))
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    for matches, convert in _CONVERSIONS:
        if matches(column.type):
            return convert(column)
    return column


def _hexadecimal(column: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.large_string()
    )


def _microseconds(column: pa.Array) -> pa.Array:
    """An interval in one unit: the server's ISO 8601 reader refuses what others write for negative spans."""
    numbers = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(numbers, "microseconds", " ")


_CONVERSIONS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]] = [
    (pa.types.is_timestamp, timestamp_texts),
    (pa.types.is_date, date_texts),
    (pa.types.is_duration, _microseconds),
    (pa.types.is_nested, json_texts),
    (is_bytes, _hexadecimal),
    (pa.types.is_decimal, lambda column: column.cast(pa.string())),
    (pa.types.is_time, lambda column: column.cast(pa.string())),
    (pa.types.is_float16, lambda column: column.cast(pa.float32())),
]
"""What CSV cannot carry as it is; numbers, booleans and texts it can."""
