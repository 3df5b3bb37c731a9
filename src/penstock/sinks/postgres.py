"""The sink `Postgres`: rows in a table of a PostgreSQL server. Written in tasks, committed on the driver.

`transactions="prepared"`   the rows and a proof of commit are in one transaction of the server, which the task prepares
                            (`PREPARE TRANSACTION`) and the driver commits from another session
`transactions="staged"`     the task commits the rows to a table beside the target; the driver moves them, with the proof,
                            in one ordinary transaction

A transaction that is neither prepared nor staged was committed if its proof is there; without it: `CommitLostError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import CommitLostError, ConfigError, InternalError, PenstockError, UnavailableError
from penstock.sinks.postgres_records import Records
from penstock.sinks.postgres_server import PostgresServer, psycopg_module
from penstock.sinks.postgres_table import Layout, TargetTable
from penstock.sinks.postgres_writing import OpenTransaction, global_id, id_prefix, session_name
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

_LONGEST_NAME = 63
_PREPARED_IDS = (
    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
)
_STAGED_COLUMNS = """SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 2 AND NOT attisdropped
    ORDER BY attnum"""
_END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s
    AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"""
_REPAIR = "nothing of this commit was kept, its rows stay staged; repair the table, then start the job again: it commits them first"
_WAIT = "it is tried again"


