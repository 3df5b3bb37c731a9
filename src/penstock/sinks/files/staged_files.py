"""The files of one transaction of the `Files` sink, from the first row to the manifest. Executors.

    <transaction>/0.staged, 1.staged, ...   the rows
    <transaction>/manifest                  written last: from here on `commit` can be made

Staged files carry no extension of a format, so that even a reader that takes `**/*.parquet` does not see
them. Other users cannot read them; their folders stay open, since readers may walk through all of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path, PurePosixPath

import msgspec
import pyarrow as pa

from penstock.sinks.files.formats import MAX_BUFFERED_BYTES, FileFormat, RowFile
from penstock.sinks.files.partitions import PartitionFolders
from penstock.sinks.staged.staging import StagedTransaction, create_private
from penstock.storage.file_system import sync_file, sync_folder

MANIFEST = "manifest"
MAX_OPEN_FILES = 64


class StagedFile(msgspec.Struct, frozen=True):
    """A staged file, where it goes (relative to the sink's folder), and its size."""

    staged: str
    final: str
    size_bytes: int


class StagedManifest(msgspec.Struct, frozen=True):
    """Everything a transaction moves into place, and the mode that the files get there: until then they are for this user alone."""

    files: list[StagedFile]
    mode: int = 0o644


_MANIFESTS = msgspec.json.Decoder(StagedManifest)


def read_manifest(path: Path) -> StagedManifest:
    """Read a manifest; raises `FileNotFoundError`, or `ValueError` for one that makes no sense."""
    manifest = _MANIFESTS.decode(path.read_bytes())
    for file in manifest.files:
        final = PurePosixPath(file.final)
        if final.is_absolute() or ".." in final.parts or "/" in file.staged or file.staged == "..":
            raise ValueError(f"{path} names a file outside its folder: {file.staged!r} -> {file.final!r}")
    return manifest


def name_prefix(of: StagedTransaction) -> str:
    """How the names of a transaction's files begin, in their final places, and of no other's."""
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
            # The manifest is made as files usually are here, so that its mode is the one that they get in their places.
            usual = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            file.write(msgspec.json.encode(StagedManifest(files, usual)))
        sync_file(manifest)
        sync_folder(self._folder)

    def discard(self) -> None:
        """Close everything, whatever the disk says; what is on it is deleted by `abort`."""
        while self._open:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._close_open_files()

    def _file(self, partition: str, schema: pa.Schema) -> RowFile:
        """Return the open file of a partition; with too many open, the one longest unused is closed."""
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
