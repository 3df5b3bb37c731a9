"""The common part of the sinks for SQL servers: all but the constructor. Written in tasks, committed on the driver.

`transactions="prepared"`   the rows and a proof of commit are in one transaction of the server, which the task prepares and
                            the driver commits from another session
`transactions="staged"`     the task commits the rows to a table beside the target; the driver moves them, with the proof,
                            in one ordinary transaction

A task writes its rows in one open transaction of the server, so a task that dies leaves nothing. At the end that transaction is
prepared, or committed if the rows are only staged. On the driver, a transaction that is neither prepared nor staged was
committed if its proof exists; otherwise `CommitLostError` is raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.errors import CommitLostError, ConfigError, InternalError, PenstockError, UnavailableError
from penstock.sinks import transaction as transactions
from penstock.sinks.bad_rows import Change, refuse_changed
from penstock.sinks.sql.record_tables import Records, create_records, staging_table
from penstock.sinks.sql.server import PREPARED, STAGED, SqlServer, SqlSession, SqlTransaction
from penstock.sinks.sql.table import Layout, TargetTable
from penstock.sinks.table_checks import checked_mode
from penstock.sinks.transaction import begun, is_open
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.wording import counted


class WriteSettings(NamedTuple):
    """How rows are written to a table: the mode, the columns of the key, and how transactions wait for their commit."""

    mode: str
    key: tuple[str, ...]
    transactions: str


def checked_write_settings(
    mode: str, key: Sequence[str] | str | None, transactions: str | None
) -> WriteSettings:
    """Check these settings and fill in the defaults."""
    if mode in {PREPARED, STAGED}:
        raise ConfigError(
            f"mode {mode!r} is not known; mode is 'append' or 'upsert'; how rows wait for their commit is set with transactions={mode!r}",
            mode=mode,
        )
    checked, columns = checked_mode(mode, key)
    return WriteSettings(checked, columns, _checked_transactions(transactions, checked))


def _checked_transactions(transactions: str | None, mode: str) -> str:
    """Return how transactions wait for their commit: prepared for appended rows, staged for upserted ones."""
    if transactions is None:
        return PREPARED if mode == "append" else STAGED
    if transactions not in {PREPARED, STAGED}:
        raise ConfigError(
            f"transactions {transactions!r} is not known; use {PREPARED!r} or {STAGED!r}",
            transactions=transactions,
        )
    if transactions == PREPARED and mode == "upsert":
        raise ConfigError(
            "mode='upsert' with transactions='prepared' would stop the job: a prepared transaction keeps its rows locked "
            "until the checkpoint completes, and the next batch with the same key waits for them; leave transactions out",
            transactions=transactions,
            mode=mode,
        )
    return transactions


def checked_identifier(setting: str, value: object, *, longest_bytes: int) -> str:
    """Return the name of a table or schema, exactly as given; refuses the names of Penstock's own tables."""
    if not isinstance(value, str) or not value or "\0" in value or value.lower().startswith("_penstock"):
        raise ConfigError(
            f"{setting} {value!r} cannot be used: give a name that does not start with '_penstock'",
            setting=setting,
            value=value,
        )
    if len(value.encode()) > longest_bytes:
        raise ConfigError(
            f"{setting} {value!r} is longer than the {longest_bytes} bytes that the server keeps of a name; use a shorter one",
            setting=setting,
            value=value,
        )
    return value


def lost(transaction: SqlTransaction, where: str, why: str) -> CommitLostError:
    """The error for a promised transaction that cannot be committed."""
    look = "If the sink's address, schema or table was changed, start the job once with the old one"
    return transactions.lost(transaction, where=where, why=why, look=look)


class Settlement:
    """Commits, aborts and finds transactions, in one session of the driver."""

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
        """Roll back, or delete the staged rows; a session that is still writing is ended."""
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


