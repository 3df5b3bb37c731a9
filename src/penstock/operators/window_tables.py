"""What the tables of all kinds of windows have in common. Executors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.equality import Flags
from penstock.state.backends.lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch, in_order, sorting_positions
from penstock.state.handle import GENERATION_SHIFT
from penstock.state.keys import KeyBatch

LAST = "__penstock_last"
"""The last moment of a window."""
PLACE = "__penstock_place"
"""What puts the rows of a window in the order in which they came."""
KEYS_AT_ONCE = 2048
PORTION_BYTES = 64 << 20
"""So many keys, or bytes of stored rows, are read at once."""


def among(rows: KeyBatch, others: Sequence[KeyBatch], *, by_time: bool = False) -> Flags:
    """Which of these rows are among others. They are in ascending order of the first number of their table, the others in any."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for other in others:
        if len(other) and len(rows):
            columns = tuple(other.columns.columns)
            table = SortedBatch(other.sort_keys, None, columns, (), other.orders, by_time=by_time)
            table = table if in_order(table) else table.take(sorting_positions(table))
            found |= lookup([(table,)], rows, pa.schema([]))[1]
    return found


def in_key_order(rows: KeyBatch) -> npt.NDArray[np.int64]:
    """The positions that put rows in the order of a table by key."""
    orders = rows.orders if rows.orders is not None else np.zeros(len(rows), dtype=np.int64)
    return np.lexsort((orders, rows.sort_keys))


def places(generation: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers that only grow: of the version that this batch makes, and within it of rows by their positions."""
    return (generation << GENERATION_SHIFT) + positions


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows in one."""
    columns = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
