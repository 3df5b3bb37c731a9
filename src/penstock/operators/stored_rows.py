"""All rows that some keys have in a table, in parts that fit into memory. Executors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.base import OpenTable
from penstock.state.keys import KeyBatch

FEW_ROWS = 1024
"""Keys with so many rows are read together; others one by one, in parts."""

Positions = npt.NDArray[np.int64]


def stored_rows(
    table: OpenTable,
    keys: KeyBatch,
    wanted: Positions,
    *,
    keys_at_once: int,
    max_bytes: int,
    few_rows: int | None = None,
) -> Iterator[tuple[Positions, pa.RecordBatch]]:
    """The rows of the wanted keys, ordered by key: for each row the position of its key, and identity columns and values.

    About `max_bytes` at a time. The rows of a key may come in several parts, in their order.
    """
    while len(wanted):
        found = table.rows_of(keys.take(wanted[:keys_at_once]), few_rows or FEW_ROWS, max_bytes)
        at, wanted = wanted[: len(found)], wanted[len(found) :]
        key_index = np.repeat(at, np.diff(found.starts))
        done = 0
        for large in np.flatnonzero(found.left_out).tolist():
            stop = int(found.starts[large])
            yield key_index[done:stop], found.rows.slice(done, stop - done)
            done = stop
            for part in table.one_key(keys.slice(int(at[large]), int(at[large]) + 1)).scan():
                yield np.full(part.num_rows, at[large], dtype=np.int64), part
        yield key_index[done:], found.rows.slice(done)
