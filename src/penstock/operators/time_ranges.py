"""Find for many moments at once the rows of the same key in a range of time. Executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

_BITS = 62


@dataclass(frozen=True)
class Timed:
    """Rows by their key's position and their time, ordered by both."""

    key_index: Numbers
    times: Numbers

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True)
class Ranges:
    """For each row that asks the rows that it found: from `start` on, up to `stop`."""

    start: Numbers
    stop: Numbers

    @property
    def counts(self) -> Numbers:
        """How many each found."""
        return self.stop - self.start

    def pairs(self, at_most: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Who asked and what was found, pair by pair; about so many at a time, unless one row has found more."""
        asking = np.flatnonzero(self.counts)
        counts = self.counts[asking]
        ends = np.cumsum(counts)
        first = done = 0
        while first < len(asking):
            behind = max(int(np.searchsorted(ends, done + at_most, side="right")), first + 1)
            part, lengths = asking[first:behind], counts[first:behind]
            begins = ends[first:behind] - lengths - done
            within = np.arange(int(ends[behind - 1]) - done) - np.repeat(begins, lengths)
            yield np.repeat(part, lengths), np.repeat(self.start[part], lengths) + within
            first, done = behind, int(ends[behind - 1])

    def found(self, rows: int) -> npt.NDArray[np.bool_]:
        """Which of so many rows somebody found."""
        begun = np.bincount(self.start, minlength=rows + 1) - np.bincount(self.stop, minlength=rows + 1)
        return np.cumsum(begun)[:rows] > 0


def in_range(rows: Timed, key_index: Numbers, earliest: Numbers, latest: Numbers) -> Ranges:
    """For each key and range of time, ends included, the rows that lie in it."""
    if not len(rows) or not len(key_index):
        nothing = np.zeros(len(key_index), dtype=np.int64)
        return Ranges(nothing, nothing)
    lowest, highest = int(rows.times.min()), int(rows.times.max())
    width = (highest - lowest + 2).bit_length()
    keys = max(int(rows.key_index[-1]), int(key_index.max())) + 1
    if width + keys.bit_length() > _BITS:
        return _in_range_by_rank(rows, key_index, earliest, latest)
    numbers = (rows.key_index << width) + (rows.times - lowest)
    base = key_index << width
    # from 0 to one behind the last: what begins behind all rows of its key must not find those of the next one
    low = np.clip(earliest, lowest, highest + 1) - lowest
    high = np.clip(latest, lowest - 1, highest) - lowest
    start = np.searchsorted(numbers, base + low)
    stop = np.searchsorted(numbers, base + high, side="right")
    return _nonnegative(start, stop)


def _in_range_by_rank(rows: Timed, key_index: Numbers, earliest: Numbers, latest: Numbers) -> Ranges:
    """The same with the rank of a moment in place of the moment, where both numbers do not fit into one."""
    moments, rank = np.unique(rows.times, return_inverse=True)
    ranked = Timed(rows.key_index, rank.astype(np.int64))
    first = np.searchsorted(moments, earliest).astype(np.int64)
    last = np.searchsorted(moments, latest, side="right").astype(np.int64) - 1
    return in_range(ranked, key_index, first, last)


def _nonnegative(start: Numbers, stop: Numbers) -> Ranges:
    begin = start.astype(np.int64, copy=False)
    return Ranges(begin, np.maximum(stop.astype(np.int64, copy=False), begin))
