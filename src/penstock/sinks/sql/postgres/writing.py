"""How rows go to PostgreSQL: by COPY, in binary form wherever there is one. Executors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.sinks.bad_rows import Change, bad_record, row_at
from penstock.sinks.sql.postgres.binary import binary_rows
from penstock.sinks.sql.postgres.errors import refused_row
from penstock.sinks.sql.postgres.exactness import (
    LONGEST_BYTES,
    changed_values,
    first_too_long,
    has_long_values,
)
from penstock.sinks.sql.postgres.table import locked
from penstock.sinks.sql.postgres.values import csv_rows
from penstock.sinks.sql.table import STAGED_KEY
from penstock.sinks.sql.writing import OpenTransaction
from penstock.sinks.tables import quoted_name


class PostgresWriting(OpenTransaction):
    """See `OpenTransaction`."""

    _session: Any

    def changed_values(self, batch: pa.RecordBatch) -> Iterable[Change]:
        """See `OpenTransaction`."""
        return changed_values(batch, self._layout.columns)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `OpenTransaction`."""
        self._know_the_columns(batch.schema)
        super().write(batch)

    def send(self, batch: pa.RecordBatch, into: str) -> None:
        """See `OpenTransaction`."""
        rows = self._numbered(batch)
        own = [] if self._number is None else ["int8"] * len(STAGED_KEY)
        binary = binary_rows(rows, [*own, *(column.type for column in self._layout.columns)])
        columns = ", ".join(map(quoted_name, rows.schema.names))
        statement = f"COPY {into} ({columns}) FROM STDIN (FORMAT {'binary' if binary else 'csv'})"
        data = binary or csv_rows(rows)
        row_of = partial(refused_row, batch=batch, as_text=binary is None)
        with (
            self._server.task_errors(self._layout.name, row_of),
            self._session.connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.write(data)
        if self._number is not None:
            self._refuse_too_long(batch, into, self._number)

    def _know_the_columns(self, schema: pa.Schema) -> None:
        """Before the first rows: binary values of a type that ALTER TABLE has replaced since the job began would be read as others."""
        if self._number is None and self.rows == 0:
            with self._server.task_errors(self._layout.name):
                self._layout = locked(self._layout, self._session, schema)

    def _refuse_too_long(self, batch: pa.RecordBatch, staged: str, number: int) -> None:
        """Prepared rows have met the indexes already; staged ones would meet them at commit."""
        for index in self._layout.indexed:
            if has_long_values(batch, index):
                with self._server.task_errors(self._layout.name):
                    found = first_too_long(self._session, staged, index, number, self.rows)
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
