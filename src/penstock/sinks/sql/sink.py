"""What the sinks for SQL servers do alike. Written in tasks, committed on the driver.

`transactions="prepared"`   the rows and a proof of commit are in one transaction of the server, which the task prepares and
                            the driver commits from another session
`transactions="staged"`     the task commits the rows to a table beside the target; the driver moves them, with the proof,
                            in one ordinary transaction
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from penstock.errors import CommitLostError, InternalError, PenstockError, UnavailableError
from penstock.sinks.sql.settling import Settling
from penstock.sinks.sql.transaction import SqlTransaction
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_REPAIR = "nothing of this commit was kept, its rows stay staged; repair the table, then start the job again: it commits them first"
_WAIT = "it is tried again"


class Writing(Protocol):
    """One transaction while its rows come in, in a session of its own."""

    transaction: SqlTransaction
    rows: int

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows."""

    def finish(self) -> None:
        """Make the rows durable and invisible, and leave the session."""

    def discard(self) -> None:
        """Leave the session: the server rolls back."""


class SqlServerSink(TwoPhaseCommitSink):
    """A table of a SQL server. A server says how a task writes and how the driver settles."""

    transactions: str
    _writing: Writing | None = None

    @abstractmethod
    def _open(self, transaction: SqlTransaction) -> Writing:
        """Open a session and a transaction in it."""

    @abstractmethod
    def _driver(self, for_good: type[PenstockError], follows: str) -> AbstractContextManager[Settling]:
        """Open a session of the driver; what the server refuses for good is raised as this error, with what follows."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None}

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Open a session and a transaction in it."""
        transaction = msgspec.structs.replace(SqlTransaction.begin(context), how=self.transactions)
        self._writing = self._open(transaction)
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
        if found:
            with self._driver(CommitLostError, _REPAIR) as settling:
                settling.commit_all(found)

    def abort(self, transaction: Transaction) -> None:
        """Roll back, or delete what is staged; a session that is still writing is ended."""
        target = SqlTransaction.read(transaction)
        if self._writing is not None and self._writing.transaction.name == target.name:
            self._writing.discard()
            self._writing = None
            return
        with self._driver(UnavailableError, _WAIT) as settling:
            settling.abort(target)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List what is prepared in this database and what is staged beside the table."""
        with self._driver(UnavailableError, _WAIT) as settling:
            return [each.as_transaction() for each in settling.found(job, sink)]

    def _begun(self, transaction: Transaction) -> Writing:
        name = SqlTransaction.read(transaction).name
        if self._writing is None or self._writing.transaction.name != name:
            raise InternalError(
                f"{self!r} was asked to write to {name}, which it did not begin", transaction=name
            )
        return self._writing
