"""The files of one transaction of the `Files` sink, from the first row to the manifest. Executors.

    <transaction>/0.staged, 1.staged, ...   the rows
    <transaction>/manifest                  written last: the transaction is then complete

Staged files do not have the extension of their format, so that even a reader of `**/*.parquet` does not see
them. Other users cannot read them, but may list their folders, because readers may walk through all folders.

With `partition_by`, files go to Hive-style folders such as `day=2026-11-02/country=NL`. Names are escaped as in Spark,
so that Spark, pyarrow and DuckDB read the values back. The task checks that files can be moved to these folders, while
the job can still go back. A folder may change before the commit, which then reports it (`staging.commit_errors`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pyarrow as pa

from penstock.errors import BadRecordError, ConfigError
from penstock.sinks.file_formats import MAX_BUFFERED_BYTES, FileFormat, RowFile
from penstock.sinks.json_text import refuse_odd_years
from penstock.sinks.staging import StagedTransaction, create_private
from penstock.state.ddl import spark_type
from penstock.storage.file_system import sync_file, sync_folder

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAME_BYTES = 255
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_ROW_NUMBER = "_penstock_row"


def check_partition_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse columns that cannot become folders."""
    for column in columns:
        if column not in schema.names:
            raise ConfigError(
                f"partition_by names {column!r}, but the columns are {schema.names}", column=column
            )
        if column.startswith(("_", ".")):
            raise ConfigError(
                f"partition_by names {column!r}: readers skip folders that start with '_' or '.'; rename the column",
                column=column,
            )
        data_type = schema.field(column).type
        if not _can_be_a_folder(data_type):
            raise ConfigError(
                f"partition_by names {column!r} of type {spark_type(data_type)}; only strings, whole numbers, booleans and dates "
                "can be folder names; derive such a column",
                column=column,
            )
    if len(columns) == len(schema.names):
        raise ConfigError(
            "partition_by names every column, so none is left for the files; leave at least one out",
            columns=list(columns),
        )


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each folder with its rows, without the columns that are in the folder's name."""
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
            f"a row has {value!r} in column {column!r} (partition_by), which is the folder name for null, so readers would see null; "
            "filter or change such rows before write_to",
            column=column,
            value=value,
        )
    name = f"{_escape(column)}={_escape(value) if value else NULL_VALUE}"
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise BadRecordError(
            f"a row has a {column!r} of {len(value or '')} characters, too long for a folder name "
            f"(partition_by): {(value or '')[:60]!r}...; shorten it, or filter such rows before write_to",
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
    """The folders that rows go to, by the columns `partition_by`; without any, all rows go to `path` itself."""

    def __init__(self, path: Path, partition_by: Sequence[str]) -> None:
        self._path = path
        self.columns = tuple(partition_by)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield each folder with its rows; '' is `path` itself."""
        if not self.columns:
            return iter([("", batch)])
        return split(batch, self.columns)

    def refuse_unreachable(self, final: str) -> None:
        """Refuse a file that could not be moved to its final place: path too long, a file in the way, another file system."""
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
                raise self._refused(final, f"{folder} is on another file system than {self._path}")

    def _refused(self, final: str, why: str) -> BadRecordError:
        return BadRecordError(
            f"the rows of {os.path.dirname(final)[:200]!r} (partition_by) cannot be moved into their folder: {why}; correct this, or "  # noqa: PTH120 - a relative name
            "filter such rows before write_to",
            path=str(self._path / final),
        )


def _folders(path: Path, final: str) -> Iterator[Path]:
    """Yield the folders of a file below `path`, from the top down."""
    for name in final.split("/")[:-1]:
        path /= name
        yield path


MANIFEST = "manifest"
MAX_OPEN_FILES = 64


class StagedFile(msgspec.Struct, frozen=True):
    """A staged file, its final name relative to the sink's folder, and its size."""

    staged: str
    final: str
    size_bytes: int


class StagedManifest(msgspec.Struct, frozen=True):
    """The files of a transaction, and the mode that they get in their final places; until then only this user can read them."""

    files: list[StagedFile]
    mode: int = 0o644


_MANIFESTS = msgspec.json.Decoder(StagedManifest)


def read_manifest(path: Path) -> StagedManifest:
    """Read a manifest; raises `FileNotFoundError`, or `ValueError` for an invalid one."""
    manifest = _MANIFESTS.decode(path.read_bytes())
    for file in manifest.files:
        final = PurePosixPath(file.final)
        if final.is_absolute() or ".." in final.parts or "/" in file.staged or file.staged == "..":
            raise ValueError(f"{path} names a file outside its folder: {file.staged!r} -> {file.final!r}")
    return manifest


def name_prefix(of: StagedTransaction) -> str:
    """Return the beginning of the final names of this transaction's files; no other transaction has it."""
    return f"part-{of.run}-{of.checkpoint}-{of.subtask}-{of.attempt}-{of.token}"


class StagedFiles:
    """Writes the rows of one transaction into `folder`, which exists and is empty."""

    def __init__(
        self,
        transaction: StagedTransaction,
        folder: Path,
        file_format: FileFormat,
        folders: PartitionFolders,
    ) -> None:
        self.transaction = transaction
        self.rows = 0
        self._folder = folder
        self._format = file_format
        self._folders = folders
        self._open: dict[str, RowFile] = {}
        self._finals: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the file of each partition."""
        if batch.num_rows == 0:
            return
        for partition, rows in self._folders.split(batch):
            self._file(partition, rows.schema).write(rows)
        self.rows += batch.num_rows
        if sum(file.buffered_bytes for file in self._open.values()) > MAX_BUFFERED_BYTES:
            for file in self._open.values():
                file.flush()

    def finish(self) -> None:
        """Close everything and make it durable, the manifest last."""
        self._close_open_files()
        files = [self._durable(number, final) for number, final in enumerate(self._finals)]
        manifest = self._folder / MANIFEST
        with manifest.open("wb") as file:
            # The manifest gets the usual mode of new files here, which is also the final mode of the data files.
            usual = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            file.write(msgspec.json.encode(StagedManifest(files, usual)))
        sync_file(manifest)
        sync_folder(self._folder)

    def discard(self) -> None:
        """Close everything and ignore errors; `abort` deletes the files."""
        while self._open:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._close_open_files()

    def _file(self, partition: str, schema: pa.Schema) -> RowFile:
        """Return the open file of a partition; if too many are open, close the least recently used one."""
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            final = self._final_name(partition)
            self._folders.refuse_unreachable(final)
            path = self._folder / f"{len(self._finals)}.staged"
            create_private(path)
            file = self._format.open(path, schema)
            self._finals.append(final)
        self._open[partition] = file
        return file

    def _final_name(self, partition: str) -> str:
        number = f"-{len(self._finals)}" if self._folders.columns else ""
        folder = f"{partition}/" if partition else ""
        return f"{folder}{name_prefix(self.transaction)}{number}.{self._format.extension}"

    def _durable(self, number: int, final: str) -> StagedFile:
        path = self._folder / f"{number}.staged"
        sync_file(path)
        return StagedFile(staged=path.name, final=final, size_bytes=path.stat().st_size)

    def _close_open_files(self) -> None:
        while self._open:
            _, file = self._open.popitem()
            file.close()
