"""Hive-style folders: `day=2026-11-02/country=NL`. Executors (and `check`: driver).

Names are escaped as Spark does it, so that Spark, pyarrow and DuckDB read the values back.

The folders below a sink's path into which a commit will move files: looked at in the task, while the job can go back. Executors.

A look is no promise. A folder may change until the commit, which then says so itself (`staging.commit_errors`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.errors import BadRecordError, ConfigError
from penstock.sinks.json_text import refuse_odd_years
from penstock.state.ddl import spark_type

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


class PartitionFolders:
    """Where rows go, by the columns `partition_by`; without any all go to `path` itself."""

    def __init__(self, path: Path, partition_by: Sequence[str]) -> None:
        self._path = path
        self.columns = tuple(partition_by)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each folder; '' is `path` itself."""
        if not self.columns:
            return iter([("", batch)])
        return split(batch, self.columns)

    def refuse_unreachable(self, final: str) -> None:
        """Refuse a file that could not be moved to its place: the path too long, a file in its way, another file system."""
        target = self._path / final
        longest = os.pathconf(self._path, "PC_PATH_MAX") - 1
        if len(os.fsencode(target)) > longest:
            raise self._refused(final, f"its path would have more than {longest} bytes")
        top = self._path.stat()
        for folder in _folders(self._path, final):
            try:
                found = folder.stat()
            except FileNotFoundError:
                return
            except OSError as error:
                raise self._refused(final, str(error)) from error
            if not stat.S_ISDIR(found.st_mode):
                raise self._refused(final, f"{folder} is not a folder")
            if found.st_dev != top.st_dev:
                raise self._refused(final, f"{folder} lies on another file system than {self._path}")

    def _refused(self, final: str, why: str) -> BadRecordError:
        return BadRecordError(
            f"the rows of {os.path.dirname(final)[:200]!r} (partition_by) could not be moved into their folder: {why}; put that right, or "  # noqa: PTH120 - a relative name
            "filter such rows before write_to",
            path=str(self._path / final),
        )


def _folders(path: Path, final: str) -> Iterator[Path]:
    """From the top down."""
    for name in final.split("/")[:-1]:
        path /= name
        yield path
