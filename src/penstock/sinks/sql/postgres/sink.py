"""The sink `Postgres`: rows in a table of a PostgreSQL server. Written in tasks, committed on the driver."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import Duration
from penstock.sinks.sql.postgres.server import PostgresServer
from penstock.sinks.sql.postgres.table import PostgresTable
from penstock.sinks.sql.postgres.writing import PostgresWriting
from penstock.sinks.sql.server import checked_lock_timeout_s
from penstock.sinks.sql.sink import SqlServerSink
from penstock.sinks.sql.transaction import checked_identifier, checked_way

_LONGEST_NAME_BYTES = 63


class Postgres(SqlServerSink):
    """A table of a PostgreSQL database, 12 or newer.

    `mode="append"` inserts, `mode="upsert"` replaces the row that has the same values in the columns `key`. Rows wait for
    their commit `"prepared"` (the default of append) or `"staged"` (the only way to upsert). Names are taken letter by letter.
    """

    writing = PostgresWriting

    def __init__(
        self,
        address: str,
        table: str,
        mode: str = "append",
        key: Sequence[str] | None = None,
        *,
        schema: str | None = None,
        transactions: str | None = None,
        create: bool = False,
        lock_timeout: Duration = "30s",
    ) -> None:
        way = checked_way(mode, key, transactions)
        if schema is not None:
            checked_identifier("schema", schema, longest_bytes=_LONGEST_NAME_BYTES)
        name = checked_identifier("table", table, longest_bytes=_LONGEST_NAME_BYTES)
        server = PostgresServer(address, checked_lock_timeout_s(lock_timeout))
        super().__init__(server, PostgresTable(name, schema, way.key), way, create=create)
