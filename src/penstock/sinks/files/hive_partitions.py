"""Hive-style folders: `day=2026-11-02/country=NL`. Executors (and `check`: driver).

Names are escaped as Spark does it, so that Spark, pyarrow and DuckDB read the values back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.errors import BadRecordError, ConfigError
from penstock.sinks.json_text import refuse_odd_years
from penstock.state.types import spark_type

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAME_BYTES = 255
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_ROW_NUMBER = "_penstock_row"


def check(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse columns that cannot become folders."""
    for column in columns:
        if column not in schema.names:
            raise ConfigError(
                f"partition_by names {column!r}, but the columns are {schema.names}", column=column
            )
        if column.startswith(("_", ".")):
            raise ConfigError(
                f"partition_by names {column!r}: readers skip folders that start with '_' or '.'; rename "
                "the column",
                column=column,
            )
        data_type = schema.field(column).type
        if not _can_be_a_folder(data_type):
            raise ConfigError(
                f"partition_by names {column!r} of type {spark_type(data_type)}; only strings, whole numbers, booleans "
                "and dates "
                "make folders: derive such a column",
                column=column,
            )
    if len(columns) == len(schema.names):
        raise ConfigError(
            "partition_by names every column: no column would be left for the files", columns=list(columns)
        )


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each folder with its rows; the columns of the folder's name are left out of the rows."""
    refuse_odd_years(batch.select(list(columns)))
    rest = batch.select([name for name in batch.schema.names if name not in columns])
    rows = pa.array(range(batch.num_rows), pa.int64())
    keys = pa.table({**{column: batch.column(column) for column in columns}, _ROW_NUMBER: rows})
    groups = keys.group_by(list(columns), use_threads=False).aggregate([(_ROW_NUMBER, "list")])
    members = groups.column(f"{_ROW_NUMBER}_list").combine_chunks()
    texts = [groups.column(column).cast(pa.string()).to_pylist() for column in columns]
    for index, values in enumerate(zip(*texts, strict=True)):
        folder = "/".join(_folder_name(column, value) for column, value in zip(columns, values, strict=True))
        yield folder, rest.take(members[index].values)


def _folder_name(column: str, value: str | None) -> str:
    if value == NULL_VALUE:
        raise BadRecordError(
            f"a row has {value!r} in column {column!r} (partition_by): that is the folder of null, so readers would find null; "
            "filter or change such rows before write_to",
            column=column,
            value=value,
        )
    name = f"{_escape(column)}={_escape(value) if value else NULL_VALUE}"
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise BadRecordError(
            f"a row has a {column!r} of {len(value or '')} characters, too long for a folder name "
            f"(partition_by): {(value or '')[:60]!r}...",
            column=column,
            value=value,
        )
    return name


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _can_be_a_folder(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_date(data_type)
    )
