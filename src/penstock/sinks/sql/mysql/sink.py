"""The sinks `MySQL` and `MariaDB`: rows in a table of InnoDB. Written in tasks, committed on the driver."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import Duration
from penstock.sinks.sql.mysql.server import MySQLServer
from penstock.sinks.sql.mysql.table import MySQLTable
from penstock.sinks.sql.mysql.writing import MySQLWriting
from penstock.sinks.sql.server import checked_lock_timeout_s
from penstock.sinks.sql.sink import SqlServerSink
from penstock.sinks.sql.transaction import checked_identifier, checked_way

_LONGEST_NAME_BYTES = 64


class MySQL(SqlServerSink):
    """A table of InnoDB in a MySQL (8.0 or newer) or MariaDB (10.5 or newer) database.

    `mode="append"` inserts, `mode="upsert"` replaces the row that has the same values in the columns `key`. Rows wait for
    their commit `"prepared"` (the default of append) or `"staged"` (the only way to upsert). Names are taken letter by letter.
    """

    writing = MySQLWriting

    def __init__(
        self,
        address: str,
        table: str,
        mode: str = "append",
        key: Sequence[str] | None = None,
        *,
        transactions: str | None = None,
        create: bool = False,
        lock_timeout: Duration = "30s",
    ) -> None:
        way = checked_way(mode, key, transactions)
        name = checked_identifier("table", table, longest_bytes=_LONGEST_NAME_BYTES)
        server = MySQLServer(address, checked_lock_timeout_s(lock_timeout))
        super().__init__(server, MySQLTable(name, None, way.key), way, create=create)


class MariaDB(MySQL):
    """The same sink under the name of the other server."""
