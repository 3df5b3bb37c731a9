"""One transaction of a `MySQL` sink while its rows come in. Executors.

The rows go by INSERTs of many rows through one open transaction of the server, so a task that dies leaves nothing behind. At the
end it is either prepared (XA), or committed where the rows are only staged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from penstock.sinks.mysql.codes import REFUSED_ROWS
from penstock.sinks.mysql.exactness import changed_values
from penstock.sinks.mysql.records import staged_in
from penstock.sinks.mysql.server import MySQLServer, code, pymysql_module, said
from penstock.sinks.mysql.table import Layout, listed, quoted
from penstock.sinks.mysql.values import python_rows
from penstock.sinks.sql.bad_rows import bad_record, refuse_changed, row_at
from penstock.sinks.sql.records import STAGED_KEY, Records
from penstock.sinks.sql.transaction import PREPARED, SqlTransaction, owner_digest

_SHOWN_BYTES = 20
_STATEMENT_BYTES = 500_000
"""Of one INSERT, but for a row that is longer. Servers refuse statements above `max_allowed_packet`, which may have been lowered."""
_ROW_NUMBER = re.compile(r"(\d+)\D*$")
"""Where a note of the server says which row of the statement it is about."""


Row = tuple[int, str, int]
"""Its place in the batch, its values in SQL, and how many bytes these take."""


class OpenTransaction:
    """A session of its own, in a transaction."""

    def __init__(self, server: MySQLServer, layout: Layout, transaction: SqlTransaction) -> None:
        self.transaction = transaction
        self.rows = 0
        self._server = server
        self._layout = layout
        self._number: int | None = None
        self._xid = xid(transaction, server.database)
        with server.task_errors(quoted(layout.table)):
            self._session = server.connect()
            lock = session_lock(transaction, server.database)
            self._packet_bytes = int(
                self._session.execute("SELECT GET_LOCK(?, 0), @@max_allowed_packet", [lock])[0][1]
            )
            if transaction.how == PREPARED:
                self._session.execute(f"XA START {self._xid}")
            else:
                self._session.execute("START TRANSACTION")
                self._number = Records(self._session).register(transaction, staged_in(layout))

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows; a row that the table refuses is named."""
        names = [column.name for column in self._layout.columns]
        into, columns = self._layout.table, names
        if self._number is not None:
            into, columns = staged_in(self._layout), [*STAGED_KEY, *names]
        insert = f"INSERT INTO {quoted(into)} ({listed(columns)}) VALUES "  # noqa: S608 - all quoted
        refuse_changed(batch, quoted(self._layout.table), changed_values(batch, self._layout.columns))
        with self._server.task_errors(quoted(self._layout.table)):
            for rows in _chunks(self._literals(batch), min(_STATEMENT_BYTES, self._room(insert))):
                self._insert(insert, rows, batch)

    def finish(self) -> None:
        """Make the rows durable and invisible; when the session has ended any other can commit or abort them."""
        with self._server.task_errors(quoted(self._layout.table)):
            if self._number is None:
                Records(self._session).record(self.transaction, self.rows)
                self._session.execute(f"XA END {self._xid}")
                self._session.execute(f"XA PREPARE {self._xid}")
            else:
                self._session.execute("COMMIT")
        self._session.close()

    def discard(self) -> None:
        """Close the session: the server rolls back."""
        self._session.close()

    def _literals(self, batch: pa.RecordBatch) -> Iterator[Row]:
        for index, row in enumerate(python_rows(batch)):
            marked = row if self._number is None else (self._number, self.rows, *row)
            self.rows += 1
            literal = f"({', '.join(map(self._session.literal, marked))})"
            yield index, literal, len(literal.encode())

    def _room(self, insert: str) -> int:
        """How many bytes of rows the server takes behind these words: a packet has one byte of its own."""
        return self._packet_bytes - len(insert.encode()) - 1

    def _insert(self, insert: str, rows: list[Row], batch: pa.RecordBatch) -> None:
        index, _, size = rows[0]
        missing = size - self._room(insert)
        if missing > 0:
            why = (
                f"its INSERT takes {self._packet_bytes + missing:,} bytes, and max_allowed_packet of the server is "
                f"{self._packet_bytes:,}; raise it, or shorten the row"
            )
            raise bad_record(quoted(self._layout.table), why, row_at(batch, index))
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
                raise bad_record(quoted(self._layout.table), f"{text} (the value would be changed)", row)

    def _name_the_row(self, insert: str, rows: list[Row], batch: pa.RecordBatch) -> None:
        """Insert them one by one: the server has taken back the statement, and will refuse the same row."""
        for index, literal, _ in rows:
            try:
                self._session.execute(insert + literal)
            except pymysql_module().Error as error:
                if code(error) not in REFUSED_ROWS:
                    raise
                raise bad_record(quoted(self._layout.table), said(error), row_at(batch, index)) from error


def _chunks(rows: Iterator[Row], most_bytes: int) -> Iterator[list[Row]]:
    """Put rows together to statements of a size that the server takes; two bytes part one from the next."""
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


def global_part(job: str, sink: str, database: str) -> str:
    """What the names of all prepared transactions of a job and sink in a database share, and no others."""
    return f"{job[:_SHOWN_BYTES]}:{sink[:_SHOWN_BYTES]}:{owner_digest(job, sink, database)}"


def xid(transaction: SqlTransaction, database: str) -> str:
    """The name of a prepared transaction in SQL: two parts of at most 64 bytes, of letters, digits and `-_:.`."""
    return f"'{global_part(transaction.job, transaction.sink, database)}','{transaction.numbers}'"


def session_lock(transaction: SqlTransaction, database: str) -> str:
    """The name of the lock by which the session of an attempt is found."""
    return f"penstock {owner_digest(transaction.job, transaction.sink, database)} {transaction.token}"
