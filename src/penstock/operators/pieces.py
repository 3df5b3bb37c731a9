"""Cut the rows of a task into pieces of whole keys, so that what is made of them fits into memory and into Arrow's arrays. Executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.grouping import Grouped
from penstock.operators.wide_columns import narrowed
from penstock.state.backends.base import OpenState
from penstock.state.backends.sorted_lookup import no_columns
from penstock.state.keys import KeyBatch
from penstock.state.sizes import Bytes, table_row_bytes


@dataclass(frozen=True)
class PieceLimits:
    """A piece has at most so many bytes of rows, so many bytes of state, and so many rows and keys."""

    bytes: int
    rows: int = 1 << 40


@dataclass(frozen=True)
class Piece:
    """Some keys with all their rows and what the state holds of them."""

    grouped: Grouped
    stored: pa.RecordBatch
    found: npt.NDArray[np.bool_]


def pieces_with_state(
    grouped: Grouped, state: OpenState | None, limits: PieceLimits, sizes: Bytes | None = None
) -> Iterator[Piece]:
    """Pieces in the order of keys, the state of each read when its turn has come; `None` for an operator that keeps none."""
    for piece in pieces(grouped, limits, sizes):
        if state is None:
            yield Piece(piece, no_columns(len(piece.keys)), np.zeros(len(piece.keys), dtype=np.bool_))
            continue
        start = 0
        for stored, found in state.read_parts(piece.keys, limits.bytes):
            stop = start + len(found)
            whole = len(found) == len(piece.keys)
            yield Piece(piece if whole else _part(piece, start, stop), stored, found)
            start = stop


def pieces(grouped: Grouped, limits: PieceLimits, sizes: Bytes | None = None) -> Iterator[Grouped]:
    """Parts in the order of keys; a key is never split, so one that goes beyond the limits is a piece of its own.

    `sizes` are the bytes of each row where the table does not have them itself, but only the numbers of rows.
    """
    starts = grouped.starts
    bytes_before = _bytes_before_keys(grouped, limits.bytes, sizes)
    first = 0
    while first < len(grouped.keys):
        last = int(np.searchsorted(starts, starts[first] + limits.rows, side="right")) - 1
        last = min(last, first + limits.rows)  # keys may come without rows
        if bytes_before is not None:
            room = bytes_before[first] + limits.bytes
            last = min(last, int(np.searchsorted(bytes_before, room, side="right")) - 1)
        last = max(last, first + 1)
        yield _part(grouped, first, last)
        first = last


def _bytes_before_keys(grouped: Grouped, max_bytes: int, sizes: Bytes | None) -> Bytes | None:
    """For every key, and behind the last one, the bytes of all rows before it; None where all fit into one piece."""
    if sizes is None:
        if grouped.table.nbytes <= max_bytes:
            return None
        sizes = table_row_bytes(grouped.table)
    before: Bytes = np.concatenate(([0], np.cumsum(sizes)))[grouped.starts]
    return before


def _part(grouped: Grouped, first: int, last: int) -> Grouped:
    """The keys from `first` up to `last`, with their rows; nothing is copied."""
    start, stop = int(grouped.starts[first]), int(grouped.starts[last])
    keys = grouped.keys.slice(first, last)
    columns = narrowed(pa.Table.from_batches([keys.columns])).combine_chunks().to_batches()[0]
    table = grouped.table.slice(start, stop - start)
    return Grouped(
        KeyBatch(keys.sort_keys, columns), grouped.starts[first : last + 1] - start, narrowed(table)
    )
