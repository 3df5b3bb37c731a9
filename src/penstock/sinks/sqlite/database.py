"""A SQLite file as a sink uses it: connections, the record of commits, and what its errors mean. Driver only.

Records are kept for good. Checkpoints are retained in any number and a savepoint may be restored after
months; either makes the driver commit again what it names, and 'everything up to checkpoint n' would also
claim transactions that were aborted on the way to n. A record takes about 50 bytes: 8 subtasks that commit
every 10 seconds add 3.5 MB a day. `DELETE FROM _penstock_commits WHERE run < ...` is safe once no
checkpoint or savepoint of those runs will be restored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import CommitLostError, ConfigError, PenstockError, UnavailableError
from penstock.sinks.staged.staging import StagedTransaction

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
def existing(path: Path, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open the database; an empty one in memory stands for one that is missing, so nothing is created."""
    database = sqlite3.connect(
        path if path.exists() else ":memory:", timeout=busy_timeout_s, isolation_level=None
    )
    try:
        yield database
    finally:
        database.close()


@contextmanager
def write_transaction(path: Path, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Make everything that is done inside durable and visible at once, or nothing of it."""
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


def record(database: sqlite3.Connection, transaction: StagedTransaction, rows: int) -> None:
    """Write down that a transaction is committed, in the SQLite transaction that inserts its rows."""
    database.execute(_RECORD, [*transaction.identity, rows])


def is_recorded(database: sqlite3.Connection, transaction: StagedTransaction) -> bool:
    """Tell whether a transaction was committed."""
    return _has_commits(database) and database.execute(_FIND, transaction.identity).fetchone() is not None


def newest(database: sqlite3.Connection, job: str, sink: str) -> tuple[int, int] | None:
    """The newest run that has a commit of this job and sink, and its newest checkpoint."""
    return database.execute(_NEWEST, [job, sink]).fetchone() if _has_commits(database) else None


def _has_commits(database: sqlite3.Connection) -> bool:
    return (
        database.execute("SELECT 1 FROM sqlite_master WHERE name = '_penstock_commits'").fetchone()
        is not None
    )


@contextmanager
def config_errors(path: Path) -> Iterator[None]:
    """Report what SQLite refuses before the job starts."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, path, ConfigError, "change the table or the sink's settings") from error


@contextmanager
def commit_errors(path: Path, staging: Path) -> Iterator[None]:
    """Report what SQLite refuses when a commit is due."""
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
        for_good, follows = UnavailableError, "check who locks it, space and permissions"
    return for_good(f"SQLite database {path}: {error}; {follows}", path=str(path), cause=str(error))
