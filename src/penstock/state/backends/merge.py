"""Merge a table of several sorted files into one ordered stream of rows, column by column. Runs in tasks on executors.

The work goes through ranges of addresses of about `PIECE_BYTES` each, so that a merge needs little memory
however large the files are, and no column of a piece outgrows its 32-bit offsets. Rows at one address always lie
in the same piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.equality import Flags, rows_equal
from penstock.state.backends.sorted_rows import (
    Address,
    SortedBatch,
    SortedTable,
    concat_batches,
    in_order,
    marks,
    sorting_positions,
)
from penstock.state.keys import SortKeys, key_groups
from penstock.state.lifetimes import Expiry

PIECE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Ownership:
    """The key groups of one subtask: those with group mod parallelism = index."""

    index: int
    parallelism: int

    def owned(self, sort_keys: SortKeys) -> Flags:
        """Which sort keys lie in the subtask's key groups."""
        if self.parallelism == 1:
            return np.ones(len(sort_keys), dtype=np.bool_)
        flags: Flags = key_groups(sort_keys) % self.parallelism == self.index
        return flags


def merge_tables(
    tables: Sequence[SortedTable],
    *,
    ownership: Ownership,
    keep_tombstones: bool,
    expiry: Expiry | None = None,
    piece_bytes: int | None = None,
) -> Iterator[SortedBatch]:
    """The newest of every owned row, in order, without what has expired; one table of several files, the newest file first.

    Tombstones must be kept while an older file that is not merged may hold the row. A row of which nothing is left becomes one.
    """
    batches = [batch for table in tables for batch in table if len(batch)]
    for piece in _pieces(batches, piece_bytes or PIECE_BYTES):
        merged = merge_piece(piece, ownership, keep_tombstones=keep_tombstones, expiry=expiry)
        if len(merged):
            yield merged


def _pieces(batches: list[SortedBatch], piece_bytes: int) -> Iterator[list[SortedBatch]]:
    """Cut the batches at common addresses, in ascending order, until each piece is small or cannot be cut."""
    waiting = [batches]
    while waiting:
        piece = waiting.pop()
        pivot = None if sum(batch.nbytes for batch in piece) <= piece_bytes else _pivot(piece)
        if pivot is not None:
            cut = [(batch, batch.first_at(pivot)) for batch in piece]
            waiting.append([batch.slice(at, len(batch)) for batch, at in cut if at < len(batch)])
            waiting.append([batch.slice(0, at) for batch, at in cut if at])
        elif piece:
            yield piece


def _pivot(piece: Sequence[SortedBatch]) -> Address | None:
    """An address with rows both before it and from it on, near the middle; None if all rows share one."""
    low = min(batch.address(0) for batch in piece)
    high = max(batch.address(len(batch) - 1) for batch in piece)
    if low == high:
        return None
    longest = max(piece, key=len)
    middle = longest.address(len(longest) // 2)
    if middle > low:
        return middle
    behind = [(batch, batch.first_behind(low)) for batch in piece]
    return min(batch.address(at) for batch, at in behind if at < len(batch))


def merge_piece(
    piece: Sequence[SortedBatch],
    ownership: Ownership,
    *,
    keep_tombstones: bool,
    expiry: Expiry | None = None,
) -> SortedBatch:
    """The newest of every owned row of these batches, the newest first; all in memory."""
    rows = concat_batches(piece)
    order = sorting_positions(rows)
    keep = ownership.owned(rows.sort_keys[order]) & ~_hidden(rows, order)
    if rows.deleted is not None and not keep_tombstones:
        keep &= ~rows.deleted.to_numpy(zero_copy_only=False)[order]
        rows = replace(rows, deleted=None)
    if not (len(piece) == 1 and keep.all() and in_order(rows)):
        rows = rows.take(order[keep])
    return rows if expiry is None else _unexpired(rows, expiry, keep_tombstones=keep_tombstones)


def _unexpired(rows: SortedBatch, expiry: Expiry, *, keep_tombstones: bool) -> SortedBatch:
    """Of the newest rows what has not expired; older ones are hidden by them also when nothing is left."""
    values, gone = expiry.applied(rows.values)
    rows = replace(rows, values=values)
    if gone is None:
        return rows
    if not keep_tombstones:
        return rows.take(np.flatnonzero(~gone))
    return replace(rows, deleted=pa.array(marks(rows).to_numpy(zero_copy_only=False) | gone))


def _hidden(rows: SortedBatch, order: npt.NDArray[np.int64]) -> Flags:
    """Rows that occur in a newer file. The sort is stable, so of equal rows the newest comes first.

    Compares every row with the one `lag` before it, as long as some of these share their address.
    """
    hidden = np.zeros(len(order), dtype=np.bool_)
    numbers = [column[order] for column in (rows.major, rows.minor) if column is not None]
    later, lag = np.arange(1, len(order), dtype=np.int64), 1
    while True:
        for column in numbers:
            later = later[column[later] == column[later - lag]]
        if not len(later):
            return hidden
        newer, older = pa.array(order[later - lag]), pa.array(order[later])
        same = rows_equal([key.take(newer) for key in rows.keys], [key.take(older) for key in rows.keys])
        hidden[later[same]] = True
        lag += 1
        later = later[~same & (later >= lag)]
