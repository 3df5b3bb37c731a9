"""The sink `SQLite`: rows in a table of a database file. Staged in tasks, inserted on the driver.

    <path>                                              the database, with a record of each commit in it
    <path>.penstock/<job>/<sink>/<transaction>.arrow    staged rows, already in the form that SQLite stores

A commit is ONE SQLite transaction that inserts the rows and the record (see `write_transaction`); then the
staged file is deleted. What a crash leaves is one of: staged and not recorded (commit inserts), recorded
and still staged (commit deletes the file), recorded and not staged (done), neither (`CommitLostError`).

Records are never deleted. Any number of checkpoints is retained, and a savepoint may be restored after
months; either makes the driver commit again what it names, and a record such as 'everything up to checkpoint n'
would also cover transactions that were aborted on the way to n. A record takes about 50 bytes: 8 subtasks that commit
every 10 seconds add 3.5 MB a day. `DELETE FROM _penstock_commits WHERE run < ...` is safe once no
checkpoint or savepoint of those runs will be restored.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.config import Duration, seconds
from penstock.errors import BadRecordError, CommitLostError, ConfigError, PenstockError, UnavailableError
from penstock.sinks.bad_rows import bad_record, refuse_large, row_bytes, shown_row
from penstock.sinks.sqlite_table import SqliteTable, TrackedRows, first_refused, storage_batch
from penstock.sinks.staged_sink import StagedSink
from penstock.sinks.staging import (
    StagedTransaction,
    local_path,
    make_private,
    storage_errors,
)
from penstock.sinks.table_checks import checked_mode
from penstock.sinks.two_phase_commit import Transaction
from penstock.storage.file_system import sync_folder
from penstock.storage.place_checks import refuse_stale_listings

LONGEST_ROW_BYTES = 999_000_000
"""SQLite accepts rows of 1,000,000,000 bytes, including its own header."""


class SQLite(StagedSink):
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
        busy_timeout: Duration = "10s",
    ) -> None:
        self.path = local_path("path", path)
        super().__init__(self.path.with_name(self.path.name + ".penstock"))
        self.mode, columns = checked_mode(mode, key)
        self.table = SqliteTable(_checked_table(table), columns)
        self._busy_timeout_s = seconds("busy_timeout", busy_timeout)
        self._never_null: tuple[str, ...] = self.table.key
        self._rules_sql: str | None = None

    def __repr__(self) -> str:
        return f"SQLite({str(self.path)!r}, table={self.table.name!r}, mode={self.mode!r})"

    def validate(self, schema: pa.Schema) -> None:
        """Check against the table if it exists. SQLite compiles the statements, without a change."""
        self.table.check_columns(schema)
        self._check_folders()
        with (
            config_errors(self.path),
            open_existing(self.path, self._busy_timeout_s) as database,
        ):
            not_null = self.table.check_existing(database, schema)
            self._rules_sql = self.table.rules_sql(database)
            database.execute("BEGIN")
            database.execute(self.table.create_sql(schema))
            database.execute(f"EXPLAIN {self.table.insert_sql(schema.names)}", [None] * len(schema.names))
            database.execute("ROLLBACK")
        refusing = {name.lower() for name in (*not_null, *self.table.key)}
        self._never_null = tuple(name for name in schema.names if name.lower() in refusing)

    def staged_form(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the rows to SQLite's types. What the table would refuse at commit is refused while the job can still go back."""
        rows = storage_batch(batch)
        self._refuse_nulls(rows)
        refuse_large(row_bytes(rows), LONGEST_ROW_BYTES, "a row in SQLite")
        if self._rules_sql is not None:
            self._rehearse(rows, self._rules_sql)
        return rows

    def _rehearse(self, rows: pa.RecordBatch, create_sql: str) -> None:
        names = rows.schema.names
        values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
        refused = first_refused(create_sql, self.table.rehearsal_sql(names), len(names), values)
        if refused is not None:
            row, error = dict(zip(names, refused[0], strict=True)), refused[1]
            raise bad_record(f"{self.table.name!r} of {self.path}", str(error), row) from error

    def commit(self, transaction: Transaction) -> None:
        """Insert the rows of one transaction, unless they are recorded."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Insert the rows of all transactions in one SQLite transaction: they become visible together."""
        staged = [StagedTransaction.read(transaction) for transaction in transactions]
        if not staged:
            return
        with (
            commit_errors(self.path, self.staging),
            write_transaction(self.path, self._busy_timeout_s) as database,
        ):
            for transaction in staged:
                self._insert_once(database, transaction)
        with storage_errors("tidy up", self.staging):
            sync_folder(self.path.parent)  # the database may be new; staged rows are deleted only after this
        for transaction in staged:
            self.delete_staged(transaction)

    def committed_of(self, job: str, sink: str, found: Sequence[StagedTransaction]) -> set[str]:  # noqa: ARG002 - each names its own
        """Return the names of transactions whose commit the database has recorded."""
        if not found:
            return set()
        with (
            commit_errors(self.path, self.staging),
            open_existing(self.path, self._busy_timeout_s) as database,
        ):
            return {each.name for each in found if is_recorded(database, each)}

    @override
    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        with (
            commit_errors(self.path, self.staging),
            open_existing(self.path, self._busy_timeout_s) as database,
        ):
            return newest_recorded(database, job, sink)

    def _refuse_nulls(self, rows: pa.RecordBatch) -> None:
        for name in self._never_null:
            column = rows.column(name)
            if column.null_count:
                first = column.is_null().to_pylist().index(True)
                raise BadRecordError(
                    f"column {name!r} of table {self.table.name!r} refuses NULL, but a row has it: "
                    f"{shown_row(rows.slice(first, 1).to_pylist()[0])}; filter or fill such rows before "
                    "write_to",
                    table=self.table.name,
                    column=name,
                )

    def _insert_once(self, database: sqlite3.Connection, transaction: StagedTransaction) -> None:
        if is_recorded(database, transaction):
            return
        rows = self.staged_rows(transaction)
        if rows is not None:
            self._insert(database, rows)
        record_commit(database, transaction, 0 if rows is None else rows.num_rows)

    def _insert(self, database: sqlite3.Connection, table: pa.Table) -> None:
        database.execute(self.table.create_sql(table.schema))
        statement = self.table.insert_sql(table.column_names)
        for batch in table.to_batches():
            rows = TrackedRows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            try:
                database.executemany(statement, rows)
            except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                raise self._refused(dict(zip(table.column_names, rows.last, strict=True)), error) from error

    def _check_folders(self) -> None:
        refuse_stale_listings(self.staging, "the folder of a SQLite sink")
        try:
            make_private(self.staging, self.staging)
            sync_folder(self.staging.parent)
        except OSError as error:
            raise ConfigError(
                f"the folder {self.staging} of a SQLite sink cannot be made: {error}; "
                "give this user the right to write beside the database",
                path=str(self.staging),
            ) from error
        for path in (self.path, self.path.parent, self.staging):
            if path.exists() and not os.access(path, os.W_OK):
                raise ConfigError(
                    f"{path} of a SQLite sink is not writable by this user; give this user the right to write there",
                    path=str(path),
                )

    def _refused(self, row: dict[str, Any], error: sqlite3.Error) -> CommitLostError:
        return CommitLostError(
            f"a row cannot be committed to table {self.table.name!r} of {self.path}: {error}; the row is "
            f"{shown_row(row)}. Nothing of this commit was kept; its rows stay staged below {self.staging}. Remove the "
            "row in the table that it collides with, or the constraint, then start the job again: it commits them first",
            table=self.table.name,
            row=row,
            cause=str(error),
        )


