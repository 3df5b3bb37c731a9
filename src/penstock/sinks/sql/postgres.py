"""The sink `Postgres`: rows in a table of a PostgreSQL server. Written in tasks, committed on the driver.

Values that PostgreSQL would silently change or refuse too late are refused in the task, while the job can still go back:

    varchar(n)      spaces beyond n are dropped
    char(n)         trailing spaces are ignored: 'a' and 'a ' are one value, and one key

Columns whose type alone would change values (`name`, `"char"`, too small a scale) are refused before the job starts, see `postgres_table`.

Staged rows that are too long for an index of the target are refused, too. A B-tree accepts 2,704 bytes of a row, and a longer one would
fail at every commit. The server compresses long values first, so it computes the size, but only if a batch has long values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.config import Duration
from penstock.sinks.bad_rows import Change, bad_record, row_at
from penstock.sinks.sql.postgres_server import PostgresServer, refused_row
from penstock.sinks.sql.postgres_table import PostgresColumn, PostgresTable, locked
from penstock.sinks.sql.postgres_values import binary_rows, csv_rows
from penstock.sinks.sql.server import SqlSession, checked_lock_timeout_s
from penstock.sinks.sql.server_sink import (
    OpenTransaction,
    SqlServerSink,
    checked_identifier,
    checked_write_settings,
)
from penstock.sinks.sql.table import STAGED_KEY
from penstock.sinks.sql.values import is_bytes, is_text, plain_texts
from penstock.sinks.table_checks import quoted_name

LONGEST_BYTES = 2_704
_OTHERS_BYTES = 8
"""The header of an index row; also more than any value of fixed length takes with its alignment."""


def changed_values(batch: pa.RecordBatch, columns: Sequence[PostgresColumn]) -> Iterator[Change]:
    """Yield the values that the server would change."""
    for values, column in zip(batch.columns, columns, strict=True):
        texts = plain_texts(values) if column.type in {"varchar", "bpchar"} else None
        if texts is None:
            continue
        if column.type == "bpchar":
            yield (
                column.name,
                pc.ends_with(texts, " "),
                f"{column.declared} does not keep spaces at the end of a text",
            )
        if column.longest is not None:
            spaces = pc.and_(pc.greater(pc.utf8_length(texts), column.longest), pc.ends_with(texts, " "))
            yield (
                column.name,
                spaces,
                f"value too long for {column.declared}, which drops spaces beyond its length",
            )


def has_long_values(batch: pa.RecordBatch, index: Sequence[str]) -> bool:
    """Return whether some row may be too long for the index before compression."""
    lengths = [
        pc.fill_null(pc.binary_length(batch.column(name).cast(pa.large_binary())), 0)
        for name in index
        if is_text(batch.schema.field(name).type) or is_bytes(batch.schema.field(name).type)
    ]
    room = LONGEST_BYTES - 2 * _OTHERS_BYTES * (len(index) + 1)
    longest = [pc.max(length).as_py() or 0 for length in lengths]
    return sum(longest) > room


def first_too_long(
    session: SqlSession, staged: str, index: Sequence[str], transaction: int, first_row: int
) -> int | None:
    """Return the number of the first staged row that the index would refuse."""
    sizes = " + ".join(f"coalesce(pg_column_size({quoted_name(name)}), 0)" for name in index).replace(
        "%", "%%"
    )
    most = LONGEST_BYTES - _OTHERS_BYTES * (len(index) + 1)
    found = session.execute(
        f"SELECT min(_penstock_row) FROM {staged.replace('%', '%%')} "  # noqa: S608 - quoted
        f"WHERE _penstock_transaction = %s AND _penstock_row >= %s AND {sizes} > %s",
        [transaction, first_row, most],
    )[0][0]
    return None if found is None else int(found)


class PostgresWriting(OpenTransaction):
    """Sends rows to PostgreSQL with COPY."""

    _session: Any

    @override
    def changed_values(self, batch: pa.RecordBatch) -> Iterable[Change]:
        return changed_values(batch, self._layout.columns)

    @override
    def write(self, batch: pa.RecordBatch) -> None:
        self._know_the_columns(batch.schema)
        super().write(batch)

    @override
    def send(self, batch: pa.RecordBatch, into: str) -> None:
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
        """Read the declared types again before the first rows: after an ALTER TABLE, binary values of the old type would be misread."""
        if self._number is None and self.rows == 0:
            with self._server.task_errors(self._layout.name):
                self._layout = locked(self._layout, self._session, schema)

    def _refuse_too_long(self, batch: pa.RecordBatch, staged: str, number: int) -> None:
        """Refuse staged rows that an index would refuse at commit; prepared rows have already passed the indexes."""
        for index in self._layout.indexed:
            if has_long_values(batch, index):
                with self._server.task_errors(self._layout.name):
                    found = first_too_long(self._session, staged, index, number, self.rows)
                if found is not None:
                    why = f"the values of {list(index)} are too long for the index on them, which accepts {LONGEST_BYTES:,} bytes"
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


_LONGEST_NAME_BYTES = 63


class Postgres(SqlServerSink):
    """Writes to a table of a PostgreSQL database, 12 or newer.

    `mode="append"` inserts, `mode="upsert"` replaces the row that has the same values in the columns `key`. Rows wait for
    their commit `"prepared"` (the default of append) or `"staged"` (the only way to upsert). Names are used exactly as given.
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
        settings = checked_write_settings(mode, key, transactions)
        if schema is not None:
            checked_identifier("schema", schema, longest_bytes=_LONGEST_NAME_BYTES)
        name = checked_identifier("table", table, longest_bytes=_LONGEST_NAME_BYTES)
        server = PostgresServer(address, checked_lock_timeout_s(lock_timeout))
        super().__init__(server, PostgresTable(name, schema, settings.key), settings, create=create)
