"""The sink `Files`: Parquet, JSON lines or CSV in a folder. Written in tasks, moved into place on the driver.

    <path>/part-<run>-<checkpoint>-<subtask>-<attempt>-<token>.parquet   what readers see
    <path>/_penstock/<job>/<sink>/<transaction>/                         staged, see `staged_files`
    <path>/_penstock/<job>/<sink>/committed/                             the log of commits, see `staging`

A commit is: rename `manifest` to `moving`; rename each staged file into place; sync the folders; write the
commit log; remove `moving` and the staging folder. After a crash:

    found                               meaning                   commit           abort
    manifest, all files staged          not begun                 move             delete
    moving, some files staged           half moved                go on            take the moved ones back
    moving, none staged, no log entry   all moved, not recorded   record it        take them back
    log entry, `moving` or folder left  committed                 tidy up          tidy up, touch no output
    log entry, nothing left             committed                 nothing to do    nothing to do
    no folder, no log entry             never staged, or aborted  CommitLostError  nothing to do

Once `moving` exists, a missing staged file has been moved. If it is not in its final place either, a
compaction or a person has removed it, which they may do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.errors import CommitLostError, ConfigError
from penstock.sinks.file_formats import file_format
from penstock.sinks.staged_files import (
    MANIFEST,
    PartitionFolders,
    StagedFiles,
    StagedManifest,
    check_partition_columns,
    read_manifest,
)
from penstock.sinks.staging import (
    CommitLog,
    StagedTransaction,
    check_writable,
    commit_errors,
    folders_up_to,
    local_path,
    names_in,
    storage_errors,
)
from penstock.sinks.transaction import begun, is_open, lost
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.storage.file_system import sync_folder

_READ_AND_WRITE = 0o666
_HIDDEN = "_penstock"
MOVING = "moving"
_ABORTED = ".aborted"


class Files(TwoPhaseCommitSink):
    """Writes files to a folder that any reader can list; each file appears complete.

    `path` is a folder on a file system that the driver and all executors share. `format` is "parquet"
    (options `compression`, `row_group_rows`), "json" (one object per line) or "csv" (options `delimiter`,
    `header`). `partition_by` puts rows into Hive-style folders; the files of one commit then appear one
    after the other.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",  # noqa: A002 - the word that Spark uses for it
        *,
        partition_by: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.path = local_path("path", path)
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self.format = file_format(format, options)
        self._writing: StagedFiles | None = None

    def __repr__(self) -> str:
        return f"Files({str(self.path)!r}, format={self.format.extension!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None}

    def validate(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot hold, and a folder that cannot be written."""
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"columns appear more than once: {repeated}; rename them before write_to", columns=repeated
            )
        if self.partition_by:
            check_partition_columns(schema, self.partition_by)
        self.format.check(pa.schema([field for field in schema if field.name not in self.partition_by]))
        called = f"the folder {self.path} of a {type(self).__name__} sink"
        check_writable(self.path / _HIDDEN, called, below=self.path.parent)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Create the staging folder of one attempt."""
        transaction = StagedTransaction.begin(context)
        folder = self._staging(transaction)
        with storage_errors("stage files in", folder):
            folder.mkdir(parents=True)
        self._writing = StagedFiles(
            transaction, folder, self.format, PartitionFolders(self.path, self.partition_by)
        )
        return transaction.as_transaction()

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows to the staged files."""
        writing = self._begun(transaction)
        with storage_errors("write to", self._staging(writing.transaction)):
            writing.write(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Close and sync the files, and every folder above them that may be new."""
        writing = self._begun(transaction)
        folder = self._staging(writing.transaction)
        with storage_errors("make durable", folder):
            writing.finish()
            for above in folders_up_to(folder.parent, self.path):
                sync_folder(above)
        self._writing = None
        return msgspec.structs.replace(writing.transaction, rows=writing.rows).as_transaction()

    def commit(self, transaction: Transaction) -> None:
        """Move the files into place, once."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Move the files of all transactions, then sync each folder and write the log once."""
        moved: dict[StagedTransaction, StagedManifest] = {}
        folders: set[Path] = set()
        for transaction in map(StagedTransaction.read, transactions):
            manifest = self._claim(transaction)
            if manifest is not None:
                with commit_errors("move files into", self.path):
                    folders |= self._move(transaction, manifest)
                moved[transaction] = manifest
        with storage_errors("make durable", self.path):
            for folder in folders:
                sync_folder(folder)
        self._publish(moved)
        for (job, sink), members in _by_owner(moved).items():
            self._log(job, sink).append(members)
        for transaction in moved:
            self._tidy(transaction)

    def abort(self, transaction: Transaction) -> None:
        """Delete the staged files, and the files that an unfinished commit has moved."""
        target = StagedTransaction.read(transaction)
        if self._writing is not None and is_open(self._writing, target):
            self._writing.discard()
            self._writing = None
        folder = self._staging(target)
        aborted = folder.with_name(folder.name + _ABORTED)
        with storage_errors("delete", folder):
            self._take_back(target)
            if folder.exists():
                folder.rename(aborted)  # so that no commit takes a half deleted folder for a complete one
            if aborted.exists():
                shutil.rmtree(aborted)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List the remaining staging folders, including half aborted ones, except those that the log has as committed."""
        with storage_errors("list", self._owner(job, sink)):
            names = names_in(self._owner(job, sink))
        found = [StagedTransaction.parse(job, sink, name.removesuffix(_ABORTED)) for name in names]
        unfinished = {transaction for transaction in found if transaction is not None}
        unfinished -= self._log(job, sink).committed(unfinished)
        return [
            each.as_transaction()
            for each in sorted(unfinished, key=lambda each: (each.run, each.checkpoint, each.name))
        ]

    @override
    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        return self._log(job, sink).newest()

    def _publish(self, moved: Mapping[StagedTransaction, StagedManifest]) -> None:
        """Announce files that are durable in their final places. Plain files need nothing: readers list the folder."""

    def _owner(self, job: str, sink: str) -> Path:
        return self.path / _HIDDEN / job / sink

    def _staging(self, transaction: StagedTransaction) -> Path:
        return self._owner(transaction.job, transaction.sink) / transaction.name

    def _log(self, job: str, sink: str) -> CommitLog:
        return CommitLog(self._owner(job, sink) / "committed")

    def _is_recorded(self, transaction: StagedTransaction) -> bool:
        return bool(self._log(transaction.job, transaction.sink).committed([transaction]))

    def _begun(self, transaction: Transaction) -> StagedFiles:
        return begun(self, self._writing, transaction)

    def _claim(self, transaction: StagedTransaction) -> StagedManifest | None:
        """Begin or resume the move; None if an earlier commit finished it."""
        folder = self._staging(transaction)
        with storage_errors("read", folder):
            try:
                if (folder / MANIFEST).exists():
                    _check_sizes(folder, read_manifest(folder / MANIFEST))
                    (folder / MANIFEST).rename(folder / MOVING)
                return read_manifest(folder / MOVING)
            except FileNotFoundError:
                if not self._is_recorded(transaction):
                    raise self._lost(transaction, "it is neither staged nor recorded as committed") from None
            except ValueError as error:
                raise self._lost(transaction, str(error)) from error
        self._tidy(transaction)
        return None

    def _move(self, transaction: StagedTransaction, manifest: StagedManifest) -> set[Path]:
        """Move each file to its final place; returns the folders to sync."""
        folders: set[Path] = set()
        for file in manifest.files:
            source, target = self._staging(transaction) / file.staged, self.path / file.final
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.chmod(manifest.mode & _READ_AND_WRITE)
                source.rename(target)
            if target.parent.exists():
                folders.update(folders_up_to(target.parent, self.path))
        return folders

    def _take_back(self, transaction: StagedTransaction) -> None:
        try:
            manifest = read_manifest(self._staging(transaction) / MOVING)
        except (FileNotFoundError, ValueError):
            return
        if not self._is_recorded(transaction):
            for file in manifest.files:
                (self.path / file.final).unlink(missing_ok=True)

    def _tidy(self, transaction: StagedTransaction) -> None:
        """Remove the remains of a recorded commit, but never a file with rows."""
        folder = self._staging(transaction)
        with storage_errors("tidy up", folder):
            (folder / MOVING).unlink(missing_ok=True)
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def _lost(self, transaction: StagedTransaction, why: str) -> CommitLostError:
        look = (
            f"Look for its files below {self._owner(transaction.job, transaction.sink)}; if the sink's path was changed, start the job "
            "once with the old path"
        )
        return lost(transaction, where=self.path, why=why, look=look, path=str(self.path))


def _check_sizes(folder: Path, manifest: StagedManifest) -> None:
    for file in manifest.files:
        path = folder / file.staged
        size = path.stat().st_size if path.exists() else None
        if size != file.size_bytes:
            raise ValueError(f"{path} should have {file.size_bytes} bytes but has {size}")


def _by_owner(transactions: Iterable[StagedTransaction]) -> dict[tuple[str, str], list[StagedTransaction]]:
    owners: dict[tuple[str, str], list[StagedTransaction]] = {}
    for transaction in transactions:
        owners.setdefault((transaction.job, transaction.sink), []).append(transaction)
    return owners
