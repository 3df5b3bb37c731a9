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
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.config import Duration, seconds
from penstock.errors import BadRecordError, CommitLostError, ConfigError
from penstock.sinks.bad_rows import bad_record, refuse_large, row_bytes, shown_row
from penstock.sinks.sqlite import database as sqlite_database
from penstock.sinks.sqlite.table import Remembering, SqliteTable, first_refused
from penstock.sinks.sqlite.values import storage_batch
from penstock.sinks.staged.sink import StagedSink
from penstock.sinks.staged.staging import (
    StagedTransaction,
    local_path,
    make_private,
    storage_errors,
)
from penstock.sinks.tables import checked_mode
from penstock.sinks.two_phase_commit import Transaction
from penstock.storage.file_system import sync_folder
from penstock.storage.places import refuse_stale_listings

LONGEST_ROW_BYTES = 999_000_000
"""SQLite takes 1,000,000,000 bytes in a row, with its own frame."""


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
        """Compare with the table if there is one; SQLite itself compiles the statements, without a change."""
        self.table.check_columns(schema)
        self._check_folders()
        with (
            sqlite_database.config_errors(self.path),
            sqlite_database.existing(self.path, self._busy_timeout_s) as database,
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
        """The rows as SQLite stores them; what the table would refuse at commit is refused while the job can go back."""
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
        """Insert the rows, once."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Insert the rows of all in one SQLite transaction: they become visible at the same moment."""
        staged = [StagedTransaction.read(transaction) for transaction in transactions]
        if not staged:
            return
        with (
            sqlite_database.commit_errors(self.path, self.staging),
            sqlite_database.write_transaction(self.path, self._busy_timeout_s) as database,
        ):
            for transaction in staged:
                self._insert_once(database, transaction)
        with storage_errors("tidy up", self.staging):
            sync_folder(self.path.parent)  # the database may be new; only then may the staged rows go
        for transaction in staged:
            self.delete_staged(transaction)

    def committed_of(self, job: str, sink: str, found: Sequence[StagedTransaction]) -> set[str]:  # noqa: ARG002 - each names its own
        """Those whose commit the database has recorded."""
        if not found:
            return set()
        with (
            sqlite_database.commit_errors(self.path, self.staging),
            sqlite_database.existing(self.path, self._busy_timeout_s) as database,
        ):
            return {each.name for each in found if sqlite_database.is_recorded(database, each)}

    @override
    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        with (
            sqlite_database.commit_errors(self.path, self.staging),
            sqlite_database.existing(self.path, self._busy_timeout_s) as database,
        ):
            return sqlite_database.newest(database, job, sink)

    def _refuse_nulls(self, rows: pa.RecordBatch) -> None:
        for name in self._never_null:
            column = rows.column(name)
            if column.null_count:
                first = column.is_null().to_pylist().index(True)
                raise BadRecordError(
                    f"column {name!r} of table {self.table.name!r} refuses NULL, but here is a row with it: "
                    f"{shown_row(rows.slice(first, 1).to_pylist()[0])}; filter or fill such rows before "
                    "write_to",
                    table=self.table.name,
                    column=name,
                )

    def _insert_once(self, database: sqlite3.Connection, transaction: StagedTransaction) -> None:
        if sqlite_database.is_recorded(database, transaction):
            return
        rows = self.staged_rows(transaction)
        if rows is not None:
            self._insert(database, rows)
        sqlite_database.record(database, transaction, 0 if rows is None else rows.num_rows)

    def _insert(self, database: sqlite3.Connection, table: pa.Table) -> None:
        database.execute(self.table.create_sql(table.schema))
        statement = self.table.insert_sql(table.column_names)
        for batch in table.to_batches():
            rows = Remembering(zip(*(column.to_pylist() for column in batch.columns), strict=True))
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
                raise ConfigError(f"{path} of a SQLite sink is not writable by this user", path=str(path))

    def _refused(self, row: dict[str, Any], error: sqlite3.Error) -> CommitLostError:
        return CommitLostError(
            f"a row cannot be committed to table {self.table.name!r} of {self.path}: {error}; the row is "
            f"{shown_row(row)}. Nothing of this commit was kept, its rows stay staged below {self.staging}. Remove the "
            "row in the table "
            "that it collides with, or the constraint, then start the job again: it commits them first",
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
