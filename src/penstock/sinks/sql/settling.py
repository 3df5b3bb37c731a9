"""How the driver settles the transactions of a sink for a SQL server: commit, abort, find. Driver.

A transaction that is neither prepared nor staged was committed if its proof is there; without it: `CommitLostError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from penstock.sinks.sql.records import Records, SqlSession
from penstock.sinks.sql.transaction import STAGED, SqlTransaction, lost


class Settling(ABC):
    """One session of the driver. A server says how it commits what is prepared and how it moves what is staged."""

    def __init__(self, session: SqlSession, where: str) -> None:
        self.records = Records(session)
        self._session = session
        self._where = where

    @abstractmethod
    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """COMMIT or ROLLBACK a prepared transaction; False if there is none of this name."""

    @abstractmethod
    def end_writer(self, transaction: SqlTransaction) -> None:
        """End the session of an attempt that is still writing, if there is one."""

    @abstractmethod
    def prepared(self, job: str, sink: str) -> Iterable[str]:
        """The `numbers` of what is prepared of this job and sink in this database."""

    @abstractmethod
    def move(self, number: int, staged_in: str) -> None:
        """Insert the staged rows with this number into the target."""

    def commit_all(self, transactions: Iterable[SqlTransaction]) -> None:
        """Commit prepared ones one by one, and all staged ones that follow each other in one transaction."""
        staged: list[SqlTransaction] = []
        for transaction in transactions:
            if transaction.how == STAGED:
                staged.append(transaction)
                continue
            self._move_all(staged)
            staged = []
            if not self.settle("COMMIT", transaction) and not self.records.is_recorded(transaction):
                raise lost(transaction, self._where, "it is neither prepared nor recorded as committed")
        self._move_all(staged)

    def abort(self, transaction: SqlTransaction) -> None:
        """Roll back, or delete what is staged; a session that is still writing is ended."""
        self.end_writer(transaction)
        if transaction.how != STAGED:
            self.settle("ROLLBACK", transaction)
            return
        with self._session.transaction():
            waiting = self.records.registered(transaction)
            if waiting is not None:
                self.records.take_away(*waiting)

    def found(self, job: str, sink: str) -> list[SqlTransaction]:
        """List what is prepared in this database and what is staged beside the table."""
        names = [f"{job}.{sink}.{numbers}" for numbers in sorted(self.prepared(job, sink))]
        prepared = [SqlTransaction.parse(job, sink, name) for name in names]
        staged = self.records.staged_of(job, sink)
        waiting = [SqlTransaction(job, sink, *numbers, how=STAGED) for numbers in staged]
        return [*(each for each in prepared if each is not None), *waiting]

    def _move_all(self, transactions: Sequence[SqlTransaction]) -> None:
        if not transactions:
            return
        with self._session.transaction():
            for transaction in transactions:
                self._move_once(transaction)

    def _move_once(self, transaction: SqlTransaction) -> None:
        waiting = self.records.registered(transaction)
        if waiting is None:
            if not self.records.is_recorded(transaction):
                raise lost(transaction, self._where, "it is neither staged nor recorded as committed")
            return
        self.move(*waiting)
        rows = self.records.take_away(*waiting)
        if transaction.rows is not None and rows != transaction.rows:
            raise lost(transaction, self._where, f"{rows} of its rows are staged in {waiting[1]}")
        self.records.record(transaction, rows)
