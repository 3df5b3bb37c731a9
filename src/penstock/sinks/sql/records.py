"""What a sink for a SQL server keeps beside its target: proofs of commit, and which transactions are staged. Driver; also written in tasks.

    _penstock_commits                one row for each transaction that was committed
    _penstock_transactions           one row for each that is staged and not committed, with the table its rows wait in
    _penstock_staged_<digest>        staged rows, in columns as the target declares them

Proofs are kept for good, as those of SQLite are: a checkpoint or savepoint that names a transaction may be restored after months.
`DELETE FROM _penstock_commits WHERE run < ...` is safe once no checkpoint of those runs will be restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.sinks.sql.transaction import SqlTransaction, owner_digest

COMMITS = "_penstock_commits"
TRANSACTIONS = "_penstock_transactions"
IDENTITY = "job, sink, run, checkpoint, subtask, attempt, token"
STAGED_KEY = ("_penstock_transaction", "_penstock_row")
"""The columns before those of the target where rows are staged: the number of the transaction, and of the row in it."""


class SqlSession(Protocol):
    """One connection, as the records need it. `mark` stands for a value in a statement."""

    mark: str

    def execute(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement; returns the rows of its answer."""

    def change(self, statement: str, values: Sequence[Any]) -> int:
        """Run a statement; returns how many rows it has changed."""

    def named(self, table: str) -> str:
        """The name of one of the tables of records, as a statement with values has to write it."""

    def has(self, table: str) -> bool:
        """Whether one of the tables of records is there."""

    def transaction(self) -> AbstractContextManager[object]:
        """Make everything that is done inside visible at once, or nothing of it."""


class Records:
    """The tables of records, through one session."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._marks = ", ".join([session.mark] * 8)
        self._this_one = " AND ".join(f"{name} = {session.mark}" for name in IDENTITY.split(", "))

    def record(self, transaction: SqlTransaction, rows: int) -> None:
        """Write the proof, in the transaction that makes the rows visible."""
        into = self._session.named(COMMITS)
        self._session.change(f"INSERT INTO {into} VALUES ({self._marks})", [*transaction.identity, rows])  # noqa: S608 - quoted

    def is_recorded(self, transaction: SqlTransaction) -> bool:
        """Tell whether a transaction was committed."""
        if not self._session.has(COMMITS):
            return False
        where = f"{self._session.named(COMMITS)} WHERE {self._this_one}"
        return bool(self._session.execute(f"SELECT 1 FROM {where}", transaction.identity))  # noqa: S608 - quoted

    def register(self, transaction: SqlTransaction, staged_in: str) -> int:
        """List a transaction whose rows are going to be staged; returns the number that marks its rows."""
        into = f"{self._session.named(TRANSACTIONS)} (staged_in, {IDENTITY})"
        self._session.change(
            f"INSERT INTO {into} VALUES ({self._marks})",  # noqa: S608 - quoted
            [staged_in, *transaction.identity],
        )
        return self._listed(transaction)[0][0]

    def registered(self, transaction: SqlTransaction) -> tuple[int, str] | None:
        """Find the number and the table of a staged transaction, and keep others from settling it too."""
        found = self._listed(transaction) if self._session.has(TRANSACTIONS) else []
        return found[0] if found else None

    def take_away(self, number: int, staged_in: str) -> int:
        """Delete what is staged of a transaction; returns how many rows it had."""
        mark, named = self._session.mark, self._session.named
        rows = f"{named(staged_in)} WHERE {STAGED_KEY[0]} = {mark}"
        gone = self._session.change(f"DELETE FROM {rows}", [number])  # noqa: S608 - quoted
        self._session.change(f"DELETE FROM {named(TRANSACTIONS)} WHERE id = {mark}", [number])  # noqa: S608 - quoted
        return gone

    def staged_of(self, job: str, sink: str) -> list[tuple[Any, ...]]:
        """List run, checkpoint, subtask, attempt and token of what is staged."""
        if not self._session.has(TRANSACTIONS):
            return []
        mark = self._session.mark
        return self._session.execute(
            "SELECT run, checkpoint, subtask, attempt, token "  # noqa: S608 - quoted
            f"FROM {self._session.named(TRANSACTIONS)} WHERE job = {mark} AND sink = {mark} ORDER BY id",
            [job, sink],
        )

    def _listed(self, transaction: SqlTransaction) -> list[tuple[int, str]]:
        where = f"{self._session.named(TRANSACTIONS)} WHERE {self._this_one} FOR UPDATE"
        found = self._session.execute(f"SELECT id, staged_in FROM {where}", transaction.identity)  # noqa: S608 - quoted
        return [(int(number), str(staged_in)) for number, staged_in in found]


def staging_table(target: str, columns: str) -> str:
    """Name the table that holds rows of a layout: another one after an ALTER TABLE, or for other columns."""
    return f"_penstock_staged_{owner_digest(target, columns)}"


def staging_columns(columns: Sequence[str], checks: Sequence[str]) -> str:
    """The columns of such a table, in SQL."""
    own = [f"{name} bigint" for name in STAGED_KEY]
    return f"({', '.join([*own, *columns, *checks, 'PRIMARY KEY (' + ', '.join(STAGED_KEY) + ')'])})"