class OpenTransaction(ABC):
    """A transaction in its own session, to which a task writes. Subclasses send the rows."""

    def __init__(self, server: SqlServer, layout: Layout, transaction: SqlTransaction) -> None:
        self.transaction = transaction
        self.rows = 0
        self._server = server
        self._layout = layout
        self._number: int | None = None
        """The number of a transaction whose rows are staged."""
        with server.task_errors(layout.name):
            self._session = server.connect(transaction)
            try:
                self._begin()
            except BaseException:
                self._session.close()
                raise

    def _begin(self) -> None:
        self._two_phase = self._server.two_phase(self._session)
        self._records = Records(self._session, self._layout.schema)
        self._two_phase.begin(self.transaction)
        if self.transaction.how != PREPARED:
            self._number = self._records.register(self.transaction, staging_table(self._layout))

    @abstractmethod
    def changed_values(self, batch: pa.RecordBatch) -> Iterable[Change]:
        """Return the values that the server would silently change."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch, into: str) -> None:
        """Send rows to this table, with their numbers if they are staged. The error for a refused row names it."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows. The error for a row that the table refuses names it."""
        refuse_changed(batch, self._layout.name, self.changed_values(batch))
        self.send(batch, self._layout.name if self._number is None else self._staged())
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Make the rows durable but not visible. Any session can then commit or abort them."""
        with self._server.task_errors(self._layout.name):
            if self._number is None:
                self._records.record(self.transaction, self.rows)
                self._two_phase.prepare(self.transaction)
            else:
                self._session.execute("COMMIT")
        self._session.close()

    def discard(self) -> None:
        """Close the session; the server rolls back."""
        self._session.close()

    def _staged(self) -> str:
        return self._session.quoted(self._layout.schema, staging_table(self._layout))


_REPAIR = "nothing of this commit was kept and its rows stay staged; repair the table, then start the job again: it commits them first"
_LOOK = "check the server and the rights of this user"


class SqlServerSink(TwoPhaseCommitSink):
    """A table of a SQL server."""

    writing: ClassVar[type[OpenTransaction]]
    """How rows are sent to this kind of server."""

    def __init__(
        self, server: SqlServer, table: TargetTable, settings: WriteSettings, *, create: bool
    ) -> None:
        self.server = server
        self.table = table
        self.mode = settings.mode
        self.transactions = settings.transactions
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
        """Check the table and the server's settings; create missing tables of records."""
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
        """Send rows; the server refuses bad ones while the job can still go back."""
        writing = begun(self, self._writing, transaction)
        if batch.num_rows:
            writing.write(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Prepare the transaction, or commit the staged rows, and close the session."""
        writing = begun(self, self._writing, transaction)
        writing.finish()
        self._writing = None
        return msgspec.structs.replace(writing.transaction, rows=writing.rows).as_transaction()

    def commit(self, transaction: Transaction) -> None:
        """Make the rows of one transaction visible, unless its commit is recorded."""
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit prepared ones one by one, and all staged ones that follow each other in one transaction."""
        found = [SqlTransaction.read(transaction) for transaction in transactions]
        if found:
            with self._settlement(CommitLostError, _REPAIR) as settlement:
                settlement.commit_all(found)

    def abort(self, transaction: Transaction) -> None:
        """Roll back, or delete the staged rows; a session that is still writing is ended."""
        target = SqlTransaction.read(transaction)
        if self._writing is not None and is_open(self._writing, target):
            self._writing.discard()
            self._writing = None
            return
        with self._settlement(UnavailableError, _LOOK) as settlement:
            settlement.abort(target)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List what is prepared in this database and what is staged beside the table."""
        with self._settlement(UnavailableError, _LOOK) as settlement:
            found = settlement.found(job, sink, only_staged=self.transactions == STAGED)
        return [each.as_transaction() for each in found]

    @override
    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:
        with self.server.commit_errors(UnavailableError, _LOOK), self.server.session() as session:
            return Records(session, self.table.schema).newest(job, sink)

    @contextmanager
    def _settlement(self, for_good: type[PenstockError], follows: str) -> Iterator[Settlement]:
        """Open a session of the driver. A permanent failure is raised as `for_good`, with `follows` in its message."""
        with self.server.commit_errors(for_good, follows), self.server.session() as session:
            yield Settlement(self.server, session, self.table)
