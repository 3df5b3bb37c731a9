"""Merge sorted files into one ordered stream of rows, column by column. Runs in tasks on executors.

The work goes through ranges of sort keys of about `PIECE_BYTES` each, so that a merge needs little memory
however large the files are, and no column of a piece outgrows its 32-bit offsets. Equal sort keys always lie
in the same piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.equality import Flags, rows_equal
from penstock.state.backends.sorted_file import SortedBatch, SortedFile, concat_batches
from penstock.state.keys import SortKeys, key_groups

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


def merge_files(
    files: Sequence[SortedFile],
    *,
    ownership: Ownership,
    keep_tombstones: bool,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[SortedBatch]:
    """The newest row of every owned key, in ascending order of sort key; `files` come newest first.

    Tombstones must be kept while an older file that is not merged may hold the key.
    """
    batches = [batch for file in files for batch in file.batches]
    for piece in _pieces(batches, piece_bytes):
        merged = _merge_piece(piece, ownership, keep_tombstones=keep_tombstones)
        if len(merged):
            yield merged


def _pieces(batches: list[SortedBatch], piece_bytes: int) -> Iterator[list[SortedBatch]]:
    """Cut the batches at common sort keys, in ascending order, until each piece is small or cannot be cut."""
    waiting = [batches]
    while waiting:
        piece = waiting.pop()
        pivot = None if sum(batch.nbytes for batch in piece) <= piece_bytes else _pivot(piece)
        if pivot is not None:
            cuts = [int(np.searchsorted(batch.sort_keys, pivot)) for batch in piece]
            cut = list(zip(piece, cuts, strict=True))
            waiting.append([batch.slice(at, len(batch)) for batch, at in cut if at < len(batch)])
            waiting.append([batch.slice(0, at) for batch, at in cut if at])
        elif piece:
            yield piece


def _pivot(piece: Sequence[SortedBatch]) -> int | None:
    """A sort key with rows both below it and from it on, near the middle; None if all rows share one."""
    low = min(int(batch.sort_keys[0]) for batch in piece)
    high = max(int(batch.sort_keys[-1]) for batch in piece)
    if low == high:
        return None
    longest = max(piece, key=len)
    middle = int(longest.sort_keys[len(longest) // 2])
    return middle if middle > low else low + 1


def _merge_piece(piece: Sequence[SortedBatch], ownership: Ownership, *, keep_tombstones: bool) -> SortedBatch:
    rows = concat_batches(piece)
    order = np.argsort(rows.sort_keys, kind="stable")
    sort_keys = rows.sort_keys[order]
    keep = ownership.owned(sort_keys) & ~_hidden(sort_keys, rows.keys, order)
    deleted = rows.deleted
    if deleted is not None and not keep_tombstones:
        keep &= ~deleted.to_numpy(zero_copy_only=False)[order]
        deleted = None
    if len(piece) == 1 and keep.all():
        return SortedBatch(rows.sort_keys, deleted, rows.keys, rows.values)
    indices = pa.array(order[keep])
    return SortedBatch(
        sort_keys[keep],
        None if deleted is None else deleted.take(indices),
        tuple(column.take(indices) for column in rows.keys),
        tuple(column.take(indices) for column in rows.values),
    )


def _hidden(sort_keys: SortKeys, keys: Sequence[pa.Array], order: npt.NDArray[np.int64]) -> Flags:
    """Rows whose key occurs in a newer file. The sort is stable, so of equal keys the newest comes first.

    Compares every row with the one `lag` before it, as long as some of these share their sort key.
    """
    hidden = np.zeros(len(sort_keys), dtype=np.bool_)
    later = np.flatnonzero(sort_keys[1:] == sort_keys[:-1]) + 1
    lag = 1
    while len(later):
        newer, older = pa.array(order[later - lag]), pa.array(order[later])
        same = rows_equal([key.take(newer) for key in keys], [key.take(older) for key in keys])
        hidden[later[same]] = True
        lag += 1
        later = later[~same & (later >= lag)]
        later = later[sort_keys[later] == sort_keys[later - lag]]
    return hidden
