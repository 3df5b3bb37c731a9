"""Arrow columns as PostgreSQL reads them: the rows of a COPY in CSV. Executors; the types also on the driver.

Arrow's writer quotes every text and leaves a null empty, which is how COPY tells '' from NULL. Nested values are JSON;
times with a zone are written in UTC; digits below a microsecond are rounded by the server.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.sinks.json_text import json_texts, timestamp_texts
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
"""What a column becomes. Nulls fit everywhere; text fits whatever the server reads from it, but numbers, booleans, times and bytes."""


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Write the rows of a batch for COPY."""
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
    """An interval in one unit: the server's ISO 8601 reader refuses what others write for negative spans."""
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
"""What CSV cannot carry as it is; numbers, booleans and texts it can."""
