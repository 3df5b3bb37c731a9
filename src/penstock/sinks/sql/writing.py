"""One transaction of a sink for a SQL server while its rows come in. Executors.

The rows go through one open transaction of the server, so a task that dies leaves nothing behind. At the end it is either
prepared, or committed where the rows are only staged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import pyarrow as pa

from penstock.sinks.bad_rows import Change, refuse_changed
from penstock.sinks.sql.records import Records, staging_table
from penstock.sinks.sql.server import SqlServer
from penstock.sinks.sql.table import Layout
from penstock.sinks.sql.transaction import PREPARED, SqlTransaction


class OpenTransaction(ABC):
    """A session of its own, in a transaction. A server says how rows are sent."""

    def __init__(self, server: SqlServer, layout: Layout, transaction: SqlTransaction) -> None:
        self.transaction = transaction
        self.rows = 0
        self._server = server
        self._layout = layout
        self._number: int | None = None
        """Of a transaction whose rows are staged."""
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
        """Which values the server would change without a word."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch, into: str) -> None:
        """Send rows to this table, marked with their numbers if they are staged; a row that the server refuses is named."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows; a row that the table refuses is named."""
        refuse_changed(batch, self._layout.name, self.changed_values(batch))
        self.send(batch, self._layout.name if self._number is None else self._staged())
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Make the rows durable and invisible; from here on any session can commit or abort them."""
        with self._server.task_errors(self._layout.name):
            if self._number is None:
                self._records.record(self.transaction, self.rows)
                self._two_phase.prepare(self.transaction)
            else:
                self._session.execute("COMMIT")
        self._session.close()

    def discard(self) -> None:
        """Close the session: the server rolls back."""
        self._session.close()

    def _staged(self) -> str:
        return self._session.quoted(self._layout.schema, staging_table(self._layout))