def _checked_table(table: str) -> str:
    reserved = isinstance(table, str) and table.lower().startswith(("sqlite_", "_penstock"))
    if not isinstance(table, str) or not table or "\0" in table or reserved:
        raise ConfigError(
            f"table {table!r} cannot be used: give a name that does not start with 'sqlite_' or '_penstock'",
            table=table,
        )
    return table


_CREATE_COMMITS = """CREATE TABLE IF NOT EXISTS _penstock_commits (
    job TEXT, sink TEXT, run INTEGER, checkpoint INTEGER, subtask INTEGER, attempt INTEGER, token TEXT, rows
    INTEGER, PRIMARY KEY (job, sink, run, checkpoint, subtask, attempt, token)) WITHOUT ROWID"""
_RECORD = "INSERT INTO _penstock_commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_FIND = """SELECT 1 FROM _penstock_commits WHERE job = ? AND sink = ? AND run = ? AND checkpoint = ? AND
subtask = ?
    AND attempt = ? AND token = ?"""
_NEWEST = """SELECT run, MAX(checkpoint) FROM _penstock_commits WHERE job = ? AND sink = ? GROUP BY run ORDER BY run DESC LIMIT 1"""

_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_PERM,
}
_PRIMARY_CODE = 0xFF  # the rest of an error code is detail


@contextmanager
def open_existing(path: Path, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open the database, or an empty one in memory if it does not exist, so that nothing is created."""
    database = sqlite3.connect(
        path if path.exists() else ":memory:", timeout=busy_timeout_s, isolation_level=None
    )
    try:
        yield database
    finally:
        database.close()


@contextmanager
def write_transaction(path: Path, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open a transaction: all changes become durable and visible together, or none."""
    database = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN IMMEDIATE")
        database.execute(_CREATE_COMMITS)
        yield database
        database.execute("COMMIT")
    finally:
        database.close()  # rolls back what was not committed


def record_commit(database: sqlite3.Connection, transaction: StagedTransaction, rows: int) -> None:
    """Record a commit, in the SQLite transaction that inserts its rows."""
    database.execute(_RECORD, [*transaction.identity, rows])


def is_recorded(database: sqlite3.Connection, transaction: StagedTransaction) -> bool:
    """Return whether the commit of a transaction is recorded."""
    return _has_commits(database) and database.execute(_FIND, transaction.identity).fetchone() is not None


def newest_recorded(database: sqlite3.Connection, job: str, sink: str) -> tuple[int, int] | None:
    """Return the newest run with a commit of this job and sink, and its newest checkpoint."""
    return database.execute(_NEWEST, [job, sink]).fetchone() if _has_commits(database) else None


def _has_commits(database: sqlite3.Connection) -> bool:
    return (
        database.execute("SELECT 1 FROM sqlite_master WHERE name = '_penstock_commits'").fetchone()
        is not None
    )


@contextmanager
def config_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite before the job starts."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, path, ConfigError, "change the table or the sink's settings") from error


@contextmanager
def commit_errors(path: Path, staging: Path) -> Iterator[None]:
    """Translate errors of SQLite during a commit."""
    try:
        yield
    except sqlite3.Error as error:
        follows = (
            f"the staged rows are kept in {staging}; repair the table, then start the job again: it "
            "commits them first"
        )
        raise _translated(error, path, CommitLostError, follows) from error


def _translated(
    error: sqlite3.Error, path: Path, for_good: type[PenstockError], follows: str
) -> PenstockError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE
    if code in _MAY_PASS:
        for_good, follows = UnavailableError, "check which process locks it, free space and permissions"
    return for_good(f"SQLite database {path}: {error}; {follows}", path=str(path), cause=str(error))
