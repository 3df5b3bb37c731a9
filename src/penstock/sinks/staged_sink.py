"""Sinks whose rows wait in a file until their checkpoint completes. Staged in tasks; found, read and deleted on the driver.

    <staging>/<job>/<sink>/<transaction>.arrow      rows, durable before the checkpoint names them
    <staging>/<job>/<sink>/committed/               the log of commits, see `staging`

`StagedSink` leaves the commit to its subclasses. `HandoverSink` commits transactions one by one, in order: it hands the rows over, records
the commit in the log, and deletes the file. After a crash:

    found                     meaning                                                commit
    file, not in the log      not handed over, or handed over and not yet recorded   hand over (again)
    file, in the log          handed over                                            delete the file
    no file, in the log       handed over                                            nothing
    no file, not in the log   aborted, or the file was deleted                       CommitLostError

So one crash repeats at most one transaction, and none is handed over out of order.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError, CommitLostError
from penstock.sinks.staging import (
    PRIVATE_FOLDER,
    CommitLog,
    StagedTransaction,
    check_writable,
    create_private,
    folders_up_to,
    local_path,
    make_private,
    names_in,
    storage_errors,
)
from penstock.sinks.transaction import begun, is_open, lost, refused
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.storage.file_system import sync_file, sync_folder
from penstock.wording import counted

_SUFFIX = ".arrow"


class StagedRows:
    """Writes the file of one transaction. The file exists from the beginning, so that the transaction can be found and aborted."""

    def __init__(self, transaction: StagedTransaction, path: Path) -> None:
        self.transaction = transaction
        self.path = path
        self.rows = 0
        create_private(path)
        self._file: IO[bytes] = path.open("wb")
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the file."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Close the file and make it durable; without rows it stays empty."""
        if self._writer is not None:
            self._writer.close()
        self._file.close()
        sync_file(self.path)

    def discard(self) -> None:
        """Close the file and ignore errors; `abort` deletes it."""
        with contextlib.suppress(OSError):
            self._file.close()


class StagedSink(TwoPhaseCommitSink):
    """A sink without its commit. `staging` is a folder that the driver and all executors share."""

    def __init__(self, staging: str | os.PathLike[str]) -> None:
        self.staging = local_path("staging", staging)
        self._writing: StagedRows | None = None

    def staged_form(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are staged. A sink refuses here, in the task, what its target would refuse."""
        return batch

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse the rows that `staged_form` refuses."""
        self.staged_form(batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None}

    def validate(self, schema: pa.Schema) -> None:  # noqa: ARG002 - an Arrow file holds every column
        """Refuse a folder that cannot be written."""
        check_writable(self.staging, f"the staging folder {self.staging}", mode=PRIVATE_FOLDER)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Create the staged file of one attempt."""
        transaction = StagedTransaction.begin(context)
        path = self._path(transaction)
        with storage_errors("stage rows in", path):
            make_private(path.parent, self.staging)
            self._writing = StagedRows(transaction, path)
        return transaction.as_transaction()

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows to the staged file."""
        writing = self._begun(transaction)
        if batch.num_rows:
            kept = self.staged_form(batch)
            with storage_errors("write to", writing.path):
                writing.write(kept)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Close and sync the file, and every folder above it that may be new."""
        writing = self._begun(transaction)
        with storage_errors("make durable", writing.path):
            writing.finish()
            for folder in folders_up_to(writing.path.parent, self.staging):
                sync_folder(folder)
        self._writing = None
        return msgspec.structs.replace(writing.transaction, rows=writing.rows).as_transaction()

    def abort(self, transaction: Transaction) -> None:
        """Delete the staged file; nothing else exists before a commit."""
        target = StagedTransaction.read(transaction)
        if self._writing is not None and is_open(self._writing, target):
            self._writing.discard()
            self._writing = None
        self.delete_staged(target)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List the staged files that are left, without those that are committed."""
        folder = self.staging / job / sink
        with storage_errors("list", folder):
            names = [name.removesuffix(_SUFFIX) for name in names_in(folder) if name.endswith(_SUFFIX)]
        found = [parsed for name in names if (parsed := StagedTransaction.parse(job, sink, name)) is not None]
        committed = self.committed_of(job, sink, found)
        return [each.as_transaction() for each in found if each.name not in committed]

    def committed_of(self, job: str, sink: str, found: Sequence[StagedTransaction]) -> set[str]:
        """Return the names of the committed transactions among `found`."""
        return {each.name for each in self.log(job, sink).committed(found)}

    @override
    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        return self.log(job, sink).newest()

    def log(self, job: str, sink: str) -> CommitLog:
        """Return the log of this sink's commits."""
        return CommitLog(self.staging / job / sink / "committed")

    def staged_rows(self, transaction: StagedTransaction) -> pa.Table | None:
        """Return the staged rows, mapped into memory, or None if there are none. There must be as many as `pre_commit` counted."""
        path = self._path(transaction)
        with storage_errors("read", path):
            try:
                empty = path.stat().st_size == 0
                table = None if empty else pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            except FileNotFoundError:
                raise self._lost(transaction, "it is neither staged nor recorded as committed") from None
            except pa.ArrowInvalid as error:
                raise self._lost(transaction, f"its staged file {path} is damaged ({error})") from error
        rows = 0 if table is None else table.num_rows
        if transaction.rows is not None and rows != transaction.rows:
            raise self._lost(transaction, f"its staged file {path} holds {counted(rows, 'row')}")
        return table

    def delete_staged(self, transaction: StagedTransaction) -> None:
        """Delete the file, if it is still there."""
        with storage_errors("delete", self._path(transaction)):
            self._path(transaction).unlink(missing_ok=True)

    def _path(self, transaction: StagedTransaction) -> Path:
        return self.staging / transaction.job / transaction.sink / (transaction.name + _SUFFIX)

    def _begun(self, transaction: Transaction) -> StagedRows:
        return begun(self, self._writing, transaction)

    def _lost(self, transaction: StagedTransaction, why: str) -> CommitLostError:
        look = f"Look for its file below {self.staging}; if staging was changed, start the job once with the old one"
        return lost(transaction, where=repr(self), why=why, look=look, staging=str(self.staging))


class HandoverSink(StagedSink):
    """Commits transactions one by one, in order; subclasses implement `hand_over`."""

    @abstractmethod
    def hand_over(self, rows: pa.Table, transaction: StagedTransaction) -> None:
        """Write the rows of one transaction to the target; may be called again for the same transaction. Driver only."""

    def commit(self, transaction: Transaction) -> None:
        """Hand the rows over, unless the log has the transaction."""
        staged = StagedTransaction.read(transaction)
        log = self.log(staged.job, staged.sink)
        if not log.committed([staged]):
            rows = self.staged_rows(staged)
            if rows is not None:
                self._hand_over(rows, staged)
            log.append([staged])
        self.delete_staged(staged)

    def _hand_over(self, rows: pa.Table, staged: StagedTransaction) -> None:
        """Hand rows over. A checkpoint promised them, so a row that the target refuses stops every start of the job."""
        try:
            self.hand_over(rows, staged)
        except BadRecordError as error:
            raise refused(
                staged,
                where=repr(self),
                cause=error,
                kept=f"Its rows stay staged below {self.staging}",
                repair="Change the target so that it takes them",
                staging=str(self.staging),
            ) from error
