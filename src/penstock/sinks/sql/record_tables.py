"""The tables that a sink for a SQL server keeps beside its target: commits and staged transactions. Driver; also written in tasks.

    _penstock_commits                one row for each transaction that was committed
    _penstock_transactions           one row for each staged transaction that is not committed, with the table of its rows
    _penstock_staged_<digest>        staged rows, with columns declared as in the target

Records of commits are never deleted: a checkpoint or savepoint that names a transaction may be restored after months.
`DELETE FROM _penstock_commits WHERE run < ...` is safe once no checkpoint of those runs will be restored.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.sinks.sql.server import SqlServer, SqlSession, SqlTransaction, owner_digest
from penstock.sinks.sql.table import STAGED_KEY, Layout

COMMITS = "_penstock_commits"
TRANSACTIONS = "_penstock_transactions"
IDENTITY = "job, sink, run, checkpoint, subtask, attempt, token"


class Records:
    """The tables of records in the schema of the target, through one session."""

    def __init__(self, session: SqlSession, schema: str | None) -> None:
        self._session = session
        self._schema = schema
        self._marks = ", ".join([session.mark] * 8)
        self._this_one = " AND ".join(f"{name} = {session.mark}" for name in IDENTITY.split(", "))

    def record(self, transaction: SqlTransaction, rows: int) -> None:
        """Record a commit, in the transaction that makes the rows visible."""
        into = self._named(COMMITS)
        self._session.change(f"INSERT INTO {into} VALUES ({self._marks})", [*transaction.identity, rows])  # noqa: S608 - quoted

    def is_recorded(self, transaction: SqlTransaction) -> bool:
        """Return whether the commit of a transaction is recorded."""
        if not self._has(COMMITS):
            return False
        where = f"{self._named(COMMITS)} WHERE {self._this_one}"
        return bool(self._session.execute(f"SELECT 1 FROM {where}", transaction.identity))  # noqa: S608 - quoted

    def newest(self, job: str, sink: str) -> tuple[int, int] | None:
        """Return the newest run with a commit of this job and sink, and its newest checkpoint."""
        if not self._has(COMMITS):
            return None
        mark = self._session.mark
        found = self._session.execute(
            f"SELECT run, MAX(checkpoint) FROM {self._named(COMMITS)} WHERE job = {mark} AND sink = {mark} "  # noqa: S608 - quoted
            "GROUP BY run ORDER BY run DESC LIMIT 1",
            [job, sink],
        )
        return (int(found[0][0]), int(found[0][1])) if found else None

    def register(self, transaction: SqlTransaction, staged_in: str) -> int:
        """Add a transaction whose rows will be staged; returns the number that marks its rows."""
        into = f"{self._named(TRANSACTIONS)} (staged_in, {IDENTITY})"
        self._session.change(
            f"INSERT INTO {into} VALUES ({self._marks})",  # noqa: S608 - quoted
            [staged_in, *transaction.identity],
        )
        return self._listed(transaction)[0][0]

    def registered(self, transaction: SqlTransaction) -> tuple[int, str] | None:
        """Return the number and the table of a staged transaction, and lock it against other sessions."""
        found = self._listed(transaction) if self._has(TRANSACTIONS) else []
        return found[0] if found else None

    def take_away(self, number: int, staged_in: str) -> int:
        """Delete the staged rows of a transaction; returns their number."""
        mark, named = self._session.mark, self._named
        rows = f"{named(staged_in)} WHERE {STAGED_KEY[0]} = {mark}"
        gone = self._session.change(f"DELETE FROM {rows}", [number])  # noqa: S608 - quoted
        self._session.change(f"DELETE FROM {named(TRANSACTIONS)} WHERE id = {mark}", [number])  # noqa: S608 - quoted
        return gone

    def staged_of(self, job: str, sink: str) -> list[tuple[Any, ...]]:
        """List run, checkpoint, subtask, attempt and token of the staged transactions."""
        if not self._has(TRANSACTIONS):
            return []
        mark = self._session.mark
        return self._session.execute(
            "SELECT run, checkpoint, subtask, attempt, token "  # noqa: S608 - quoted
            f"FROM {self._named(TRANSACTIONS)} WHERE job = {mark} AND sink = {mark} ORDER BY id",
            [job, sink],
        )

    def _named(self, table: str) -> str:
        return self._session.named(self._schema, table)

    def _has(self, table: str) -> bool:
        return self._session.has(self._schema, table)

    def _listed(self, transaction: SqlTransaction) -> list[tuple[int, str]]:
        where = f"{self._named(TRANSACTIONS)} WHERE {self._this_one} FOR UPDATE"
        found = self._session.execute(f"SELECT id, staged_in FROM {where}", transaction.identity)  # noqa: S608 - quoted
        return [(int(number), str(staged_in)) for number, staged_in in found]


def create_records(server: SqlServer, session: SqlSession, layout: Layout, *, staged: bool) -> None:
    """Create the tables that are missing."""
    types = session.record_types
    wanted = {COMMITS: f"({types.identity}, PRIMARY KEY ({IDENTITY}))"}
    if staged:
        wanted[TRANSACTIONS] = (
            f"({types.number}, staged_in {types.table_name} NOT NULL, {types.identity}, UNIQUE ({IDENTITY}))"
        )
        wanted[staging_table(layout)] = _staging_columns(layout)
    for table, columns in wanted.items():
        if not session.has(layout.schema, table):
            name = session.quoted(layout.schema, table)
            _create(server, session, f"CREATE TABLE IF NOT EXISTS {name} {columns}{types.options}", name)


def _create(server: SqlServer, session: SqlSession, statement: str, table: str) -> None:
    try:
        session.create(statement)
    except server.errors.all() as error:
        if not server.errors.is_denied(error):
            raise
        raise ConfigError(
            f"the table {table}, in which the sink keeps its records, cannot be created: {server.errors.said(error)}; have a user with the "
            f"right to create tables run {' '.join(statement.split())}; GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO ...",
            table=table,
        ) from error


def staging_table(layout: Layout) -> str:
    """Return the name of the table for staged rows of this layout. After an ALTER TABLE, or with other columns, it is another one."""
    return f"_penstock_staged_{owner_digest(layout.name, _staging_columns(layout))}"


def _staging_columns(layout: Layout) -> str:
    own = [f"{name} bigint" for name in STAGED_KEY]
    key = f"PRIMARY KEY ({', '.join(STAGED_KEY)})"
    return f"({', '.join([*own, *layout.definitions, *layout.checks, key])})"