class Postgres(TwoPhaseCommitSink):
    """A table of a PostgreSQL database, 12 or newer.

    `mode="append"` inserts, `mode="upsert"` replaces the row that has the same values in the columns `key`. Rows wait for
    their commit `"prepared"` (the default of append) or `"staged"` (the only way to upsert). Names are taken letter by letter.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        mode: str = "append",
        key: Sequence[str] | None = None,
        *,
        schema: str | None = None,
        transactions: str | None = None,
        create: bool = False,
        lock_timeout_s: float = 30.0,
    ) -> None:
        self.server = PostgresServer(dsn, lock_timeout_s)
        self.mode, columns = checked_mode(mode, key)
        self.transactions = checked_transactions(transactions, self.mode)
        if schema is not None:
            checked_identifier("schema", schema, longest=_LONGEST_NAME)
        self.table = TargetTable(checked_identifier("table", table, longest=_LONGEST_NAME), schema, columns)
        self.create = create
        self._layout: Layout | None = None
        self._writing: OpenTransaction | None = None

    def __repr__(self) -> str:
        return (
            f"Postgres({self.server.shown!r}, table={self.table.name!r}, mode={self.mode!r}, "
            f"transactions={self.transactions!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writing": None}

    def validate(self, schema: pa.Schema) -> None:
        """Compare with the table and the server's settings; make the tables of records that are missing."""
        self.table.check_columns(schema)
        with self.server.config_errors(), self.server.session() as connection:
            if self.transactions == PREPARED:
                self._check_prepared_transactions(connection)
            if self.create and not self._exists(connection):
                connection.execute(self.table.create_sql(schema))
            self._layout = self.table.check_existing(connection, schema)
            staged = self._layout if self.transactions == STAGED else None
            Records(self._layout.schema).create(connection, staged)

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Open a session and a transaction in it."""
        if self._layout is None:
            raise InternalError(f"{self!r} was not validated before a task used it")
        begun = SqlTransaction.begin(context)
        transaction = msgspec.structs.replace(begun, how=self.transactions)
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
        with self._driver(CommitLostError, _REPAIR) as (connection, records):
            staged: list[SqlTransaction] = []
            for transaction in found:
                if transaction.how == STAGED:
                    staged.append(transaction)
                    continue
                self._insert_once(connection, records, staged)
                staged = []
                self._commit_prepared(connection, records, transaction)
            self._insert_once(connection, records, staged)

    def abort(self, transaction: Transaction) -> None:
        """Roll back, or delete what is staged; a session that is still writing is ended."""
        target = SqlTransaction.read(transaction)
        if self._writing is not None and self._writing.transaction.name == target.name:
            self._writing.discard()
            self._writing = None
            return
        with self._driver(UnavailableError, _WAIT) as (connection, records):
            connection.execute(_END_SESSIONS, [session_name(target)])
            if target.how == STAGED:
                with connection.transaction():
                    waiting = records.registered(connection, target)
                    if waiting is not None:
                        records.take_away(connection, *waiting)
            else:
                self._settle(connection, "ROLLBACK", target)

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        """List what is prepared in this database and what is staged beside the table."""
        prefix = id_prefix(job, sink)
        with self._driver(UnavailableError, _WAIT) as (connection, records):
            names = sorted(gid for (gid,) in connection.execute(_PREPARED_IDS, [prefix]))
            staged = records.staged_of(connection, job, sink)
        prepared = [
            SqlTransaction.parse(job, sink, f"{job}.{sink}.{name.removeprefix(prefix)}") for name in names
        ]
        found = [each for each in prepared if each is not None]
        waiting = [SqlTransaction(job, sink, *numbers, how=STAGED) for numbers in staged]
        return [each.as_transaction() for each in [*found, *waiting]]

    @contextmanager
    def _driver(self, for_good: type[PenstockError], follows: str) -> Iterator[tuple[Any, Records]]:
        with self.server.commit_errors(for_good, follows), self.server.session() as connection:
            yield connection, Records(self.table.found_schema(connection))

    def _exists(self, connection: Any) -> bool:
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [self.table.quoted])
        return bool(found.fetchone()[0])

    def _begun(self, transaction: Transaction) -> OpenTransaction:
        name = SqlTransaction.read(transaction).name
        if self._writing is None or self._writing.transaction.name != name:
            raise InternalError(
                f"{self!r} was asked to write to {name}, which it did not begin", transaction=name
            )
        return self._writing

    def _commit_prepared(self, connection: Any, records: Records, transaction: SqlTransaction) -> None:
        if not self._settle(connection, "COMMIT", transaction) and not records.is_recorded(
            connection, transaction
        ):
            raise lost(transaction, str(self.server), "it is neither prepared nor recorded as committed")

    def _settle(self, connection: Any, verb: str, transaction: SqlTransaction) -> bool:
        """Commit or roll back a prepared transaction; False if there is none of this name."""
        try:
            connection.execute(f"{verb} PREPARED '{global_id(transaction)}'")
        except psycopg_module().errors.UndefinedObject:
            return False
        return True

    def _insert_once(self, connection: Any, records: Records, transactions: Sequence[SqlTransaction]) -> None:
        if not transactions:
            return
        with connection.transaction():
            for transaction in transactions:
                waiting = records.registered(connection, transaction)
                if waiting is not None:
                    self._move(connection, records, transaction, waiting)
                elif not records.is_recorded(connection, transaction):
                    raise lost(
                        transaction, str(self.server), "it is neither staged nor recorded as committed"
                    )

    def _move(
        self, connection: Any, records: Records, transaction: SqlTransaction, waiting: tuple[int, str]
    ) -> None:
        number, staged_in = waiting
        staged = records.quoted(staged_in)
        columns = [name for (name,) in connection.execute(_STAGED_COLUMNS, [staged])]
        connection.execute(self.table.insert_sql(staged, columns, number))
        rows = records.take_away(connection, number, staged_in)
        if transaction.rows is not None and rows != transaction.rows:
            raise lost(transaction, str(self.server), f"{rows} of its rows are staged in {staged}")
        records.record(connection, transaction, rows)

    def _check_prepared_transactions(self, connection: Any) -> None:
        allowed = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])
        if allowed == 0:
            raise ConfigError(
                f"PostgreSQL at {self.server} allows no prepared transactions (max_prepared_transactions = 0); run ALTER SYSTEM "
                "SET max_prepared_transactions = 200 and restart the server (200: parallelism times the batches between two "
                "checkpoints, and some more), or use transactions='staged', which needs no setting",
                server=self.server.shown,
                max_prepared_transactions=allowed,
            )
