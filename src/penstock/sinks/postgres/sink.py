"""The sink `Postgres`: rows in a table of a PostgreSQL server. Written in tasks, committed on the driver.

`PREPARE TRANSACTION` in the task and `COMMIT PREPARED` on the driver, or staged rows; see `sql_sink`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError, InternalError, PenstockError
from penstock.sinks.postgres.records import create_records
from penstock.sinks.postgres.server import PostgresServer
from penstock.sinks.postgres.settling import PostgresSettling
from penstock.sinks.postgres.table import Layout, TargetTable
from penstock.sinks.postgres.writing import OpenTransaction
from penstock.sinks.sql.settling import Settling
from penstock.sinks.sql.sink import SqlServerSink
from penstock.sinks.sql.transaction import (
    PREPARED,
    STAGED,
    SqlTransaction,
    checked_identifier,
    checked_way,
)

_LONGEST_NAME = 63


class Postgres(SqlServerSink):
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
        self.mode, columns, self.transactions = checked_way(mode, key, transactions)
        if schema is not None:
            checked_identifier("schema", schema, longest=_LONGEST_NAME)
        self.table = TargetTable(checked_identifier("table", table, longest=_LONGEST_NAME), schema, columns)
        self.create = create
        self._layout: Layout | None = None

    def __repr__(self) -> str:
        return (
            f"Postgres({self.server.shown!r}, table={self.table.name!r}, mode={self.mode!r}, "
            f"transactions={self.transactions!r})"
        )

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
            create_records(connection, self._layout.schema, staged)

    def _open(self, transaction: SqlTransaction) -> OpenTransaction:
        if self._layout is None:
            raise InternalError(f"{self!r} was not validated before a task used it")
        return OpenTransaction(self.server, self._layout, transaction)

    @contextmanager
    def _driver(self, for_good: type[PenstockError], follows: str) -> Iterator[Settling]:
        with self.server.commit_errors(for_good, follows), self.server.session() as connection:
            yield PostgresSettling(connection, self.table, str(self.server))

    def _exists(self, connection: Any) -> bool:
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [self.table.quoted])
        return bool(found.fetchone()[0])

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
