"""Arrow columns as MySQL and MariaDB read them: texts and numbers of an INSERT. Executors; the types also on the driver.

A time with a zone is written in UTC, as is the session; nested values are JSON. The servers hold neither NaN nor infinity:
a row with one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.sinks.bad_rows import row_at, shown_row
from penstock.sinks.json_text import json_texts, timestamp_texts
from penstock.sinks.sql.values import (
    Conversions,
    Kind,
    SqlType,
    as_text,
    converted,
    date_texts,
    kind_of,
    sql_type,
)
from penstock.state.types import spark_type

_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TYPES = {
    Kind.WHOLE: sql_type("bigint", "tinyint", "smallint", "mediumint", "int", "bigint", "decimal"),
    Kind.SINGLE: sql_type("float", "float", "double"),
    Kind.DOUBLE: sql_type("double", "double"),
    Kind.BOOLEAN: sql_type("boolean", "tinyint"),
    Kind.DATE: sql_type("date", "date"),
    Kind.TIME: sql_type("time(6)", "time"),
    Kind.LOCAL_TIMESTAMP: sql_type("datetime(6)", "datetime"),
    Kind.INSTANT: sql_type("datetime(6)", "datetime", "timestamp"),
    Kind.BYTES: sql_type("longblob", *_BYTES),
    Kind.NESTED: sql_type("json", *_TEXTS),
    Kind.NULL: sql_type("longtext"),
    Kind.TEXT: sql_type("longtext", *_TEXTS, "enum", "set", "uuid", "inet4", "inet6"),
}


def type_for(data_type: pa.DataType) -> SqlType | None:
    """Say what a column becomes; None if there is nothing for it. Nulls fit everywhere."""
    if pa.types.is_dictionary(data_type):
        return type_for(data_type.value_type)
    if pa.types.is_decimal(data_type):
        return sql_type(f"decimal({data_type.precision}, {data_type.scale})", "decimal")
    return _TYPES.get(kind_of(data_type))


def python_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Give the rows of a batch as values that have a literal in SQL."""
    columns = converted(batch, _CONVERSIONS, "the server")
    return zip(
        *(_values(name, column, batch) for name, column in zip(batch.schema.names, columns, strict=True)),
        strict=True,
    )


def _values(name: str, column: pa.Array, batch: pa.RecordBatch) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise _no_text(batch.schema.field(name), batch) from error
    return values


def _no_text(field: pa.Field, batch: pa.RecordBatch) -> BadRecordError:
    """Name the row with a text that is no UTF-8: Spark takes any bytes for one in `CAST(binary AS STRING)`."""
    rows = (row_at(batch, index) for index in range(batch.num_rows))
    row = next(row for row in rows if isinstance(row[field.name], bytes))
    return BadRecordError(
        f"column {field.name!r} of type {spark_type(field.type)} holds bytes that are no UTF-8; the row is {shown_row(row)}; filter or "
        "repair such rows before write_to, or keep the column binary",
        column=field.name,
        row=row,
    )


def _finite(column: pa.Array) -> pa.Array:
    if not pc.all(pc.is_finite(column.cast(pa.float64())), min_count=0).as_py():
        raise BadRecordError("NaN or infinity, which MySQL and MariaDB do not have; filter or replace it")
    return column


def _local_texts(column: pa.Array) -> pa.Array:
    """Times without their zone, which is UTC in the session."""
    return timestamp_texts(column.view(pa.timestamp(column.type.unit)))


_CONVERSIONS: Conversions = {
    Kind.LOCAL_TIMESTAMP: _local_texts,
    Kind.INSTANT: _local_texts,
    Kind.DATE: date_texts,
    Kind.NESTED: json_texts,
    Kind.SINGLE: _finite,
    Kind.DOUBLE: _finite,
    Kind.DECIMAL: as_text,
    Kind.TIME: as_text,
}
