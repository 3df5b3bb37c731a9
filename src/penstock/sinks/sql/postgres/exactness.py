"""Values that PostgreSQL would change without a word or refuse too late, found while the job can go back. Executors.

    varchar(n)      spaces beyond n are dropped
    char(n)         spaces at the end mean nothing: 'a' and 'a ' are one value, and one key

What a column would change by its type alone (`name`, `"char"`, too small a scale) is refused before the job starts, see `table`.

Also staged rows that no index of the target would take. A B-tree takes 2,704 bytes of a row, and what is longer fails when the rows are
moved: for its content alone, and for good. The server compresses long values first, so it is asked; but only where a batch has
values that are long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.bad_rows import Change
from penstock.sinks.sql.postgres.table import PostgresColumn
from penstock.sinks.sql.server import SqlSession
from penstock.sinks.sql.values import is_bytes, is_text, plain_texts
from penstock.sinks.tables import quoted_name

LONGEST_BYTES = 2_704
_OTHERS_BYTES = 8
"""Of the head of an index row, and more than any value of fixed length, or what aligns one, takes in it."""


def changed_values(batch: pa.RecordBatch, columns: Sequence[PostgresColumn]) -> Iterator[Change]:
    """Which values would not come back as they are."""
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
    """Tell whether some row may be too long for the index, before it is compressed."""
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
    """The number of the first staged row that the index would refuse."""
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
