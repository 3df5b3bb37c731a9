"""Arrow columns as MySQL and MariaDB read them: texts and numbers of an INSERT. Executors; the types also on the driver.

A time with a zone is written in UTC, as is the session; nested values are JSON. The servers hold neither NaN nor infinity:
a row with one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.sinks.json_text import json_texts, timestamp_texts
from penstock.sinks.sql.bad_rows import row_at, shown_row
from penstock.sinks.sql.values import SqlType, date_texts, is_bytes

_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_WHOLE = SqlType("bigint", frozenset(("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")))
_SINGLE = SqlType("float", frozenset(("float", "double")))
_DOUBLE = SqlType("double", frozenset(("double",)))
_BOOLEAN = SqlType("boolean", frozenset(("tinyint",)))
_DATE = SqlType("date", frozenset(("date",)))
_TIME = SqlType("time(6)", frozenset(("time",)))
_LOCAL = SqlType("datetime(6)", frozenset(("datetime",)))
_INSTANT = SqlType("datetime(6)", frozenset(("datetime", "timestamp")))
_BLOB = SqlType("longblob", frozenset(_BYTES))
_JSON = SqlType("json", frozenset(_TEXTS))
_TEXT = SqlType("longtext", frozenset((*_TEXTS, "enum", "set", "uuid", "inet4", "inet6")))


def sql_type(data_type: pa.DataType) -> SqlType | None:
    """Say what a column becomes; None if there is nothing for it."""
    types = pa.types
    if types.is_dictionary(data_type):
        return sql_type(data_type.value_type)
    if types.is_timestamp(data_type):
        return _LOCAL if data_type.tz is None else _INSTANT
    if types.is_decimal(data_type):
        return SqlType(f"decimal({data_type.precision}, {data_type.scale})", frozenset(("decimal",)))
    for matches, found in (
        (types.is_integer, _WHOLE),
        (types.is_float16, _SINGLE),
        (types.is_float32, _SINGLE),
        (types.is_floating, _DOUBLE),
        (types.is_boolean, _BOOLEAN),
        (types.is_date, _DATE),
        (types.is_time, _TIME),
        (is_bytes, _BLOB),
        (types.is_nested, _JSON),
        (types.is_duration, None),
    ):
        if matches(data_type):
            return found
    return _TEXT


def python_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Give the rows of a batch as values that have a literal in SQL."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            columns.append(_literal_values(column).to_pylist())
        except UnicodeDecodeError as error:
            raise _no_text(field, batch) from error
        except (pa.ArrowException, BadRecordError) as error:
            raise BadRecordError(
                f"column {field.name!r} of type {field.type} holds a value that the server cannot store: {error}",
                column=field.name,
            ) from error
    return zip(*columns, strict=True)


def _no_text(field: pa.Field, batch: pa.RecordBatch) -> BadRecordError:
    """Name the row with a text that is no UTF-8: Spark takes any bytes for one in `CAST(binary AS STRING)`."""
    rows = (row_at(batch, index) for index in range(batch.num_rows))
    row = next(row for row in rows if isinstance(row[field.name], bytes))
    return BadRecordError(
        f"column {field.name!r} of type {field.type} holds bytes that are no UTF-8; the row is {shown_row(row)}; filter or repair "
        "such rows before write_to, or keep the column binary",
        column=field.name,
        row=row,
    )


def _literal_values(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return _literal_values(column.cast(column.type.value_type))
    for matches, convert in _CONVERSIONS:
        if matches(column.type):
            return convert(column)
    return column


def _finite(column: pa.Array) -> pa.Array:
    if not pc.all(pc.is_finite(column.cast(pa.float64())), min_count=0).as_py():
        raise BadRecordError("NaN or infinity, which MySQL and MariaDB do not have; filter or replace it")
    return column


_CONVERSIONS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]] = [
    (pa.types.is_timestamp, lambda column: timestamp_texts(column.view(pa.timestamp(column.type.unit)))),
    (pa.types.is_date, date_texts),
    (pa.types.is_nested, json_texts),
    (pa.types.is_floating, _finite),
    (pa.types.is_decimal, lambda column: column.cast(pa.string())),
    (pa.types.is_time, lambda column: column.cast(pa.string())),
]
