"""What the sinks for SQL servers are alike: all but the constructor. Written in tasks, committed on the driver.

`transactions="prepared"`   the rows and a proof of commit are in one transaction of the server, which the task prepares and
                            the driver commits from another session
`transactions="staged"`     the task commits the rows to a table beside the target; the driver moves them, with the proof,
                            in one ordinary transaction
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from penstock.errors import CommitLostError, InternalError, PenstockError, UnavailableError
from penstock.sinks.sql.records import Records, create_records
from penstock.sinks.sql.server import SqlServer
from penstock.sinks.sql.settling import Settling
from penstock.sinks.sql.table import Layout, TargetTable
from penstock.sinks.sql.transaction import PREPARED, STAGED, SqlTransaction, Way
from penstock.sinks.sql.writing import OpenTransaction
from penstock.sinks.transaction import begun, is_open
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_REPAIR = "nothing of this commit was kept, its rows stay staged; repair the table, then start the job again: it commits them first"
_LOOK = "check the server and what this user may do"


class SqlServerSink(TwoPhaseCommitSink):
    """A table of a SQL server."""

    writing: ClassVar[type[OpenTransaction]]
    """How rows are sent to this kind of server."""

    def __init__(self, server: SqlServer, table: TargetTable, way: Way, *, create: bool) -> None:
        self.server = server
        self.table = table
        self.mode = way.mode
        self.transactions = way.transactions
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
        """Compare with the table and the server's settings; make the tables of records that are missing."""
        self.table.check_columns(schema)
        with self.server.config_errors(), self.server.session() as session:
            self.server.check(session, prepared=self.transactions == PREPARED)
            if self.create and not session.has(self.table.schema, self.table.name):
                session.execute(self.table.create_sql(session, schema))
            self._layout = self.table.check_existing(session, schema)
            create_records(self.server, session, self._layout, staged=self.transactions == STAGED)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Open a session and a transaction in it."""
        if self._layout is None:
            raise InternalError(f"{self!r} was not validated before a task used it")
        transaction = msgspec.structs.replace(SqlTransaction.begin(context), how=self.transactions)
        self._writing = self.writing(self.server, self._layout, transaction)
        return transaction.as_transaction()

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Send rows; one that the table refuses is refused while the job can go back."""
        writing = begun(self, self._writing, transaction)
        if batch.num_rows:
            writing.write(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Prepare the transaction, or commit the staged rows, and leave the session."""
        writing = begun(self, self._writing, transaction)
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
            with self._settling(CommitLostError, _REPAIR) as settling:
                settling.commit_all(found)

    def abort(self, transaction: Transaction) -> None:
        """Roll back, or delete what is staged; a session that is still writing is ended."""
        target = SqlTransaction.read(transaction)
        if self._writing is not None and is_open(self._writing, target):
            self._writing.discard()
            self._writing = None
            return
        with self._settling(UnavailableError, _LOOK) as settling:
            settling.abort(target)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List what is prepared in this database and what is staged beside the table."""
        with self._settling(UnavailableError, _LOOK) as settling:
            found = settling.found(job, sink, only_staged=self.transactions == STAGED)
        return [each.as_transaction() for each in found]

    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        """See `TwoPhaseCommitSink.newest_commit`."""
        with self.server.commit_errors(UnavailableError, _LOOK), self.server.session() as session:
            return Records(session, self.table.schema).newest(job, sink)

    @contextmanager
    def _settling(self, for_good: type[PenstockError], follows: str) -> Iterator[Settling]:
        """A session of the driver; what the server refuses for good is raised as this error, with what follows."""
        with self.server.commit_errors(for_good, follows), self.server.session() as session:
            yield Settling(self.server, session, self.table)
