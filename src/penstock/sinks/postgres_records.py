"""What a `Postgres` sink keeps in the server: proofs of commit, and staged rows. Driver; also written in tasks.

    _penstock_commits                one row for each transaction that was committed
    _penstock_transactions           one row for each that is staged and not committed, with the table its rows wait in
    _penstock_staged_<digest>        staged rows, in columns as the target declares them

All are in the schema of the target. Proofs are kept for good, as those of SQLite are: a checkpoint or savepoint that
names a transaction may be restored after months. `DELETE FROM _penstock_commits WHERE run < ...` is safe once no
checkpoint of those runs will be restored.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.sinks.postgres_server import psycopg_module, said
from penstock.sinks.postgres_table import Layout, quoted
from penstock.sinks.sql_transaction import SqlTransaction, owner_digest

COMMITS = "_penstock_commits"
TRANSACTIONS = "_penstock_transactions"
_IDENTITY = "job, sink, run, checkpoint, subtask, attempt, token"
_IDENTITY_COLUMNS = """job text, sink text, run bigint, checkpoint bigint, subtask bigint, attempt bigint, token text,
    rows bigint"""
_THIS_ONE = """job = %s AND sink = %s AND run = %s AND checkpoint = %s AND subtask = %s AND attempt = %s AND
    token = %s"""


class Records:
    """The tables of Penstock in one schema. The schema's name is doubled where `%` would stand for a parameter."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def create(self, connection: Any, staged: Layout | None) -> None:
        """Make what is missing."""
        wanted = {COMMITS: f"({_IDENTITY_COLUMNS}, PRIMARY KEY ({_IDENTITY}))"}
        if staged is not None:
            wanted[TRANSACTIONS] = (
                "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, staged_in text NOT NULL, "
                f"{_IDENTITY_COLUMNS}, UNIQUE ({_IDENTITY}))"
            )
            wanted[staging_table(staged)] = _staging_columns(staged)
        for table, columns in wanted.items():
            self._create(connection, table, columns)

    def _create(self, connection: Any, table: str, columns: str) -> None:
        psycopg = psycopg_module()
        name = quoted(self.schema, table)
        if self.has(connection, table):
            return
        statement = f"CREATE TABLE IF NOT EXISTS {name} {columns}"
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('penstock'))")
                connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"the table {name}, in which the sink keeps its records, cannot be made: {said(error)}; let somebody who may "
                f"run {' '.join(statement.split())}; GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO ...",
                table=table,
            ) from error

    def has(self, connection: Any, table: str) -> bool:
        """Tell whether one of the tables is there."""
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [quoted(self.schema, table)])
        return bool(found.fetchone()[0])

    def record(self, connection: Any, transaction: SqlTransaction, rows: int) -> None:
        """Write the proof, in the transaction that makes the rows visible."""
        connection.execute(
            f"INSERT INTO {self._escaped(COMMITS)} VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",  # noqa: S608 - quoted
            [*_identity(transaction), rows],
        )

    def is_recorded(self, connection: Any, transaction: SqlTransaction) -> bool:
        """Tell whether a transaction was committed."""
        if not self.has(connection, COMMITS):
            return False
        found = connection.execute(
            f"SELECT 1 FROM {self._escaped(COMMITS)} WHERE {_THIS_ONE}",  # noqa: S608 - quoted
            _identity(transaction),
        )
        return found.fetchone() is not None

    def register(self, connection: Any, transaction: SqlTransaction, staged_in: str) -> int:
        """List a transaction whose rows are going to be staged; returns the number that marks its rows."""
        made = connection.execute(
            f"INSERT INTO {self._escaped(TRANSACTIONS)} (staged_in, {_IDENTITY}) "  # noqa: S608 - quoted
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING id",
            [staged_in, *_identity(transaction)],
        )
        return int(made.fetchone()[0])

    def registered(self, connection: Any, transaction: SqlTransaction) -> tuple[int, str] | None:
        """Find the number and the table of a staged transaction, and keep others from settling it too."""
        if not self.has(connection, TRANSACTIONS):
            return None
        found = connection.execute(
            f"SELECT id, staged_in FROM {self._escaped(TRANSACTIONS)} WHERE {_THIS_ONE} FOR UPDATE",  # noqa: S608
            _identity(transaction),
        ).fetchone()
        return None if found is None else (int(found[0]), str(found[1]))

    def take_away(self, connection: Any, number: int, staged_in: str) -> int:
        """Delete what is staged of a transaction; returns how many rows it had."""
        name = quoted(self.schema, staged_in)
        gone = connection.execute(f"DELETE FROM {name} WHERE _penstock_transaction = {number:d}")  # noqa: S608
        listed = quoted(self.schema, TRANSACTIONS)
        connection.execute(f"DELETE FROM {listed} WHERE id = {number:d}")  # noqa: S608 - quoted
        return int(gone.rowcount)

    def staged_of(self, connection: Any, job: str, sink: str) -> list[tuple[Any, ...]]:
        """List run, checkpoint, subtask, attempt and token of what is staged."""
        if not self.has(connection, TRANSACTIONS):
            return []
        found = connection.execute(
            "SELECT run, checkpoint, subtask, attempt, token "  # noqa: S608 - quoted
            f"FROM {self._escaped(TRANSACTIONS)} WHERE job = %s AND sink = %s ORDER BY id",
            [job, sink],
        )
        return list(found.fetchall())

    def quoted(self, table: str) -> str:
        """Name one of the tables in SQL."""
        return quoted(self.schema, table)

    def _escaped(self, table: str) -> str:
        return quoted(self.schema, table).replace("%", "%%")


def staging_table(layout: Layout) -> str:
    """Name the table that holds rows of this layout: another one after an ALTER TABLE, or for other columns."""
    return f"_penstock_staged_{owner_digest(layout.name, _staging_columns(layout))}"


def _staging_columns(layout: Layout) -> str:
    columns = [
        f"{quoted(column.name)} {column.declared}{' NOT NULL' if column.not_null else ''}"
        for column in layout.columns
    ]
    own = ["_penstock_transaction bigint", "_penstock_row bigint"]
    parts = [*own, *columns, *layout.checks, "PRIMARY KEY (_penstock_transaction, _penstock_row)"]
    return f"({', '.join(parts)})"


def _identity(transaction: SqlTransaction) -> list[Any]:
    of = transaction
    return [of.job, of.sink, of.run, of.checkpoint, of.subtask, of.attempt, of.token]
