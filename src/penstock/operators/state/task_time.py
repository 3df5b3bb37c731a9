"""Time in a task: which timers of the subtask are due, set and deleted, and when the state of a key was touched. Executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.operators.columns import Positions
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import Grouped, Piece, PieceLimits, group_rows, pieces_with_state
from penstock.operators.state.timers import AT, CLOCK, EVENT_TIME, KINDS, timer_table
from penstock.operators.state.ttl import TouchTimes
from penstock.state.backends.base import OpenState, OpenTable, TableLayout
from penstock.state.backends.sorted_lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch, SortedTable, concat_batches, sorting_positions
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY, Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US, Stamps

_TIMER_AT, _TIMER_BY = "__penstock_timer_at", "__penstock_timer_by"
"""Beside the columns of rows, while keys with rows and keys with timers are brought into one order; null in rows."""
_NOTHING = pa.schema([])


@dataclass(frozen=True)
class DueTimers:
    """The timers that are due of some keys: key i has those from `starts[i]` to `starts[i + 1]`, ordered by kind and moment."""

    starts: Positions
    kind: Positions
    """The position in `KINDS`."""
    at_us: Positions

    @classmethod
    def none(cls, keys: int) -> DueTimers:
        """No timers, for this number of keys."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(keys + 1, dtype=np.int64), nothing, nothing)

    def slice(self, first: int, end: int) -> DueTimers:
        """The timers of the keys from `first` up to `end`."""
        start, stop = int(self.starts[first]), int(self.starts[end])
        return DueTimers(self.starts[first : end + 1] - start, self.kind[start:stop], self.at_us[start:stop])


class Timers:
    """All timers of a subtask, while one batch runs."""

    def __init__(
        self, state: OpenState, clock: OperatorClock, key: pa.Schema, *, has_event_time: bool
    ) -> None:
        self.has_event_time = has_event_time
        """Whether event time ever comes here. Timers by it would wait for ever otherwise."""
        self.fired = 0
        """How many have fired in this batch."""
        self.touched_us = clock.touched_us
        """The event time of state that a timer by the clock touches."""
        self._tables = {
            EVENT_TIME: _TimerTable(state, EVENT_TIME, key, clock.before_us, clock.watermark_us),
            CLOCK: _TimerTable(state, CLOCK, key, clock.fired_us, clock.now_us),
        }

    @property
    def limits_us(self) -> tuple[int, ...]:
        """By kind: what is set for this moment, or an earlier one, is due in this batch."""
        return tuple(self._tables[by].until_us for by in KINDS)

    def grouped(self, rows: pa.Table, key_names: list[str]) -> tuple[Grouped, DueTimers] | None:
        """The rows by key, together with keys that have no row but a timer that is due; and these timers. None if there is nothing."""
        parts = [part for kind, by in enumerate(KINDS) for part in self._tables[by].due(kind)]
        if not parts:
            if not rows.num_rows:
                return None
            grouped = group_rows(rows, key_names)
            return grouped, DueTimers.none(len(grouped.keys))
        return _apart(group_rows(pa.concat_tables([rows, *parts], promote_options="default"), key_names))

    def write(self, keys: KeyBatch, kind: int, index: Positions, at_us: Positions, gone: Flags) -> None:
        """Set timers of these keys, or delete them where `gone` is true; `index` says whose they are. None is due in this batch."""
        if len(index):
            self._tables[KINDS[kind]].write(keys, index, at_us, gone)

    def due(self) -> Due:
        """The moments that the state waits for after the batch. Called after all writing."""
        return Due(self._tables[EVENT_TIME].first(), self._tables[CLOCK].first())


