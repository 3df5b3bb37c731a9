"""Staged rows that no index of the target would take, found before a checkpoint promises them. Executors.

A B-tree takes 2,704 bytes of a row, and what is longer fails when the rows are moved: for its content alone, and for good. The server
compresses long values first, so it is asked; but only where a batch has values that are long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.postgres.table import quoted
from penstock.sinks.sql.values import is_bytes, is_text

LONGEST_BYTES = 2_704
_OTHERS_BYTES = 8
"""Of the head of an index row, and more than any value of fixed length, or what aligns one, takes in it."""


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
    connection: Any, staged: str, index: Sequence[str], transaction: int, first_row: int
) -> int | None:
    """The number of the first staged row that the index would refuse."""
    sizes = " + ".join(f"coalesce(pg_column_size({quoted(name)}), 0)" for name in index).replace("%", "%%")
    most = LONGEST_BYTES - _OTHERS_BYTES * (len(index) + 1)
    found = connection.execute(
        f"SELECT min(_penstock_row) FROM {staged.replace('%', '%%')} "  # noqa: S608 - quoted
        f"WHERE _penstock_transaction = %s AND _penstock_row >= %s AND {sizes} > %s",
        [transaction, first_row, most],
    ).fetchone()[0]
    return None if found is None else int(found)
