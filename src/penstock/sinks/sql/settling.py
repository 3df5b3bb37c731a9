"""How the driver settles the transactions of a sink for a SQL server: commit, abort, find. Driver.

A transaction that is neither prepared nor staged was committed if its proof is there; without it: `CommitLostError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.sinks.sql.records import Records
from penstock.sinks.sql.server import SqlServer, SqlSession
from penstock.sinks.sql.table import TargetTable
from penstock.sinks.sql.transaction import STAGED, SqlTransaction, lost
from penstock.wording import counted


class Settling:
    """One session of the driver."""

    def __init__(self, server: SqlServer, session: SqlSession, table: TargetTable) -> None:
        self._session = session
        self._table = table
        self._two_phase = server.two_phase(session)
        self._schema = table.found_schema(session)
        self._records = Records(session, self._schema)
        self._where = str(server)

    def commit_all(self, transactions: Iterable[SqlTransaction]) -> None:
        """Commit prepared ones one by one, and all staged ones that follow each other in one transaction."""
        staged: list[SqlTransaction] = []
        for transaction in transactions:
            if transaction.how == STAGED:
                staged.append(transaction)
                continue
            self._move_all(staged)
            staged = []
            settled = self._two_phase.settle("COMMIT", transaction)
            if not settled and not self._records.is_recorded(transaction):
                raise lost(transaction, self._where, "it is neither prepared nor recorded as committed")
        self._move_all(staged)

    def abort(self, transaction: SqlTransaction) -> None:
        """Roll back, or delete what is staged; a session that is still writing is ended."""
        self._two_phase.end_writer(transaction)
        if transaction.how != STAGED:
            self._two_phase.settle("ROLLBACK", transaction)
            return
        with self._session.transaction():
            waiting = self._records.registered(transaction)
            if waiting is not None:
                self._records.take_away(*waiting)

    def found(self, job: str, sink: str, *, only_staged: bool) -> list[SqlTransaction]:
        """List what is prepared in this database and what is staged beside the table."""
        numbers = sorted(self._two_phase.prepared(job, sink, needed=not only_staged))
        prepared = [SqlTransaction.parse(job, sink, f"{job}.{sink}.{each}") for each in numbers]
        staged = self._records.staged_of(job, sink)
        waiting = [SqlTransaction(job, sink, *each, how=STAGED) for each in staged]
        return [*(each for each in prepared if each is not None), *waiting]

    def _move_all(self, transactions: Sequence[SqlTransaction]) -> None:
        if not transactions:
            return
        with self._session.transaction():
            for transaction in transactions:
                self._move_once(transaction)

    def _move_once(self, transaction: SqlTransaction) -> None:
        waiting = self._records.registered(transaction)
        if waiting is None:
            if not self._records.is_recorded(transaction):
                raise lost(transaction, self._where, "it is neither staged nor recorded as committed")
            return
        self._move(*waiting)
        rows = self._records.take_away(*waiting)
        if transaction.rows is not None and rows != transaction.rows:
            raise lost(transaction, self._where, f"{waiting[1]} holds {counted(rows, 'row')} of it")
        self._records.record(transaction, rows)

    def _move(self, number: int, staged_in: str) -> None:
        staged = self._session.quoted(self._schema, staged_in)
        columns = self._table.staged_columns(self._session, self._schema, staged_in)
        self._session.change(self._table.insert_sql(staged, columns, number))
