"""The sink `SQLite`: rows in a table of a database file. Staged in tasks, inserted on the driver.

    <path>                                              the database, with a record of each commit in it
    <path>.penstock/<job>/<sink>/<transaction>.arrow    staged rows, already in the form that SQLite stores

A commit is ONE SQLite transaction that inserts the rows and the record (see `database`); then the
staged file is deleted. What a crash leaves is one of: staged and not recorded (commit inserts), recorded
and still staged (commit deletes the file), recorded and not staged (done), neither (`CommitLostError`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import BadRecordError, CommitLostError, ConfigError, InternalError
from penstock.sinks.sqlite import database as sqlite_database
from penstock.sinks.sqlite.table import TargetTable
from penstock.sinks.sqlite.values import storage_batch
from penstock.sinks.staged.rows import StagedRows
from penstock.sinks.staged.staging import (
    StagedTransaction,
    folders_up_to,
    local_path,
    storage_errors,
    sync_folder,
)
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_SUFFIX = ".arrow"
_SHOWN_CHARACTERS = 500


class SQLite(TwoPhaseCommitSink):
    """A table of a SQLite database; a reader sees all rows of a commit at once.

    `mode="append"` inserts. `mode="upsert"` replaces the row that has the same values in the columns `key`.
    A missing table is created by the first commit. The driver and all executors share the folder
    `<path>.penstock`; only the driver opens the database.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        mode: str = "append",
        key: Sequence[str] | None = None,
        *,
        busy_timeout_s: float = 10.0,
    ) -> None:
        self.path = local_path("path", path)
        self.mode = _checked_mode(mode, key)
        self.table = TargetTable(_checked_table(table), [key] if isinstance(key, str) else list(key or ()))
        self.busy_timeout_s = busy_timeout_s
        self._never_null: tuple[str, ...] = self.table.key
        self._writing: StagedRows | None = None

    def __repr__(self) -> str:
        return f"SQLite({str(self.path)!r}, table={self.table.name!r}, mode={self.mode!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None}

    def validate(self, schema: pa.Schema) -> None:
        """Compare with the table if there is one; SQLite itself compiles the statements, without a change."""
        self.table.check_columns(schema)
        self._check_folders()
        with (
            sqlite_database.config_errors(self.path),
            sqlite_database.existing(self.path, self.busy_timeout_s) as database,
        ):
            not_null = self.table.check_existing(database, schema)
            database.execute("BEGIN")
            database.execute(self.table.create_sql(schema))
            database.execute(f"EXPLAIN {self.table.insert_sql(schema.names)}", [None] * len(schema.names))
            database.execute("ROLLBACK")
        refusing = {name.lower() for name in (*not_null, *self.table.key)}
        self._never_null = tuple(name for name in schema.names if name.lower() in refusing)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Create the staged file of one attempt."""
        transaction = StagedTransaction.begin(context)
        path = self._staging(transaction)
        with storage_errors("stage rows in", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writing = StagedRows(transaction, path)
        return transaction.as_transaction()

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows; a NULL that the table would refuse at commit is refused while the job can go back."""
        writing = self._begun(transaction)
        if batch.num_rows == 0:
            return
        rows = storage_batch(batch)
        self._refuse_nulls(rows)
        with storage_errors("write to", writing.path):
            writing.write(rows)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Close and sync the file, and every folder above it that may be new."""
        writing = self._begun(transaction)
        with storage_errors("make durable", writing.path):
            writing.finish()
            for folder in folders_up_to(writing.path.parent, self.path.parent):
                sync_folder(folder)
        self._writing = None
        return msgspec.structs.replace(writing.transaction, rows=writing.rows).as_transaction()

    def commit(self, transaction: Transaction) -> None:
        """Insert the rows, once."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Insert the rows of all in one SQLite transaction: they become visible at the same moment."""
        staged = [StagedTransaction.read(transaction) for transaction in transactions]
        if not staged:
            return
        with (
            sqlite_database.commit_errors(self.path, self._staging_folder),
            sqlite_database.write_transaction(self.path, self.busy_timeout_s) as database,
        ):
            for transaction in staged:
                self._insert_once(database, transaction)
        with storage_errors("tidy up", self._staging_folder):
            sync_folder(self.path.parent)  # the database may be new; only then may the staged rows go
            for transaction in staged:
                self._staging(transaction).unlink(missing_ok=True)

    def abort(self, transaction: Transaction) -> None:
        """Delete the staged file; nothing else exists before a commit."""
        target = StagedTransaction.read(transaction)
        if self._writing is not None and self._writing.transaction.name == target.name:
            self._writing.discard()
            self._writing = None
        with storage_errors("delete", self._staging(target)):
            self._staging(target).unlink(missing_ok=True)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List the staged files that are left, without those whose commit is recorded."""
        folder = self._staging_folder / job / sink
        with storage_errors("list", folder):
            names = sorted(path.stem for path in folder.glob(f"*{_SUFFIX}")) if folder.exists() else []
        found = [parsed for name in names if (parsed := StagedTransaction.parse(job, sink, name)) is not None]
        if not found:
            return []
        with (
            sqlite_database.commit_errors(self.path, self._staging_folder),
            sqlite_database.existing(self.path, self.busy_timeout_s) as database,
        ):
            return [
                each.as_transaction() for each in found if not sqlite_database.is_recorded(database, each)
            ]

    @property
    def _staging_folder(self) -> Path:
        return self.path.with_name(self.path.name + ".penstock")

    def _staging(self, transaction: StagedTransaction) -> Path:
        return self._staging_folder / transaction.job / transaction.sink / (transaction.name + _SUFFIX)

    def _begun(self, transaction: Transaction) -> StagedRows:
        name = StagedTransaction.read(transaction).name
        if self._writing is None or self._writing.transaction.name != name:
            raise InternalError(
                f"{self!r} was asked to write to {name}, which it did not begin", transaction=name
            )
        return self._writing

    def _refuse_nulls(self, rows: pa.RecordBatch) -> None:
        for name in self._never_null:
            column = rows.column(name)
            if column.null_count:
                first = column.is_null().to_pylist().index(True)
                raise BadRecordError(
                    f"column {name!r} of table {self.table.name!r} refuses NULL, but here is a row with it: "
                    f"{_shown(rows.slice(first, 1).to_pylist()[0])}; filter or fill such rows before "
                    "write_to",
                    table=self.table.name,
                    column=name,
                )

    def _insert_once(self, database: sqlite3.Connection, transaction: StagedTransaction) -> None:
        if sqlite_database.is_recorded(database, transaction):
            return
        path = self._staging(transaction)
        try:
            with storage_errors("read", path):
                rows = self._insert(database, path) if path.exists() else None
        except pa.ArrowInvalid as error:
            raise self._lost(transaction, f"its staged file {path} is damaged ({error})") from error
        if rows is None:
            raise self._lost(transaction, "it is neither staged nor recorded as committed")
        if transaction.rows is not None and rows != transaction.rows:
            raise self._lost(transaction, f"its staged file {path} holds {rows} rows")
        sqlite_database.record(database, transaction, rows)

    def _insert(self, database: sqlite3.Connection, path: Path) -> int:
        """Insert the rows of a staged file; returns how many."""
        if path.stat().st_size == 0:
            return 0
        count = 0
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            database.execute(self.table.create_sql(reader.schema))
            statement = self.table.insert_sql(reader.schema.names)
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                rows = _Remembering(zip(*(column.to_pylist() for column in batch.columns), strict=True))
                try:
                    database.executemany(statement, rows)
                except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                    row = dict(zip(reader.schema.names, rows.last, strict=True))
                    raise self._refused(row, path, error) from error
                count += batch.num_rows
        return count

    def _check_folders(self) -> None:
        try:
            self._staging_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the folder {self._staging_folder} of a SQLite sink cannot be made: {error}; "
                "give this user the right to write beside the database",
                path=str(self._staging_folder),
            ) from error
        for path in (self.path, self.path.parent, self._staging_folder):
            if path.exists() and not os.access(path, os.W_OK):
                raise ConfigError(f"{path} of a SQLite sink is not writable by this user", path=str(path))

    def _refused(self, row: dict[str, Any], path: Path, error: sqlite3.Error) -> CommitLostError:
        return CommitLostError(
            f"a row cannot be committed to table {self.table.name!r} of {self.path}: {error}; the row is "
            f"{_shown(row)}. Nothing of this commit was kept, its rows stay staged in {path}. Remove the "
            "row in the table "
            "that it collides with, or the constraint, then start the job again: it commits them first",
            table=self.table.name,
            row=row,
            cause=str(error),
        )

    def _lost(self, transaction: StagedTransaction, why: str) -> CommitLostError:
        return CommitLostError(
            f"transaction {transaction.name} cannot be committed to table {self.table.name!r} of "
            f"{self.path}: {why}. "
            f"A completed checkpoint promised its {transaction.rows} rows, so they are missing from the "
            "table. Look for its "
            f"file below {self._staging_folder}; if the sink's path was changed, start the job once with "
            "the old path; "
            "otherwise restore an older checkpoint",
            transaction=transaction.name,
            path=str(self.path),
            rows=transaction.rows,
        )


class _Remembering:
    """Rows for `executemany` that can tell which one came last: the one that was refused."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self.last: tuple[Any, ...] = ()
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self._rows:
            self.last = row
            yield row


def _checked_mode(mode: str, key: Sequence[str] | None) -> str:
    if mode not in {"append", "upsert"}:
        raise ConfigError(f"mode {mode!r} is not known; use 'append' or 'upsert'", mode=mode)
    if mode == "upsert" and not key:
        raise ConfigError("mode='upsert' needs key=[...], the columns that identify a row", mode=mode)
    if mode == "append" and key:
        raise ConfigError(f"key={key!r} has no meaning with mode='append'; use mode='upsert'", key=key)
    return mode


def _checked_table(table: str) -> str:
    reserved = isinstance(table, str) and table.lower().startswith(("sqlite_", "_penstock"))
    if not isinstance(table, str) or not table or "\0" in table or reserved:
        raise ConfigError(
            f"table {table!r} cannot be used: give a name that does not start with 'sqlite_' or '_penstock'",
            table=table,
        )
    return table


def _shown(row: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
