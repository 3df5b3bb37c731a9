"""One transaction of a `Postgres` sink while its rows come in. Executors.

The rows go by COPY through one open transaction of the server, so a task that dies leaves nothing behind. At the end it is
either prepared, or committed where the rows are only staged.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.sinks.postgres.binary import binary_rows
from penstock.sinks.postgres.exactness import changed_values
from penstock.sinks.postgres.index_rows import LONGEST_BYTES, first_too_long, has_long_values
from penstock.sinks.postgres.records import RecordSession, staged_in
from penstock.sinks.postgres.server import PostgresServer
from penstock.sinks.postgres.table import Layout, listed, quoted
from penstock.sinks.postgres.values import csv_rows
from penstock.sinks.sql.bad_rows import bad_record, refuse_changed, row_at
from penstock.sinks.sql.records import STAGED_KEY, Records
from penstock.sinks.sql.transaction import PREPARED, SqlTransaction, owner_digest

_SHOWN_BYTES = 40


class OpenTransaction:
    """A session of its own, in a transaction."""

    def __init__(self, server: PostgresServer, layout: Layout, transaction: SqlTransaction) -> None:
        self.transaction = transaction
        self.rows = 0
        self._server = server
        self._layout = layout
        with server.task_errors(layout.name):
            self._connection = server.connect(session_name(transaction))
            self._connection.execute("BEGIN")
            self._records = Records(RecordSession(self._connection, layout.schema))
            self._number: int | None = None
            if transaction.how != PREPARED:
                self._number = self._records.register(transaction, staged_in(layout))

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows; a row that the table refuses is named."""
        self._know_the_columns(batch.schema)
        into, rows = self._layout.name, batch
        declared = [column.type for column in self._layout.columns]
        if self._number is not None:
            into, rows = quoted(self._layout.schema, staged_in(self._layout)), self._numbered(batch)
            declared = ["int8", "int8", *declared]
        refuse_changed(batch, self._layout.name, changed_values(batch, self._layout.columns))
        binary = binary_rows(rows, declared)
        statement = (
            f"COPY {into} ({listed(rows.schema.names)}) FROM STDIN (FORMAT {'binary' if binary else 'csv'})"
        )
        data = binary or csv_rows(rows)
        with (
            self._server.task_errors(self._layout.name, batch, as_text=binary is None),
            self._connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.write(data)
        self._refuse_too_long(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Make the rows durable and invisible; from here on any session can commit or abort them."""
        with self._server.task_errors(self._layout.name):
            if self._number is None:
                self._records.record(self.transaction, self.rows)
                self._connection.execute(f"PREPARE TRANSACTION '{global_id(self.transaction)}'")
            else:
                self._connection.execute("COMMIT")
        self._connection.close()

    def discard(self) -> None:
        """Close the session: the server rolls back."""
        self._connection.close()

    def _know_the_columns(self, schema: pa.Schema) -> None:
        """Before the first rows: binary values of a type that ALTER TABLE has replaced since the job began would be read as others."""
        if self._number is None and self.rows == 0:
            with self._server.task_errors(self._layout.name):
                self._layout = self._layout.locked(self._connection, schema)

    def _refuse_too_long(self, batch: pa.RecordBatch) -> None:
        """Prepared rows have met the indexes already; staged ones would meet them at commit."""
        if self._number is None:
            return
        staged = quoted(self._layout.schema, staged_in(self._layout))
        for index in self._layout.indexed:
            if has_long_values(batch, index):
                with self._server.task_errors(self._layout.name):
                    found = first_too_long(self._connection, staged, index, self._number, self.rows)
                if found is not None:
                    why = f"the values of {list(index)} are too long for the index on them, which takes {LONGEST_BYTES:,} bytes"
                    raise bad_record(self._layout.name, why, row_at(batch, found - self.rows))

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._number is None:
            return batch
        numbers = np.arange(self.rows, self.rows + batch.num_rows)
        columns = [
            pa.repeat(pa.scalar(self._number, pa.int64()), batch.num_rows),
            pa.array(numbers),
            *batch.columns,
        ]
        return pa.RecordBatch.from_arrays(columns, names=[*STAGED_KEY, *batch.schema.names])


def id_prefix(job: str, sink: str) -> str:
    """The beginning that the names of all prepared transactions of a job and sink have, and no others."""
    return f"penstock:{job[:_SHOWN_BYTES]}:{sink[:_SHOWN_BYTES]}:{owner_digest(job, sink)}:"


def global_id(transaction: SqlTransaction) -> str:
    """The name of a prepared transaction: letters, digits and `-_:.`, less than 200 bytes."""
    return id_prefix(transaction.job, transaction.sink) + transaction.numbers


def session_name(transaction: SqlTransaction) -> str:
    """What `pg_stat_activity` shows; no two transactions have the same first 34 characters."""
    digest = owner_digest(transaction.job, transaction.sink)
    return f"penstock {digest} {transaction.token} {transaction.job}"[:63]
