"""The sinks `MySQL` and `MariaDB`: rows in a table of InnoDB. Written in tasks, committed on the driver.

`transactions="prepared"`   the rows and a proof of commit are in one XA transaction, which the task prepares and the driver
                            commits from another session
`transactions="staged"`     the task commits the rows to a table beside the target; the driver moves them, with the proof,
                            in one ordinary transaction

A transaction that is neither prepared nor staged was committed if its proof is there; without it: `CommitLostError`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import CommitLostError, ConfigError, InternalError, PenstockError, UnavailableError
from penstock.sinks import mysql_records
from penstock.sinks.mysql_server import MySQLServer, Session, code, pymysql_module, server_kind
from penstock.sinks.mysql_table import Layout, TargetTable, quoted
from penstock.sinks.mysql_writing import OpenTransaction, end_session, global_part, xid
from penstock.sinks.sql_transaction import (
    PREPARED,
    STAGED,
    SqlTransaction,
    checked_identifier,
    checked_mode,
    checked_transactions,
    lost,
)
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_LONGEST_NAME = 64
_UNKNOWN_XID = 1397
_ATTACHED_TRIES = 50
_ATTACHED_PAUSE_S = 0.1
_OLDEST = {"MariaDB": (10, 5, 2), "MySQL": (8, 0, 0)}
"""Before these, the end of a session rolled back what it had prepared, or XA was not safe in a crash."""
_STAGED_COLUMNS = """SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?
    AND ordinal_position > 2 ORDER BY ordinal_position"""
_REPAIR = "nothing of this commit was kept, its rows stay staged; repair the table, then start the job again: it commits them first"
_WAIT = "it is tried again"


class MySQL(TwoPhaseCommitSink):
    """A table of InnoDB in a MySQL (8.0 or newer) or MariaDB (10.5 or newer) database.

    `mode="append"` inserts, `mode="upsert"` replaces the row that has the same values in the columns `key`. Rows wait for
    their commit `"prepared"` (the default of append) or `"staged"` (the only way to upsert). Names are taken letter by letter.
    """

    def __init__(
        self,
        url: str,
        table: str,
        mode: str = "append",
        key: Sequence[str] | None = None,
        *,
        transactions: str | None = None,
        create: bool = False,
        lock_timeout_s: float = 30.0,
    ) -> None:
        pymysql_module()
        self.server = MySQLServer(url, lock_timeout_s)
        self.mode, columns = checked_mode(mode, key)
        self.transactions = checked_transactions(transactions, self.mode)
        self.table = TargetTable(checked_identifier("table", table, longest=_LONGEST_NAME), columns)
        self.create = create
        self._layout: Layout | None = None
        self._writing: OpenTransaction | None = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.server.shown!r}, table={self.table.name!r}, mode={self.mode!r}, "
            f"transactions={self.transactions!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None}

    def validate(self, schema: pa.Schema) -> None:
        """Compare with the table and the server; make the tables of records that are missing."""
        self.table.check_columns(schema)
        with self.server.config_errors(), self.server.session() as session:
            _check_version(session)
            if self.transactions == PREPARED:
                session.execute(
                    "XA RECOVER"
                )  # needs XA_RECOVER_ADMIN in MySQL 8: better now than in recovery
            if self.create:
                session.execute(self.table.create_sql(schema).replace("TABLE", "TABLE IF NOT EXISTS", 1))
            self._layout = self.table.check_existing(session, schema)
            mysql_records.create(session, self._layout if self.transactions == STAGED else None)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Open a session and a transaction in it."""
        if self._layout is None:
            raise InternalError(f"{self!r} was not validated before a task used it")
        transaction = msgspec.structs.replace(SqlTransaction.begin(context), how=self.transactions)
        self._writing = OpenTransaction(self.server, self._layout, transaction)
        return transaction.as_transaction()

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Send rows; one that the table refuses is refused while the job can go back."""
        writing = self._begun(transaction)
        if batch.num_rows:
            writing.write(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Prepare the transaction, or commit the staged rows, and leave the session."""
        writing = self._begun(transaction)
        writing.finish()
        self._writing = None
        return msgspec.structs.replace(writing.transaction, rows=writing.rows).as_transaction()

    def commit(self, transaction: Transaction) -> None:
        """Make the rows visible, once."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit prepared ones one by one, and all staged ones that follow each other in one transaction."""
        found = [SqlTransaction.read(transaction) for transaction in transactions]
        if not found:
            return
        with self._driver(CommitLostError, _REPAIR) as session:
            staged: list[SqlTransaction] = []
            for transaction in found:
                if transaction.how == STAGED:
                    staged.append(transaction)
                    continue
                self._insert_once(session, staged)
                staged = []
                self._commit_prepared(session, transaction)
            self._insert_once(session, staged)

    def abort(self, transaction: Transaction) -> None:
        """Roll back, or delete what is staged; a session that is still writing is ended."""
        target = SqlTransaction.read(transaction)
        if self._writing is not None and self._writing.transaction.name == target.name:
            self._writing.discard()
            self._writing = None
            return
        with self._driver(UnavailableError, _WAIT) as session:
            end_session(session, target, self.server.database)
            if target.how == STAGED:
                with session.transaction():
                    waiting = mysql_records.registered(session, target)
                    if waiting is not None:
                        mysql_records.take_away(session, *waiting)
            else:
                self._settle(session, "ROLLBACK", target)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List what is prepared for this database and what is staged beside the table."""
        with self._driver(UnavailableError, _WAIT) as session:
            names = _prepared(session, global_part(job, sink, self.server.database))
            staged = mysql_records.staged_of(session, job, sink)
        prepared = [SqlTransaction.parse(job, sink, f"{job}.{sink}.{name}") for name in sorted(names)]
        found = [each for each in prepared if each is not None]
        waiting = [SqlTransaction(job, sink, *numbers, how=STAGED) for numbers in staged]
        return [each.as_transaction() for each in [*found, *waiting]]

    @contextmanager
    def _driver(self, for_good: type[PenstockError], follows: str) -> Iterator[Session]:
        with self.server.commit_errors(for_good, follows), self.server.session() as session:
            yield session

    def _begun(self, transaction: Transaction) -> OpenTransaction:
        name = SqlTransaction.read(transaction).name
        if self._writing is None or self._writing.transaction.name != name:
            raise InternalError(
                f"{self!r} was asked to write to {name}, which it did not begin", transaction=name
            )
        return self._writing

    def _commit_prepared(self, session: Session, transaction: SqlTransaction) -> None:
        if not self._settle(session, "COMMIT", transaction) and not mysql_records.is_recorded(
            session, transaction
        ):
            raise lost(transaction, str(self.server), "it is neither prepared nor recorded as committed")

    def _settle(self, session: Session, verb: str, transaction: SqlTransaction) -> bool:
        """Commit or roll back a prepared transaction; False if there is none of this name.

        The server says 'unknown' too while the session that prepared it has not ended, so the list is looked at.
        """
        part = global_part(transaction.job, transaction.sink, self.server.database)
        for _ in range(_ATTACHED_TRIES):
            try:
                session.execute(f"XA {verb} {xid(transaction, self.server.database)}")
            except pymysql_module().Error as error:
                if code(error) != _UNKNOWN_XID:
                    raise
            else:
                return True
            if transaction.numbers not in _prepared(session, part):
                return False
            time.sleep(_ATTACHED_PAUSE_S)
        raise UnavailableError(
            f"transaction {transaction.name} is prepared in {self.server} but the session that prepared it has not ended; it is "
            "tried again",
            transaction=transaction.name,
        )

    def _insert_once(self, session: Session, transactions: Sequence[SqlTransaction]) -> None:
        if not transactions:
            return
        with session.transaction():
            for transaction in transactions:
                waiting = mysql_records.registered(session, transaction)
                if waiting is not None:
                    self._move(session, transaction, waiting)
                elif not mysql_records.is_recorded(session, transaction):
                    raise lost(
                        transaction, str(self.server), "it is neither staged nor recorded as committed"
                    )

    def _move(self, session: Session, transaction: SqlTransaction, waiting: tuple[int, str]) -> None:
        number, staged_in = waiting
        columns = [name for (name,) in session.execute(_STAGED_COLUMNS, [staged_in])]
        session.execute(self.table.insert_sql(staged_in, columns, number))
        rows = mysql_records.take_away(session, number, staged_in)
        if transaction.rows is not None and rows != transaction.rows:
            raise lost(transaction, str(self.server), f"{rows} of its rows are staged in {quoted(staged_in)}")
        mysql_records.record(session, transaction, rows)


class MariaDB(MySQL):
    """The same sink under the name of the other server."""


def _prepared(session: Session, part: str) -> set[str]:
    """The second halves of the names of prepared transactions whose first half is `part`."""
    found = set()
    for _, global_length, branch_length, data in session.execute("XA RECOVER"):
        raw = data if isinstance(data, bytes) else str(data).encode()
        if raw[:global_length] == part.encode():
            found.add(raw[global_length : global_length + branch_length].decode(errors="replace"))
    return found


def _check_version(session: Session) -> None:
    text = str(session.execute("SELECT VERSION()")[0][0])
    kind = server_kind(session)
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if numbers is not None and tuple(map(int, numbers.groups())) < _OLDEST[kind]:
        raise ConfigError(
            f"{kind} {text} is too old: {'.'.join(map(str, _OLDEST[kind]))} is the first whose prepared transactions outlive "
            "their session and a crash",
            version=text,
        )
