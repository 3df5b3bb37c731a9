"""What time it is for the calls of a task, when what they touch was touched, and which timers are due in it. Executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.clock import OperatorClock
from penstock.operators.grouping import Grouped, group_rows
from penstock.operators.pieces import Piece, PieceLimits, pieces_with_state
from penstock.operators.stamps import TouchTimes
from penstock.operators.stored_timers import DueTimers, Timers
from penstock.state.backends.base import OpenState
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import LONG_AGO_US

Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimedPiece:
    """Some keys with their rows and their state, when what is touched of them was touched, and which of their timers are due."""

    piece: Piece
    touches: TouchTimes
    due: DueTimers


@dataclass(frozen=True)
class TaskTime:
    """Time in one task."""

    clock: OperatorClock = field(default_factory=OperatorClock)
    event_time: str | None = None
    """The column of its rows with their event time; None where they have none."""
    timers: Timers | None = None
    """Those of an operator that takes timers."""
    earlier_us: int = 0
    """The event time is what stands in the column, less so much."""
    begin: Callable[[], None] = lambda: None
    """Called before the first piece, if there is one."""

    def pieces(
        self,
        rows: pa.Table,
        key_names: list[str],
        state: OpenState,
        limits: PieceLimits,
        *,
        reads: bool,
    ) -> Iterator[TimedPiece]:
        """The rows in pieces of whole keys, with their state where it is read; also of keys that have no row but a timer that is due."""
        found = self._grouped(rows, key_names)
        if found is None:
            return
        self.begin()
        grouped, due = found
        first = 0
        for piece in pieces_with_state(grouped, state if reads else None, limits):
            behind = first + len(piece.grouped.keys)
            yield TimedPiece(piece, self.touches(piece.grouped, state.now_us), due.slice(first, behind))
            first = behind

    def _grouped(self, rows: pa.Table, key_names: list[str]) -> tuple[Grouped, DueTimers] | None:
        if self.timers is not None:
            return self.timers.grouped(rows, key_names)
        grouped = group_rows(rows, key_names)
        return grouped, DueTimers.none(len(grouped.keys))

    def touches(self, grouped: Grouped, now_us: int) -> TouchTimes:
        """Of these keys, which are touched in this batch."""
        return TouchTimes(now_us, lambda: self._newest_event_times(grouped))

    def newest_of(self, key: KeyBatch, rows: pa.Table) -> int:
        """The same of one key with these rows."""
        grouped = Grouped(key, np.array([0, rows.num_rows], dtype=np.int64), rows)
        return int(self._newest_event_times(grouped)[0])

    def _newest_event_times(self, grouped: Grouped) -> Stamps:
        """The newest event time of each key's rows, or the watermark at the beginning of the batch where that is later, or there is none.

        A row that came in time is behind that watermark: so it does not matter which other rows are in its batch.
        """
        newest = np.full(len(grouped.keys), self.clock.before_us, dtype=np.int64)
        starts, stops = grouped.starts[:-1], grouped.starts[1:]
        known = np.flatnonzero(starts < stops)
        if self.event_time is None or not len(known):
            return newest
        chunks = grouped.table.column(self.event_time).chunks
        moments = pa.concat_arrays([_microseconds(chunk) for chunk in chunks])
        times = moments.fill_null(LONG_AGO_US).to_numpy(zero_copy_only=False)
        times = np.where(times <= self.clock.latest_us, times - self.earlier_us, LONG_AGO_US)
        newest[known] = np.maximum(newest[known], np.maximum.reduceat(times, starts[known]))
        return newest


NO_TIME = TaskTime()
"""Where nobody asks."""


def _microseconds(moments: pa.Array) -> pa.Array:
    if pa.types.is_int64(moments.type):
        return moments
    kind = pa.timestamp("us", moments.type.tz)
    return (moments if moments.type == kind else moments.cast(kind)).view(pa.int64())
