"""Aggregates over session windows: columns in, columns out, no Python per key. Executors.

    rows of a batch --(Spark, JVM)--> partials by key and stretch of a gap's length --join with the sessions of the key--> sessions

Rows that are less than a gap apart are always in one session, so Spark aggregates them first. Sessions lie in a table by key, in the order
of their starts. A second table, by time, has the ends of sessions: those that the watermark passes in a batch are one range of it. A
session that becomes longer gets a new row in that table. Its old row is outdated, and is skipped when its time comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.operators.aggregate.columns import Kind, state_schema
from penstock.operators.aggregate.merge import merged_groups
from penstock.operators.bad_records import ROW, ROWS
from penstock.operators.base import Task, TaskContext
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import Grouped, PieceLimits, equal_rows, group_rows, pieces
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.state.table_rows import stored_rows
from penstock.operators.views import StoredTable, TableView, TimestampColumn
from penstock.operators.window.aggregates import TimeAggregateSpec, TimeAggregateTask
from penstock.operators.window.base import (
    ABSURD,
    KEYS_AT_ONCE,
    LAST,
    PANE,
    PORTION_BYTES,
    WINDOW_END,
    WINDOW_START,
    Numbers,
    in_key_order,
    joined_stretches,
    refused,
    rows_in,
)
from penstock.state.backends.base import OpenState, StateLayout, TableLayout, with_stamps
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY, Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, Lifetime, Measure
from penstock.state.sizes import in_batches, one_batch
from penstock.windows import SessionWindows

FIRST_ROW, LAST_ROW = "__penstock_first_row", "__penstock_last_row"
"""Columns that Spark computes: the times of the first and the last row of a group."""
START = "__penstock_start"
ENDS = "ends of sessions"
_POSITION = "__penstock_position"
LIMITS = PieceLimits(bytes=256 << 20)
SET_LIMITS = PieceLimits(bytes=256 << 20, rows=4096)
"""Sets of distinct values make a session much larger than the rows that it gets in a batch."""


@dataclass(frozen=True)
class SessionSpec(TimeAggregateSpec):
    """Aggregates over sessions, as `window(session(...)).aggregate(...)` declares them."""

    windows: SessionWindows

    @property
    def sessions(self) -> TableLayout:
        """The sessions of each key. Their last moment is also their stamp."""
        partials = state_schema(self.specs)
        lifetime = Lifetime(tuple(partials.names), LAST, self.lateness_us, Measure.WATERMARK)
        identity = pa.schema([*self.key, pa.field(START, pa.int64())])
        return TableLayout(
            str(self.windows), identity, with_stamps(partials, (lifetime,)), lifetimes=(lifetime,)
        )

    @property
    def ends(self) -> TableLayout:
        """The ends of sessions by time, each with the start of its session."""
        lifetime = Lifetime((START,), f"{LAST}_of_all", 0, Measure.WATERMARK)
        identity = pa.schema([*self.key, pa.field(LAST, pa.int64())])
        value = with_stamps(pa.schema([(START, pa.int64())]), (lifetime,))
        return TableLayout(ENDS, identity, value, by_time=True, lifetimes=(lifetime,))

    @override
    def layout(self) -> StateLayout:
        return StateLayout(self.key, pa.schema([]), (self.sessions, self.ends))

    @classmethod
    @override
    def shown(cls, table: StoredTable) -> TableView | None:
        if table.name == ENDS:
            return TableView(table.name, "")
        if START not in table.names:
            return None
        bounds = (TimestampColumn(WINDOW_START, START), TimestampColumn(WINDOW_END, LAST, 1))
        return TableView("windows", "windows", bounds, table.value)

    @override
    def task(self, context: TaskContext) -> Task:
        return SessionAggregateTask(context, self)


@dataclass
class SessionAggregateTask(TimeAggregateTask):
    """Only the state tells which rows are late. Where late rows are read, Spark hands over those that may be late as they are."""

    spec: SessionSpec

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """The results of sessions that close, and of closed ones that have got late rows."""
        clock = self.clock
        absurd = rows.own.column(PANE).to_numpy() == ABSURD
        if absurd.any() and clock.refuses_absurd:
            raise refused(int(rows.own.column(ROWS).to_numpy()[absurd].sum()), self.context.uid)
        sensible = rows.own.filter(pa.array(~absurd))
        run = SessionRun(self.spec, state, clock)
        is_late = run.take_in(sensible)
        run.close()
        for some, flags in ((rows.own, absurd), (sensible, is_late)):
            self._add_late(some, flags)
        self._due = Due(event_us=run.waits_for)
        return {RESULTS: run.results}

    def _add_late(self, rows: pa.Table, flags: Flags) -> None:
        late = self.context.late
        if not flags.any():
            return
        numbers = rows.column(ROWS).to_numpy()[flags]
        if not late.kept:
            late.add_number(int(numbers.sum()))
            return
        whole = rows.column(ROW).filter(pa.array(flags)).combine_chunks()
        late.add(
            pa.RecordBatch.from_struct_array(whole.take(pa.array(np.repeat(np.arange(len(whole)), numbers))))
        )


@dataclass(frozen=True)
class Sessions:
    """Sessions of any keys, each with its own key."""

    sort_keys: Numbers
    keys: pa.RecordBatch
    starts: Numbers
    lasts: Numbers
    partials: pa.RecordBatch

    def take(self, at: Numbers) -> Sessions:
        """Select the sessions at these positions."""
        keys, partials = (some.take(pa.array(at)) for some in (self.keys, self.partials))
        return Sessions(self.sort_keys[at], keys, self.starts[at], self.lasts[at], partials)

    def by_key(self) -> tuple[KeyBatch, Numbers]:
        """The distinct keys of the sessions, and for each session the position of its key."""
        order, bounds = equal_rows([self.sort_keys], self.keys.columns)
        first = order[bounds[:-1]]
        of = np.empty(len(order), dtype=np.int64)
        of[order] = np.repeat(np.arange(len(first)), np.diff(bounds))
        return KeyBatch(self.sort_keys[first], self.keys.take(pa.array(first))), of


@dataclass(frozen=True)
class _Sessions:
    """Sessions of the keys of a piece, in the order of key and start."""

    key_index: Numbers
    starts: Numbers
    lasts: Numbers
    partials: pa.RecordBatch

    def take(self, at: Numbers) -> _Sessions:
        return _Sessions(
            self.key_index[at], self.starts[at], self.lasts[at], self.partials.take(pa.array(at))
        )


@dataclass(frozen=True)
class Growth:
    """Sessions that got rows, the sessions before them, and for each of these the position of the session that it became part of."""

    now: Sessions
    was: Sessions
    into: Numbers


class SessionRun:
    """The work of one subtask in one batch: first rows (`take_in`), then time (`close`). `grown` is called with sessions that got rows."""

    def __init__(
        self,
        spec: SessionSpec,
        state: OpenState,
        clock: OperatorClock,
        grown: Callable[[Growth], None] | None = None,
    ) -> None:
        self._spec, self._clock, self._grown = spec, clock, grown
        self._sessions, self._ends = (state.table(table.name) for table in (spec.sessions, spec.ends))
        self._waits_for = FAR_AWAY_US
        self._touched: list[KeyBatch] = []
        self.closed: list[Sessions] = []
        """Sessions that the watermark passes in this batch, and closed ones that got late rows."""

    def take_in(self, rows: pa.Table) -> Flags:
        """Merge the partial aggregates of the batch: sort key, key columns, `FIRST_ROW`, `LAST_ROW`, partials.

        Returns which of them come too late.
        """
        late = np.zeros(rows.num_rows, dtype=np.bool_)
        if rows.num_rows:
            numbered = rows.append_column(_POSITION, pa.array(np.arange(rows.num_rows)))
            sets = any(spec.kind is Kind.COUNT_DISTINCT for spec in self._spec.specs)
            limits = SET_LIMITS if sets else LIMITS
            for piece in pieces(group_rows(numbered, self._spec.key.names), limits):
                positions = piece.table.column(_POSITION).to_numpy()
                late[positions[self._take_in(piece)]] = True
        return late

    def close(self) -> None:
        """Close the sessions that the watermark passes in this batch."""
        for due in self._ends.until(self._clock.watermark_us, after=self._clock.before_us):
            self._close_untouched(due)

    @property
    def results(self) -> list[pa.RecordBatch]:
        """The results of closed sessions."""
        tables = (
            self._spec.results(some.keys.columns, some.starts, some.lasts, some.partials)
            for some in self.closed
        )
        return [batch for table in tables for batch in in_batches(table)]

    @property
    def waits_for(self) -> int | None:
        """The end of the first open session, after `close`; None if there is none. That session may have become longer since."""
        stored = next(self._ends.until(FAR_AWAY_US, after=self._clock.watermark_us), None)
        first = FAR_AWAY_US if stored is None else int(stored.column(LAST)[0].as_py())
        found = min(first, self._waits_for)
        return None if found >= FAR_AWAY_US else found

    # ── rows ───────────────────────────────────────────────────────────────────────────────────

    def _take_in(self, piece: Grouped) -> Flags:
        """Merge the rows of some keys into their sessions; returns which rows come too late."""
        new, old = self._given(piece), self._stored(piece.keys)
        key_index = np.concatenate([new.key_index, old.key_index])
        lasts = np.concatenate([new.lasts, old.lasts])
        order, starts = joined_stretches(key_index, np.concatenate([new.starts, old.starts]), lasts)
        is_new = order < len(new.starts)
        changed = np.add.reduceat(is_new.astype(np.int64), starts[:-1]) > 0
        session_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        last = np.maximum.reduceat(lasts[order], starts[:-1])
        is_late = last <= self._clock.closed_until_us(self._spec.lateness_us)
        self._update(piece.keys, new, old, _Joined(order, session_of, last, changed & ~is_late))
        late = np.zeros(len(new.starts), dtype=np.bool_)
        late[order[is_new]] = is_late[session_of[is_new]]
        return late

    def _given(self, piece: Grouped) -> _Sessions:
        key_index = np.repeat(np.arange(len(piece.keys)), np.diff(piece.starts))
        first, last = (piece.table.column(name).to_numpy() for name in (FIRST_ROW, LAST_ROW))
        schema = state_schema(self._spec.specs)
        partials = one_batch(piece.table.select(schema.names).cast(schema))
        return _Sessions(key_index, first, last + (self._spec.windows.gap_us - 1), partials)

    def _stored(self, keys: KeyBatch) -> _Sessions:
        every = np.arange(len(keys))
        found = list(
            stored_rows(self._sessions, keys, every, keys_at_once=KEYS_AT_ONCE, max_bytes=PORTION_BYTES)
        )
        rows = pa.Table.from_batches([rows for _, rows in found])
        partials = one_batch(rows.select(state_schema(self._spec.specs).names))
        key_index = np.concatenate([numbers for numbers, _ in found])
        return _Sessions(key_index, rows.column(START).to_numpy(), rows.column(LAST).to_numpy(), partials)

    def _update(self, keys: KeyBatch, new: _Sessions, old: _Sessions, joined: _Joined) -> None:
        """Write the sessions that have changed, and collect those that have closed."""
        kept = joined.changed[joined.session_of]
        order, session_of = joined.order[kept], joined.session_of[kept]
        if not len(order):
            return
        both = _both(new, old).take(order)
        starts = np.flatnonzero(np.concatenate(([True], session_of[1:] != session_of[:-1])))
        bounds = np.append(starts, len(order))
        stored_first = np.lexsort((order < len(new.starts), np.repeat(starts, np.diff(bounds))))
        partials = merged_groups(self._spec.specs, both.partials.take(pa.array(stored_first)), bounds)
        lasts = joined.last[session_of[starts]]
        now = _Sessions(both.key_index[starts], both.starts[starts], lasts, partials)
        at = np.flatnonzero(order >= len(new.starts))
        was = both.take(at)
        if self._grown is not None:
            into = np.searchsorted(starts, at, side="right") - 1
            self._grown(Growth(_public(keys, now), _public(keys, was), into))
        self._touched += [self._named(keys, was), self._named(keys, now)]
        self._close(keys, now, lasts <= self._clock.watermark_us)
        self._write(keys, now, was)

    def _write(self, keys: KeyBatch, now: _Sessions, was: _Sessions) -> None:
        """Write changed sessions, except those that expire before the next batch: these need no write and no deletion."""
        over = self._clock.watermark_us - self._spec.lateness_us
        now, was = (some.take(np.flatnonzero(some.lasts > over)) for some in (now, was))
        gone = was.take(np.flatnonzero(~rows_in(self._named(keys, was), [self._named(keys, now)])))
        written = _both(now, gone)
        values = [*written.partials.columns, pa.array(written.lasts)]
        self._sessions.write(
            self._named(keys, written),
            pa.RecordBatch.from_arrays(values, schema=self._spec.sessions.value),
            np.arange(len(written.starts)) >= len(now.starts),
        )
        open_ = now.take(np.flatnonzero(now.lasts > self._clock.watermark_us))
        columns = [*keys.columns.take(pa.array(open_.key_index)).columns, pa.array(open_.lasts)]
        ends = pa.RecordBatch.from_arrays(columns, schema=self._spec.ends.identity)
        stamps = [pa.array(open_.starts), pa.array(open_.lasts)]
        self._ends.write(
            KeyBatch(keys.sort_keys[open_.key_index], ends, open_.lasts),
            pa.RecordBatch.from_arrays(stamps, schema=self._spec.ends.value),
        )
        self._waits_for = min(self._waits_for, int(open_.lasts.min(initial=FAR_AWAY_US)))

    def _named(self, keys: KeyBatch, sessions: _Sessions) -> KeyBatch:
        columns = [*keys.columns.take(pa.array(sessions.key_index)).columns, pa.array(sessions.starts)]
        identity = pa.RecordBatch.from_arrays(columns, schema=self._spec.sessions.identity)
        return KeyBatch(keys.sort_keys[sessions.key_index], identity, sessions.starts)

    # ── results ────────────────────────────────────────────────────────────────────────────────

    def _close_untouched(self, due: pa.RecordBatch) -> None:
        """Close the sessions with these ends that have no rows in this batch. Some ends are outdated: their sessions became longer."""
        names = [*self._spec.key.names, START]
        columns = pa.RecordBatch.from_arrays(
            [due.column(name) for name in names], schema=self._spec.sessions.identity
        )
        asked = KeyBatch(due.column(SORT_KEY).to_numpy(), columns, due.column(START).to_numpy())
        order = in_key_order(asked)
        asked, ends = asked.take(order), due.column(LAST).to_numpy()[order]
        stored, found = self._sessions.read(asked)
        lasts = stored.column(LAST).fill_null(0).to_numpy()
        keys = KeyBatch(asked.sort_keys, asked.columns.select(self._spec.key.names))
        starts = asked.columns.column(START).to_numpy()
        sessions = _Sessions(np.arange(len(lasts)), starts, lasts, stored)
        self._close(keys, sessions, found & (lasts == ends) & ~rows_in(asked, self._touched))

    def _close(self, keys: KeyBatch, sessions: _Sessions, wanted: Flags) -> None:
        if wanted.any():
            self.closed.append(_public(keys, sessions.take(np.flatnonzero(wanted))))


@dataclass(frozen=True)
class _Joined:
    """The order of rows and old sessions, the new session of each, its last moment, and whether it has changed."""

    order: Numbers
    session_of: Numbers
    last: Numbers
    changed: Flags


def _public(keys: KeyBatch, sessions: _Sessions) -> Sessions:
    own = keys.take(sessions.key_index)
    return Sessions(own.sort_keys, own.columns, sessions.starts, sessions.lasts, sessions.partials)


def _both(one: _Sessions, other: _Sessions) -> _Sessions:
    partials = pa.Table.from_batches([one.partials, other.partials])
    return _Sessions(
        np.concatenate([one.key_index, other.key_index]),
        np.concatenate([one.starts, other.starts]),
        np.concatenate([one.lasts, other.lasts]),
        one_batch(partials),
    )
