"""What a `MySQL` sink keeps in the database: proofs of commit, and staged rows. Driver; also written in tasks.

The same three tables as `postgres_records` has: `_penstock_commits`, `_penstock_transactions`,
`_penstock_staged_<digest>`. Names are compared byte by byte, whatever collation the database has.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.sinks.mysql_server import Session, code, pymysql_module, said
from penstock.sinks.mysql_table import Layout, quoted
from penstock.sinks.sql_transaction import SqlTransaction, owner_digest

COMMITS = "_penstock_commits"
TRANSACTIONS = "_penstock_transactions"
_DENIED = {1044, 1142}
_NAME = "varchar(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
_IDENTITY = "job, sink, run, checkpoint, subtask, attempt, token"
_IDENTITY_COLUMNS = (
    f"job {_NAME}, sink {_NAME}, run bigint NOT NULL, checkpoint bigint NOT NULL, subtask bigint NOT NULL, "
    "attempt bigint NOT NULL, token char(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_total bigint"
)
_THIS_ONE = (
    "job = ? AND sink = ? AND run = ? AND checkpoint = ? AND subtask = ? AND attempt = ? AND token = ?"
)
_HAS = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?"


def create(session: Session, staged: Layout | None) -> None:
    """Make what is missing."""
    wanted = {COMMITS: f"({_IDENTITY_COLUMNS}, PRIMARY KEY ({_IDENTITY}))"}
    if staged is not None:
        wanted[TRANSACTIONS] = (
            "(id bigint PRIMARY KEY AUTO_INCREMENT, staged_in varchar(64) NOT NULL, "
            f"{_IDENTITY_COLUMNS}, UNIQUE ({_IDENTITY}))"
        )
        wanted[staging_table(staged)] = _staging_columns(staged)
    for table, columns in wanted.items():
        if not _has(session, table):
            _create(session, f"CREATE TABLE IF NOT EXISTS {table} {columns} ENGINE = InnoDB", table)


def _create(session: Session, statement: str, table: str) -> None:
    try:
        session.execute(statement)
    except pymysql_module().Error as error:
        if code(error) not in _DENIED:
            raise
        raise ConfigError(
            f"the table {table}, in which the sink keeps its records, cannot be made: {said(error)}; let somebody who may run "
            f"{statement}; GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO ...",
            table=table,
        ) from error


def record(session: Session, transaction: SqlTransaction, rows: int) -> None:
    """Write the proof, in the transaction that makes the rows visible."""
    session.execute(f"INSERT INTO {COMMITS} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [*_identity(transaction), rows])  # noqa: S608


def is_recorded(session: Session, transaction: SqlTransaction) -> bool:
    """Tell whether a transaction was committed."""
    found = _has(session, COMMITS) and session.execute(
        f"SELECT 1 FROM {COMMITS} WHERE {_THIS_ONE}",  # noqa: S608 - our own names
        _identity(transaction),
    )
    return bool(found)


def register(session: Session, transaction: SqlTransaction, staged_in: str) -> int:
    """List a transaction whose rows are going to be staged; returns the number that marks its rows."""
    session.execute(
        f"INSERT INTO {TRANSACTIONS} (staged_in, {_IDENTITY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        [staged_in, *_identity(transaction)],
    )
    return int(session.execute("SELECT LAST_INSERT_ID()")[0][0])


def registered(session: Session, transaction: SqlTransaction) -> tuple[int, str] | None:
    """Find the number and the table of a staged transaction, and keep others from settling it too."""
    if not _has(session, TRANSACTIONS):
        return None
    found = session.execute(
        f"SELECT id, staged_in FROM {TRANSACTIONS} WHERE {_THIS_ONE} FOR UPDATE",  # noqa: S608 - our own names
        _identity(transaction),
    )
    return (int(found[0][0]), str(found[0][1])) if found else None


def take_away(session: Session, number: int, staged_in: str) -> int:
    """Delete what is staged of a transaction; returns how many rows it had."""
    gone = session.change(f"DELETE FROM {quoted(staged_in)} WHERE _penstock_transaction = {number:d}")  # noqa: S608
    session.change(f"DELETE FROM {TRANSACTIONS} WHERE id = {number:d}")  # noqa: S608 - our own names
    return gone


def staged_of(session: Session, job: str, sink: str) -> list[tuple[Any, ...]]:
    """List run, checkpoint, subtask, attempt and token of what is staged."""
    if not _has(session, TRANSACTIONS):
        return []
    return session.execute(
        f"SELECT run, checkpoint, subtask, attempt, token FROM {TRANSACTIONS} "  # noqa: S608 - our own names
        "WHERE job = ? AND sink = ? ORDER BY id",
        [job, sink],
    )


def staging_table(layout: Layout) -> str:
    """Name the table that holds rows of this layout: another one after an ALTER TABLE, or for other columns."""
    return f"_penstock_staged_{owner_digest(layout.table, _staging_columns(layout))}"


def _has(session: Session, table: str) -> bool:
    return bool(session.execute(_HAS, [table]))


def _staging_columns(layout: Layout) -> str:
    columns = [
        f"{quoted(column.name)} {column.declared}{f' COLLATE {column.collation}' if column.collation else ''} "
        f"{'NOT NULL' if column.not_null else 'NULL'}"
        for column in layout.columns
    ]
    own = ["_penstock_transaction bigint", "_penstock_row bigint"]
    parts = [*own, *columns, *layout.checks, "PRIMARY KEY (_penstock_transaction, _penstock_row)"]
    return f"({', '.join(parts)})"


def _identity(transaction: SqlTransaction) -> list[Any]:
    of = transaction
    return [of.job, of.sink, of.run, of.checkpoint, of.subtask, of.attempt, of.token]
