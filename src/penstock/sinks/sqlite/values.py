"""Arrow columns as SQLite stores them. Executors, so that nothing is left to convert, or to fail, at commit.

whole numbers, booleans     INTEGER
floating point              REAL; SQLite has no NaN, it becomes NULL
strings                     TEXT
dates, times, timestamps    TEXT, ISO 8601; a timestamp with a time zone is in UTC and ends in 'Z'
decimals                    TEXT, exact
durations, lists, structs   TEXT, JSON
bytes                       BLOB
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.sinks.json_text import check_years, json_texts, timestamp_texts
from penstock.state.ddl import spark_type


def storage_class(data_type: pa.DataType) -> str:
    """Name the SQLite storage class that a column of this type gets."""
    if pa.types.is_dictionary(data_type):
        return storage_class(data_type.value_type)
    if pa.types.is_integer(data_type) or pa.types.is_boolean(data_type):
        return "INTEGER"
    if pa.types.is_floating(data_type):
        return "REAL"
    return "BLOB" if _is_bytes(data_type) else "TEXT"


def storage_batch(batch: pa.RecordBatch, *, knows_nan: bool = False) -> pa.RecordBatch:
    """Convert every column; a value that SQLite cannot hold is a `BadRecordError` naming the column."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            columns.append(_storage_column(column, knows_nan=knows_nan))
        except (pa.ArrowException, BadRecordError) as error:
            raise BadRecordError(
                f"column {field.name!r} of type {spark_type(field.type)} holds a value that SQLite cannot store: {error}",
                column=field.name,
            ) from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def is_plain_text(data_type: pa.DataType) -> bool:
    """Tell whether a column holds the user's own strings, in which '007' must not become 7."""
    value_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    return bool(
        pa.types.is_string(value_type)
        or pa.types.is_large_string(value_type)
        or pa.types.is_string_view(value_type)
    )


def _storage_column(column: pa.Array, *, knows_nan: bool) -> pa.Array:
    data_type = column.type
    if pa.types.is_dictionary(data_type):
        return _storage_column(column.cast(data_type.value_type), knows_nan=knows_nan)
    match storage_class(data_type):
        case "INTEGER":
            return column.cast(pa.int64())
        case "REAL":
            doubles = column.cast(pa.float64())
            if knows_nan:
                return doubles
            return pc.if_else(pc.is_nan(doubles), pa.scalar(None, pa.float64()), doubles)
        case "BLOB":
            return column.cast(pa.large_binary())
    return _text_column(column).cast(pa.large_string())


def _text_column(column: pa.Array) -> pa.Array:
    data_type = column.type
    if pa.types.is_timestamp(data_type):
        return timestamp_texts(column)
    if pa.types.is_decimal(data_type):
        return _decimal_texts(column)
    if pa.types.is_date(data_type):
        check_years(column.cast(pa.date32()).view(pa.int32()), units_per_day=1)
        return column.cast(pa.large_string())
    if is_plain_text(data_type) or pa.types.is_time(data_type):
        return column.cast(pa.large_string())
    if pa.types.is_null(data_type):
        return pa.nulls(len(column), pa.string())
    return json_texts(column)


def _decimal_texts(column: pa.Array) -> pa.Array:
    """Arrow writes very small numbers as 1E-10; people and other programs expect all digits."""
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
        or pa.types.is_binary_view(data_type)
    )
