"""Arrow columns as literals of an INSERT for MySQL and MariaDB. Executors; types also on the driver.

A time with a zone is written in UTC, the zone of the session; nested values are JSON. The servers store neither NaN nor infinity:
a row with one is refused.

Values that MySQL and MariaDB would silently change are refused before they are sent:

    enum        a text that is a number but not a member selects the member at that position; case is changed to that of the member
    set         the same; members are put in order
    char        spaces at the end are dropped
    binary(n)   shorter values are filled with zero bytes

For other changes, such as spaces beyond a varchar(n), the server sends a note, see `MySQLWriting`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.sinks.bad_rows import Change, row_at, shown_row
from penstock.sinks.json_text import json_texts, timestamp_texts
from penstock.sinks.sql.table import Column
from penstock.sinks.sql.values import (
    Conversions,
    SqlType,
    ValueKind,
    as_text,
    converted,
    date_texts,
    kind_of,
    plain_texts,
    sql_type,
)
from penstock.state.ddl import spark_type

_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TYPES = {
    ValueKind.WHOLE: sql_type("bigint", "tinyint", "smallint", "mediumint", "int", "bigint", "decimal"),
    ValueKind.SINGLE: sql_type("float", "float", "double"),
    ValueKind.DOUBLE: sql_type("double", "double"),
    ValueKind.BOOLEAN: sql_type("boolean", "tinyint"),
    ValueKind.DATE: sql_type("date", "date"),
    ValueKind.TIME: sql_type("time(6)", "time"),
    ValueKind.LOCAL_TIMESTAMP: sql_type("datetime(6)", "datetime"),
    ValueKind.INSTANT: sql_type("datetime(6)", "datetime", "timestamp"),
    ValueKind.BYTES: sql_type("longblob", *_BYTES),
    ValueKind.NESTED: sql_type("json", *_TEXTS),
    ValueKind.NULL: sql_type("longtext"),
    ValueKind.TEXT: sql_type("longtext", *_TEXTS, "enum", "set", "uuid", "inet4", "inet6"),
}


def type_for(data_type: pa.DataType) -> SqlType | None:
    """Return the type for a column; None if there is none. Nulls fit everywhere."""
    if pa.types.is_dictionary(data_type):
        return type_for(data_type.value_type)
    if pa.types.is_decimal(data_type):
        return sql_type(f"decimal({data_type.precision}, {data_type.scale})", "decimal")
    return _TYPES.get(kind_of(data_type))


def python_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a batch as values that have a literal in SQL."""
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
    """The error for a text that is not UTF-8, with its row. Spark accepts any bytes in `CAST(binary AS STRING)`."""
    rows = (row_at(batch, index) for index in range(batch.num_rows))
    row = next(row for row in rows if isinstance(row[field.name], bytes))
    return BadRecordError(
        f"column {field.name!r} of type {spark_type(field.type)} holds bytes that are not UTF-8; the row is {shown_row(row)}; filter or "
        "repair such rows before write_to, or keep the column binary",
        column=field.name,
        row=row,
    )


def _finite(column: pa.Array) -> pa.Array:
    if not pc.all(pc.is_finite(column.cast(pa.float64())), min_count=0).as_py():
        raise BadRecordError("MySQL and MariaDB have neither NaN nor infinity")
    return column


def _local_texts(column: pa.Array) -> pa.Array:
    """Format times without their zone; the session uses UTC."""
    return timestamp_texts(column.view(pa.timestamp(column.type.unit)))


_CONVERSIONS: Conversions = {
    ValueKind.LOCAL_TIMESTAMP: _local_texts,
    ValueKind.INSTANT: _local_texts,
    ValueKind.DATE: date_texts,
    ValueKind.NESTED: json_texts,
    ValueKind.SINGLE: _finite,
    ValueKind.DOUBLE: _finite,
    ValueKind.DECIMAL: as_text,
    ValueKind.TIME: as_text,
}


_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_ESCAPES = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r"}


def changed_values(batch: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[Change]:
    """Yield the values that the server would change."""
    for values, column in zip(batch.columns, columns, strict=True):
        texts = plain_texts(values) if column.type in {"char", "enum", "set"} else None
        if column.type == "binary":
            size = int(re.sub(r"\D", "", column.declared) or 1)
            short = pc.less(pc.binary_length(values.cast(pa.large_binary())), size)
            yield column.name, short, f"{column.declared} fills shorter values with zero bytes"
        elif texts is not None and column.type == "char":
            yield (
                column.name,
                pc.ends_with(texts, " "),
                f"{column.declared} does not keep spaces at the end of a text",
            )
        elif texts is not None:
            yield column.name, _strangers(texts, column), f"not exactly a value of {column.declared}"


def members(declared: str) -> list[str]:
    """Return the members of an enum or a set, from its declaration in the catalogue."""
    return [_ESCAPES.sub(_plain, found) for found in _MEMBER.findall(declared)]


def _plain(found: re.Match[str]) -> str:
    return "'" if found[1] is None else _ESCAPED.get(found[1], found[1])


def _strangers(texts: pa.Array, column: Column) -> pa.Array:
    known = members(column.declared)
    different = pc.unique(texts).drop_null()
    wrong = [text for text in different.to_pylist() if not _is_value(text, known, column.type)]
    return pc.is_in(texts, value_set=pa.array(wrong, texts.type))


def _is_value(text: str, known: Sequence[str], kind: str) -> bool:
    """Return whether a text is a member of an enum, or a value of a set: members in the order of the declaration, each once."""
    if kind == "enum" or not text:
        return text in known or (kind == "set" and not text)
    chosen = set(text.split(","))
    return text == ",".join(member for member in known if member in chosen)