class _TimerTable:
    """Timers of one kind: those after `after_us` and up to `until_us` are due."""

    def __init__(self, state: OpenState, by: str, key: pa.Schema, after_us: int, until_us: int) -> None:
        self._layout: TableLayout = timer_table(by, key)
        self._table: OpenTable = state.table(self._layout.name)
        self._after_us, self.until_us = after_us, until_us
        self._first_set_us = FAR_AWAY_US
        self._deleted: list[SortedBatch] = []

    def due(self, kind: int) -> list[pa.Table]:
        """The timers that are due, in the order of time, as rows with only a key."""
        if self._after_us >= self.until_us:
            return []
        return [self._as_rows(part, kind) for part in self._table.until(self.until_us, after=self._after_us)]

    def _as_rows(self, found: pa.RecordBatch, kind: int) -> pa.Table:
        keys = [field.name for field in self._layout.identity if field.name != AT]
        kinds = pa.array(np.full(found.num_rows, kind, dtype=np.int64))
        columns = {name: found.column(name) for name in (SORT_KEY, *keys)}
        return pa.table({**columns, _TIMER_AT: found.column(AT), _TIMER_BY: kinds})

    def write(self, keys: KeyBatch, index: Positions, at_us: Positions, gone: Flags) -> None:
        """Set or delete timers, as `Timers.write` does. Only stored timers need a tombstone."""
        if gone.any():
            stored = self._stored(keys, index, at_us, gone)
            kept = ~gone | stored
            index, at_us, gone = index[kept], at_us[kept], gone[kept]
            if not len(index):
                return
        rows = self._rows(keys, index, at_us)
        values = pa.RecordBatch.from_arrays([pa.array(at_us)], schema=self._layout.value)
        self._table.write(rows, values, gone if gone.any() else None)
        if gone.any():
            self._deleted.append(_as_batch(rows.take(np.flatnonzero(gone))))
        if not gone.all():
            self._first_set_us = min(self._first_set_us, int(at_us[~gone].min()))

    def _stored(self, keys: KeyBatch, index: Positions, at_us: Positions, wanted: Flags) -> Flags:
        """Which of the wanted ones are in the state."""
        places = np.flatnonzero(wanted)
        places = places[np.lexsort((keys.sort_keys[index[places]], at_us[places]))]
        _, found = self._table.read(self._rows(keys, index[places], at_us[places]))
        stored = np.zeros(len(wanted), dtype=np.bool_)
        stored[places[found]] = True
        return stored

    def _rows(self, keys: KeyBatch, index: Positions, at_us: Positions) -> KeyBatch:
        columns = keys.columns.take(pa.array(index)).columns
        identity = pa.RecordBatch.from_arrays([*columns, pa.array(at_us)], schema=self._layout.identity)
        return KeyBatch(keys.sort_keys[index], identity, at_us)

    def first(self) -> int | None:
        """The first moment after this batch for which one is set. Stored ones may be seen as they were before it."""
        stored = self._first_stored()
        first = self._first_set_us if stored is None else min(stored, self._first_set_us)
        return None if first == FAR_AWAY_US else first

    def _first_stored(self) -> int | None:
        deleted: SortedTable = ()
        if self._deleted:
            together = concat_batches(self._deleted)
            deleted = (together.take(sorting_positions(together)),)
        for part in self._table.until(FAR_AWAY_US, after=self.until_us):
            at_us = part.column(AT).to_numpy()
            if deleted:
                identity = part.select(self._layout.identity.names)
                rows = KeyBatch(part.column(SORT_KEY).to_numpy(), identity, at_us)
                at_us = at_us[~lookup([deleted], rows, _NOTHING)[1]]
            if len(at_us):
                return int(at_us[0])
        return None


def _as_batch(rows: KeyBatch) -> SortedBatch:
    return SortedBatch(rows.sort_keys, None, tuple(rows.columns.columns), (), rows.orders, by_time=True)


def _apart(both: Grouped) -> tuple[Grouped, DueTimers]:
    """Separate rows and timers that were ordered by key together. Those of a key keep their own order."""
    kinds = both.table.column(_TIMER_BY)
    is_timer = kinds.is_valid().to_numpy()
    timers_before = np.concatenate(([0], np.cumsum(is_timer)))[both.starts]
    rows = both.table.drop_columns([_TIMER_AT, _TIMER_BY]).filter(pa.array(~is_timer)).combine_chunks()
    timers = both.table.select([_TIMER_AT, _TIMER_BY]).filter(pa.array(is_timer))
    due = DueTimers(timers_before, timers.column(_TIMER_BY).to_numpy(), timers.column(_TIMER_AT).to_numpy())
    return Grouped(both.keys, both.starts - timers_before, rows), due


# ── pieces of keys in time ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TimedPiece:
    """Some keys with their rows and their state, when that state is touched, and which of their timers are due."""

    piece: Piece
    touches: TouchTimes
    due: DueTimers


@dataclass(frozen=True)
class TaskTime:
    """The clock, the event times and the timers of one task."""

    clock: OperatorClock = field(default_factory=OperatorClock)
    event_time: str | None = None
    """The column of its rows with their event time; None where they have none."""
    timers: Timers | None = None
    """The timers of the subtask, where the operator takes timers."""
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
            end = first + len(piece.grouped.keys)
            yield TimedPiece(piece, self.touches(piece.grouped, state.now_us), due.slice(first, end))
            first = end

    def _grouped(self, rows: pa.Table, key_names: list[str]) -> tuple[Grouped, DueTimers] | None:
        if self.timers is not None:
            return self.timers.grouped(rows, key_names)
        grouped = group_rows(rows, key_names)
        return grouped, DueTimers.none(len(grouped.keys))

    def touches(self, grouped: Grouped, now_us: int) -> TouchTimes:
        """When the state of these keys is touched in this batch."""
        return TouchTimes(now_us, lambda: self._newest_event_times(grouped))

    def newest_of(self, key: KeyBatch, rows: pa.Table) -> int:
        """The newest event time of one key with these rows."""
        grouped = Grouped(key, np.array([0, rows.num_rows], dtype=np.int64), rows)
        return int(self._newest_event_times(grouped)[0])

    def _newest_event_times(self, grouped: Grouped) -> Stamps:
        """The newest event time of each key's rows, or the watermark at the beginning of the batch where that is later, or there is none.

        A row that came in time is after that watermark, so it does not matter which other rows are in its batch.
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
"""For operators that do not use time."""


def _microseconds(moments: pa.Array) -> pa.Array:
    if pa.types.is_int64(moments.type):
        return moments
    kind = pa.timestamp("us", moments.type.tz)
    return (moments if moments.type == kind else moments.cast(kind)).view(pa.int64())
