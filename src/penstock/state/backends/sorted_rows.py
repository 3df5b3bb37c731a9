"""Rows of one table in order, as columns: what sorted files hold. Runs in tasks on executors.

Rows are in ascending order of their sort key and, where a key may have many rows, of a second number within it. In a table by time
the second number comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.keys import SortKeys

Positions = npt.NDArray[np.int64]
Address = tuple[int, int]
"""Where a row stands in its table: the number that comes first, and the one that comes second (0 where there is none)."""


@dataclass(frozen=True, slots=True)
class SortedBatch:
    """Rows in order; `deleted` is None where there is no tombstone. `keys` are all columns that tell rows apart."""

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
        """The position of the first row at this address or behind it."""
        return self._first(address, "left")

    def first_behind(self, address: Address) -> int:
        """The position of the first row behind this address. Not `first_at` of the next number: the greatest has none."""
        return self._first(address, "right")

    def _first(self, address: Address, side: Literal["left", "right"]) -> int:
        major, minor = address
        if self.minor is None:
            return int(np.searchsorted(self.major, major, side=side))
        start = int(np.searchsorted(self.major, major))
        stop = int(np.searchsorted(self.major, major, side="right"))
        return start + int(np.searchsorted(self.minor[start:stop], minor, side=side))


SortedTable = tuple[SortedBatch, ...]
"""The rows of one table in one file: record batches, one behind the other in order."""


def sorting_positions(batch: SortedBatch) -> Positions:
    """What brings rows into order; those at one address stay in the order they have."""
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
    """For many rows at once, in ascending order, the position of the first that is at the address or behind it."""
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
    """Many rows share one range each, those of one moment: they are asked for between two borders."""
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
    """Which rows are tombstones."""
    return batch.deleted if batch.deleted is not None else pa.array(np.zeros(len(batch), dtype=np.bool_))
