"""The sinks `MySQL` and `MariaDB`: rows in a table of InnoDB. Written in tasks, committed on the driver.

`XA PREPARE` in the task and `XA COMMIT` on the driver, or staged rows; see `sql_sink`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import ConfigError, InternalError, PenstockError
from penstock.sinks.mysql.codes import MAY_NOT_RECOVER
from penstock.sinks.mysql.records import create_records
from penstock.sinks.mysql.server import MySQLServer, Session, code, pymysql_module, said, server_kind
from penstock.sinks.mysql.settling import MySQLSettling
from penstock.sinks.mysql.table import Layout, TargetTable
from penstock.sinks.mysql.writing import OpenTransaction
from penstock.sinks.sql.settling import Settling
from penstock.sinks.sql.sink import SqlServerSink
from penstock.sinks.sql.transaction import (
    PREPARED,
    STAGED,
    SqlTransaction,
    checked_identifier,
    checked_way,
)

_LONGEST_NAME = 64
_OLDEST = {"MariaDB": (10, 5, 2), "MySQL": (8, 0, 0)}
"""Before these, the end of a session rolled back what it had prepared, or XA was not safe in a crash."""


class MySQL(SqlServerSink):
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
        self.mode, columns, self.transactions = checked_way(mode, key, transactions)
        self.table = TargetTable(checked_identifier("table", table, longest=_LONGEST_NAME), columns)
        self.create = create
        self._layout: Layout | None = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.server.shown!r}, table={self.table.name!r}, mode={self.mode!r}, "
            f"transactions={self.transactions!r})"
        )

    def validate(self, schema: pa.Schema) -> None:
        """Compare with the table and the server; make the tables of records that are missing."""
        self.table.check_columns(schema)
        with self.server.config_errors(), self.server.session() as session:
            _check_version(session)
            if self.transactions == PREPARED:
                _check_recovery(session)
            if self.create:
                statement = self.table.create_sql(schema, server_kind(session))
                session.execute(statement.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            self._layout = self.table.check_existing(session, schema)
            create_records(session, self._layout if self.transactions == STAGED else None)

    def _open(self, transaction: SqlTransaction) -> OpenTransaction:
        if self._layout is None:
            raise InternalError(f"{self!r} was not validated before a task used it")
        return OpenTransaction(self.server, self._layout, transaction)

    @contextmanager
    def _driver(self, for_good: type[PenstockError], follows: str) -> Iterator[Settling]:
        with self.server.commit_errors(for_good, follows), self.server.session() as session:
            yield MySQLSettling(session, self.table, self.server, only_staged=self.transactions == STAGED)


class MariaDB(MySQL):
    """The same sink under the name of the other server."""


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


def _check_recovery(session: Session) -> None:
    """See whether this user may list what is prepared: better now than in recovery."""
    try:
        session.execute("XA RECOVER")
    except pymysql_module().Error as error:
        if code(error) != MAY_NOT_RECOVER:
            raise
        raise ConfigError(
            f"this user may not list prepared transactions (XA RECOVER: {said(error)}), so they could not be found after a crash; "
            "run GRANT XA_RECOVER_ADMIN ON *.* TO ..., or use transactions='staged', which needs no such right",
            code=code(error),
        ) from error
