"""Rows of one table in sorted order, as columns, and merges of several such runs of rows. Runs in tasks on executors.

Rows are in ascending order of their sort key and, where a key may have many rows, of a second number within it. In a table by time the
second number comes first.

A merge processes ranges of addresses of about `PIECE_BYTES` each. So it needs little memory even for large files, and no column of a
piece exceeds its 32-bit offsets. Rows with the same address are always in the same piece.

`WriteCheck` refuses wrong columns, keys of another subtask and keys out of order. Such a write is a bug of the caller and
must never reach a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InternalError
from penstock.state.backends.base import KeyBatch, TableLayout, Workplace
from penstock.state.ddl import spark_type
from penstock.state.keys import Flags, SortKeys, key_groups, rows_equal
from penstock.state.lifetimes import Expiry
from penstock.wording import counted

Positions = npt.NDArray[np.int64]
Address = tuple[int, int]
"""Where a row stands in its table: the number that comes first, and the one that comes second (0 where there is none)."""


@dataclass(frozen=True, slots=True)
class SortedBatch:
    """Rows in order; `deleted` is None if there is no tombstone. `keys` are all identity columns."""

    sort_keys: SortKeys
    deleted: pa.BooleanArray | None
    keys: tuple[pa.Array, ...]
    values: tuple[pa.Array, ...]
    orders: SortKeys | None = None
    by_time: bool = False

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def nbytes(self) -> int:
        """Bytes of key and value columns."""
        return sum(column.nbytes for column in (*self.keys, *self.values))

    @property
    def major(self) -> SortKeys:
        """The number by which rows are ordered first."""
        return self.orders if self.by_time and self.orders is not None else self.sort_keys

    @property
    def minor(self) -> SortKeys | None:
        """The number by which rows are ordered where the first is the same; None where there is none."""
        return self.sort_keys if self.by_time else self.orders

    def slice(self, start: int, stop: int) -> SortedBatch:
        """Rows `start` to `stop`, without a copy."""
        length = stop - start
        return replace(
            self,
            sort_keys=self.sort_keys[start:stop],
            deleted=None if self.deleted is None else self.deleted.slice(start, length),
            keys=tuple(column.slice(start, length) for column in self.keys),
            values=tuple(column.slice(start, length) for column in self.values),
            orders=None if self.orders is None else self.orders[start:stop],
        )

    def take(self, rows: Positions) -> SortedBatch:
        """The rows at these positions."""
        at = pa.array(rows)
        return replace(
            self,
            sort_keys=self.sort_keys[rows],
            deleted=None if self.deleted is None else self.deleted.take(at),
            keys=tuple(column.take(at) for column in self.keys),
            values=tuple(column.take(at) for column in self.values),
            orders=None if self.orders is None else self.orders[rows],
        )

    def address(self, row: int) -> Address:
        """The numbers of one row."""
        return int(self.major[row]), 0 if self.minor is None else int(self.minor[row])

    def first_at(self, address: Address) -> int:
        """The position of the first row at or after this address."""
        return self._first(address, "left")

    def first_behind(self, address: Address) -> int:
        """The position of the first row after this address. Not `first_at` of the next number: the greatest number has none."""
        return self._first(address, "right")

    def _first(self, address: Address, side: Literal["left", "right"]) -> int:
        major, minor = address
        if self.minor is None:
            return int(np.searchsorted(self.major, major, side=side))
        start = int(np.searchsorted(self.major, major))
        stop = int(np.searchsorted(self.major, major, side="right"))
        return start + int(np.searchsorted(self.minor[start:stop], minor, side=side))


SortedTable = tuple[SortedBatch, ...]
"""The rows of one table in one file: record batches in order."""


def sorting_positions(batch: SortedBatch) -> Positions:
    """The permutation that sorts rows; rows with the same address keep their order."""
    if batch.minor is None:
        return np.argsort(batch.major, kind="stable")
    return np.lexsort((batch.minor, batch.major))


def in_order(batch: SortedBatch) -> bool:
    """Whether the rows are in order already."""
    major, minor = batch.major, batch.minor
    if minor is None:
        return bool((major[1:] >= major[:-1]).all())
    rising = (major[1:] > major[:-1]) | ((major[1:] == major[:-1]) & (minor[1:] >= minor[:-1]))
    return bool(rising.all())


def first_at_or_behind(batch: SortedBatch, major: Positions, minor: Positions | None) -> Positions:
    """For many addresses in ascending order: the position of the first row at or after each."""
    start = np.searchsorted(batch.major, major).astype(np.int64, copy=False)
    if minor is None or batch.minor is None:
        return start
    stop = np.searchsorted(batch.major, major, side="right").astype(np.int64, copy=False)
    if batch.by_time:
        borders = np.flatnonzero(major[1:] != major[:-1]) + 1
        return _first_in_runs(batch.minor, minor, start, stop, [0, *borders.tolist(), len(major)])
    return _first_in_ranges(batch.minor, minor, start, stop)


def _first_in_runs(
    numbers: Positions, wanted: Positions, start: Positions, stop: Positions, borders: list[int]
) -> Positions:
    """Many addresses share the range of one time: search them between its two borders."""
    found = start.copy()
    for first, last in pairwise(borders):
        if first < last:
            low, high = int(start[first]), int(stop[first])
            found[first:last] = low + np.searchsorted(numbers[low:high], wanted[first:last])
    return found


def _first_in_ranges(numbers: Positions, wanted: Positions, start: Positions, stop: Positions) -> Positions:
    """Each row has a range of its own: that of its key."""
    searched = np.flatnonzero(start < stop)
    while len(searched):
        middle = (start[searched] + stop[searched]) >> 1
        before = numbers[middle] < wanted[searched]
        start[searched[before]] = middle[before] + 1
        stop[searched[~before]] = middle[~before]
        searched = searched[start[searched] < stop[searched]]
    return start


def concat_batches(batches: Sequence[SortedBatch]) -> SortedBatch:
    """One batch of the rows of several, in the order given."""
    first = batches[0]
    if len(batches) == 1:
        return first
    deleted = None
    if any(batch.deleted is not None for batch in batches):
        deleted = pa.concat_arrays([marks(batch) for batch in batches])
    orders = [batch.orders for batch in batches if batch.orders is not None]
    return SortedBatch(
        np.concatenate([batch.sort_keys for batch in batches]),
        deleted,
        tuple(pa.concat_arrays(column) for column in zip(*(batch.keys for batch in batches), strict=True)),
        tuple(pa.concat_arrays(column) for column in zip(*(batch.values for batch in batches), strict=True)),
        np.concatenate(orders) if orders else None,
        first.by_time,
    )


def marks(batch: SortedBatch) -> pa.BooleanArray:
    """Flags of the rows that are tombstones."""
    return batch.deleted if batch.deleted is not None else pa.array(np.zeros(len(batch), dtype=np.bool_))


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


class WriteCheck:
    """Looks at all writes of one batch."""

    def __init__(self, workplace: Workplace, layout: TableLayout) -> None:
        self._subtask = str(workplace.subtask)
        self._layout = layout
        self._ownership = Ownership(workplace.subtask.index, workplace.parallelism)
        self._last_sort_key = -1
        self._ordered = True

    def check(self, keys: KeyBatch, values: pa.RecordBatch) -> None:
        """Refuse a write that does not fit; only its order is judged later, by `check_order`."""
        for given, wanted in (
            (keys.columns.schema, self._layout.identity),
            (values.schema, self._layout.value),
        ):
            if given.names != wanted.names or given.types != wanted.types:
                raise InternalError(
                    f"{self._subtask} writes columns ({_described(given)}), its state has ({_described(wanted)})",
                    subtask=self._subtask,
                )
        if (keys.orders is not None) != self._layout.ordered:
            raise InternalError(
                f"{self._subtask} writes rows of the table {self._layout.name!r} with{'out' * self._layout.ordered} a second sort number",
                subtask=self._subtask,
            )
        if not len(keys) == keys.columns.num_rows == values.num_rows:
            raise InternalError(
                f"{self._subtask} writes {counted(values.num_rows, 'value')} for {counted(len(keys), 'key')}",
                subtask=self._subtask,
            )
        if not self._ownership.owned(keys.sort_keys).all():
            raise InternalError(
                f"{self._subtask} of {self._ownership.parallelism} writes keys of another subtask",
                subtask=self._subtask,
            )
        self._note_order(keys)

    def check_order(self) -> None:
        """Refuse to end a batch whose keys did not come in ascending order of sort key."""
        if not self._ordered:
            raise InternalError(
                f"{self._subtask} wrote keys out of the order of their sort keys", subtask=self._subtask
            )

    def _note_order(self, keys: KeyBatch) -> None:
        if not len(keys):
            return
        sort_keys = keys.sort_keys
        rising = bool((sort_keys[1:] >= sort_keys[:-1]).all())
        self._ordered &= rising and int(sort_keys[0]) >= self._last_sort_key
        self._last_sort_key = int(sort_keys[-1])


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)
