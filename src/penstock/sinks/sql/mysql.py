"""The sinks `MySQL` and `MariaDB`: rows in a table of InnoDB. Written in tasks, committed on the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.config import Duration
from penstock.sinks.bad_rows import Change, bad_record, row_at
from penstock.sinks.sql.mysql_server import REFUSED_ROWS, MySQLServer, code, pymysql_module
from penstock.sinks.sql.mysql_table import MySQLTable
from penstock.sinks.sql.mysql_values import changed_values, python_rows
from penstock.sinks.sql.server import SqlServer, SqlTransaction, checked_lock_timeout_s
from penstock.sinks.sql.server_sink import (
    OpenTransaction,
    SqlServerSink,
    checked_identifier,
    checked_write_settings,
)
from penstock.sinks.sql.table import STAGED_KEY, Layout
from penstock.sinks.table_checks import quoted_name

_STATEMENT_BYTES = 500_000
"""The size of one INSERT, unless a single row is longer. Servers refuse statements above `max_allowed_packet`."""
_ROW_NUMBER = re.compile(r"(\d+)\D*$")
"""The number of the row in a note of the server."""


Row = tuple[int, str, int]
"""Its position in the batch, its values in SQL, and the size of these in bytes."""


class MySQLWriting(OpenTransaction):
    """Sends rows to MySQL or MariaDB in INSERT statements."""

    _session: Any

    def __init__(self, server: SqlServer, layout: Layout, transaction: SqlTransaction) -> None:
        super().__init__(server, layout, transaction)
        with server.task_errors(layout.name):
            self._packet_bytes = int(self._session.execute("SELECT @@max_allowed_packet")[0][0])

    @override
    def changed_values(self, batch: pa.RecordBatch) -> Iterable[Change]:
        return changed_values(batch, self._layout.columns)

    @override
    def send(self, batch: pa.RecordBatch, into: str) -> None:
        names = [column.name for column in self._layout.columns]
        columns = names if self._number is None else [*STAGED_KEY, *names]
        listed = ", ".join(quoted_name(name, mark="`") for name in columns)
        insert = f"INSERT INTO {into} ({listed}) VALUES "  # noqa: S608 - all quoted
        with self._server.task_errors(self._layout.name):
            for rows in _chunks(self._literals(batch), min(_STATEMENT_BYTES, self._room(insert))):
                self._insert(insert, rows, batch)

    def _literals(self, batch: pa.RecordBatch) -> Iterator[Row]:
        for index, row in enumerate(python_rows(batch)):
            marked = row if self._number is None else (self._number, self.rows + index, *row)
            literal = f"({', '.join(map(self._session.literal, marked))})"
            yield index, literal, len(literal.encode())

    def _room(self, insert: str) -> int:
        """Return how many bytes of rows fit after `insert`; a packet needs one byte itself."""
        return self._packet_bytes - len(insert.encode()) - 1

    def _insert(self, insert: str, rows: list[Row], batch: pa.RecordBatch) -> None:
        index, _, size = rows[0]
        missing = size - self._room(insert)
        if missing > 0:
            why = (
                f"its INSERT has {self._packet_bytes + missing:,} bytes, but max_allowed_packet of the server is "
                f"{self._packet_bytes:,}; raise it, or shorten the row"
            )
            raise bad_record(self._layout.name, why, row_at(batch, index))
        try:
            notes = self._session.notes(insert + ", ".join(literal for _, literal, _ in rows))
        except pymysql_module().Error as error:
            if code(error) in REFUSED_ROWS:
                self._name_the_row(insert, rows, batch)
            raise
        for _, number, text in notes:
            if number in REFUSED_ROWS:
                place = _ROW_NUMBER.search(text)
                changed = rows[int(place[1]) - 1][0] if place and int(place[1]) <= len(rows) else None
                row = None if changed is None else row_at(batch, changed)
                raise bad_record(self._layout.name, f"{text} (the value would be changed)", row)

    def _name_the_row(self, insert: str, rows: list[Row], batch: pa.RecordBatch) -> None:
        """Insert the rows one by one to find the refused one; the server has undone the statement."""
        for index, literal, _ in rows:
            try:
                self._session.execute(insert + literal)
            except pymysql_module().Error as error:
                if code(error) not in REFUSED_ROWS:
                    raise
                raise bad_record(
                    self._layout.name, self._server.errors.said(error), row_at(batch, index)
                ) from error


def _chunks(rows: Iterator[Row], most_bytes: int) -> Iterator[list[Row]]:
    """Group rows into statements that the server accepts; two bytes separate one row from the next."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        if chunk and size + row[2] > most_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += row[2] + 2
    if chunk:
        yield chunk


_LONGEST_NAME_BYTES = 64


class MySQL(SqlServerSink):
    """Writes to an InnoDB table of a MySQL (8.0 or newer) or MariaDB (10.5 or newer) database.

    `mode="append"` inserts, `mode="upsert"` replaces the row that has the same values in the columns `key`. Rows wait for
    their commit `"prepared"` (the default of append) or `"staged"` (the only way to upsert). Names are used exactly as given.
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
        settings = checked_write_settings(mode, key, transactions)
        name = checked_identifier("table", table, longest_bytes=_LONGEST_NAME_BYTES)
        server = MySQLServer(address, checked_lock_timeout_s(lock_timeout))
        super().__init__(server, MySQLTable(name, None, settings.key), settings, create=create)


class MariaDB(MySQL):
    """The same sink under the name of the other server."""
