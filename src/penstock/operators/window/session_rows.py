"""Own code over session windows: rows are stored until their session has closed and no late row can come any more. Executors.

The sessions themselves are stored as for aggregates. Rows lie in a table by key, in the order of their times. The rows of a session are
those in its range of time, so a session that grows, or merges with another, moves no row.

How long a row must be stored is known only when its session has closed. So its stamp looks ahead (`kept_until`): it reaches at least to the
end of the session, and is rewritten when the session has doubled in length. A row is written a few times, however long its session becomes,
and is stored at most twice as long as needed. After its session has closed it belongs to no session, and must not become part of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial
from penstock.operators.event_time import OperatorClock, Ranges, TimeColumn, Timed, in_range
from penstock.operators.process.user_code import Context
from penstock.operators.state.table_rows import stored_rows
from penstock.operators.values.row_order import Order, order_keys
from penstock.operators.views import StoredTable, TableView
from penstock.operators.window.base import (
    KEYS_AT_ONCE,
    LAST,
    PLACE,
    PORTION_BYTES,
    Numbers,
    RowTimes,
    arrival_numbers,
    rows_in,
)
from penstock.operators.window.own_code import RowsRun, WindowCode, WindowCodeSpec, WindowRows
from penstock.operators.window.session import (
    FIRST_ROW,
    LAST_ROW,
    Growth,
    SessionRun,
    Sessions,
    SessionSpec,
)
from penstock.state.backends.base import OpenState, StateLayout, TableLayout, with_stamps
from penstock.state.backends.sorted_lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import Lifetime, Measure
from penstock.state.sizes import one_batch
from penstock.windows import SessionWindows

TIME = "__penstock_time"
_ROWS = AggregateColumn("rows", Kind.COUNT, (Partial("__penstock_rows", Kind.COUNT, pa.int64()),), pa.int64())


@dataclass(frozen=True)
class SessionRowsSpec(WindowCodeSpec):
    """Own code over sessions, as `window(session(...)).process(...)` declares it."""

    key: pa.Schema
    windows: SessionWindows
    lateness_us: int
    columns: pa.Schema
    """The columns of the stream."""
    time: TimeColumn
    order_by: tuple[Order, ...]
    code: WindowCode

    @property
    def sessions(self) -> SessionSpec:
        """The sessions, with their number of rows as the only aggregate."""
        return SessionSpec(self.key, self.windows, self.lateness_us, (_ROWS,), pa.timestamp("us"))

    @property
    def table(self) -> TableLayout:
        """The rows of sessions, by key and time."""
        identity = pa.schema([*self.key, (TIME, pa.int64()), (PLACE, pa.int64())])
        lifetime = Lifetime(tuple(self.kept.names), f"{LAST}_of_rows", self.lateness_us, Measure.WATERMARK)
        value = with_stamps(self.kept, (lifetime,))
        return TableLayout("rows of sessions", identity, value, lifetimes=(lifetime,))

    @override
    def layout(self) -> StateLayout:
        sessions = self.sessions
        return StateLayout(self.key, pa.schema([]), (sessions.sessions, sessions.ends, self.table))

    @classmethod
    @override
    def shown(cls, table: StoredTable) -> TableView | None:
        return TableView("rows", "rows", (), table.value) if table.names == [TIME, PLACE] else None

    @classmethod
    @override
    def shown_as(cls, column: str) -> str | None:
        return "rows" if column == _ROWS.partials[0].name else None

    @property
    @override
    def allowed_lateness_us(self) -> int | None:
        return self.lateness_us

    def run(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:
        """Call the user's code for the sessions that have closed."""
        times = RowTimes.of(rows, self.time, clock, operator=context.operator)
        at = np.flatnonzero(times.sensible)
        timed = _with_times(
            self, rows.take(pa.array(at)), times.numbers[at], arrival_numbers(state.generation, at)
        )
        growths: list[Growth] = []
        run = SessionRun(self.sessions, state, clock, growths.append)
        is_late = run.take_in(_as_stretches(self, timed))
        run.close()
        table = _Rows(self, state, timed.filter(pa.array(~is_late)))
        for growth in growths:
            table.leave_out(growth, clock.before_us)
        results = [batch for sessions in run.closed for batch in table.results(sessions, context)]
        for growth in growths:
            table.write(growth, over_us=clock.watermark_us - self.lateness_us)
        table.forget()
        late = np.ones(rows.num_rows, dtype=np.bool_)
        late[at[~is_late]] = False
        return RowsRun(results, rows.filter(pa.array(late)), run.waits_for)


def kept_until(starts: Numbers, lasts: Numbers, gap_us: int) -> Numbers:
    """Until when the rows of a session are stored: its length, rounded up to a gap times a power of two, after its start."""
    lengths, kept = lasts - starts + 1, np.full(len(starts), gap_us, dtype=np.int64)
    while (short := kept < lengths).any():
        kept[short] *= 2
    return starts + kept - 1


def _with_times(spec: SessionRowsSpec, rows: pa.Table, times: Numbers, place: Numbers) -> pa.Table:
    columns = rows.select(spec.columns.names).cast(spec.columns)
    columns = columns.append_column(SORT_KEY, rows.column(SORT_KEY))
    return columns.append_column(TIME, pa.array(times)).append_column(PLACE, pa.array(place))


def _as_stretches(spec: SessionRowsSpec, rows: pa.Table) -> pa.Table:
    """Each row as a session of its own."""
    given = rows.select([SORT_KEY, *spec.key.names])
    for name in (FIRST_ROW, LAST_ROW):
        given = given.append_column(name, rows.column(TIME))
    return given.append_column(_ROWS.partials[0].name, pa.array(np.ones(len(rows), dtype=np.int64)))


class _Rows:
    """The stored rows of keys, and the rows of this batch that are not late."""

    def __init__(self, spec: SessionRowsSpec, state: OpenState, new: pa.Table) -> None:
        self._spec, self._new = spec, new
        self._table = state.table(spec.table.name)
        self._schema = pa.schema([*spec.columns, (TIME, pa.int64()), (PLACE, pa.int64())])
        self._left_out: list[KeyBatch] = []

    def leave_out(self, growth: Growth, before_us: int) -> None:
        """Leave out stored rows of closed sessions where another session now covers their time.

        This takes a row that, alone, would be a session which the watermark has passed already.
        """
        asked, found = self._new_rows(growth.now)
        old = self._new.column(TIME).to_numpy()[found] + (self._spec.windows.gap_us - 1) <= before_us
        if not old.any():
            return
        sessions = growth.now.take(np.unique(asked[old]))
        keys, of = sessions.by_key()
        rows, index = self._of_keys(keys, with_new=False)
        at = np.unique(_pairs(self._ranges(rows, index, sessions, of))[1])
        covered = self._named(keys, index[at], rows.take(pa.array(at)))
        own = [self._stored_rows(growth.was)[0]] if len(growth.was.starts) else []
        left_over = np.flatnonzero(~rows_in(covered, own))
        if len(left_over):
            self._left_out.append(covered.take(left_over))

    def results(self, sessions: Sessions, context: Context) -> Iterator[pa.RecordBatch]:
        """Call the user's code for sessions of any keys."""
        keys, of = sessions.by_key()
        rows, index = self._of_keys(keys)
        ranges = self._ranges(rows, index, sessions, of)
        if not ranges.counts.all():
            # At least once, a checkpoint may have state of a later batch than its watermark: the session had closed by then, and its rows
            # may have been dropped since.
            some = np.flatnonzero(ranges.counts)
            if len(some):
                yield from self.results(sessions.take(some), context)
            return
        asked, found = _pairs(ranges)
        within = [*order_keys(rows, self._spec.order_by), rows.column(PLACE).to_numpy()]
        order = np.lexsort((*(one[found] for one in within[::-1]), asked))
        bounds = np.concatenate(([0], np.cumsum(ranges.counts)))
        given = rows.select(self._spec.columns.names).take(pa.array(found[order]))
        windows = WindowRows(sessions.keys, bounds, given, sessions.starts, sessions.lasts + 1)
        yield from self._spec.code.results(windows, context)

    def _ranges(self, rows: pa.Table, index: Numbers, sessions: Sessions, of: Numbers) -> Ranges:
        times = rows.column(TIME).to_numpy()
        last_rows = sessions.lasts - (self._spec.windows.gap_us - 1)
        return in_range(Timed(index, times), of, sessions.starts, last_rows)

    def _of_keys(self, keys: KeyBatch, *, with_new: bool = True) -> tuple[pa.Table, Numbers]:
        """The rows of some keys, in the order of key and time, and the position of each row's key."""
        every = np.arange(len(keys))
        found = list(
            stored_rows(self._table, keys, every, keys_at_once=KEYS_AT_ONCE, max_bytes=PORTION_BYTES)
        )
        tables = [pa.Table.from_batches([rows]).select(self._schema.names) for _, rows in found]
        index = [numbers for numbers, _ in found]
        if with_new and self._new.num_rows:
            at, key = positions_of(self._new, keys, self._spec.key.names)
            tables.append(self._new.take(pa.array(at)).select(self._schema.names))
            index.append(key)
        rows, numbers = pa.concat_tables(tables), np.concatenate(index)
        order = np.lexsort((rows.column(TIME).to_numpy(), numbers))
        rows, numbers = rows.take(pa.array(order)), numbers[order]
        if self._left_out:
            stay = np.flatnonzero(~rows_in(self._named(keys, numbers, rows), self._left_out))
            rows, numbers = rows.take(pa.array(stay)), numbers[stay]
        return rows, numbers

    def write(self, growth: Growth, *, over_us: int) -> None:
        """Write the rows of this batch whose sessions still accept rows, and rewrite stored ones that must live longer than planned."""
        until = kept_until(growth.now.starts, growth.now.lasts, self._spec.windows.gap_us)
        stays = growth.now.lasts > over_us
        asked, found = self._new_rows(growth.now)
        asked, found = asked[stays[asked]], found[stays[asked]]
        if len(found):
            rows = self._new.take(pa.array(found))
            keys = KeyBatch(growth.now.sort_keys, growth.now.keys)
            self._write(self._named(keys, asked, rows), rows, until[asked])
        known = kept_until(growth.was.starts, growth.was.lasts, self._spec.windows.gap_us)
        short = np.flatnonzero((known < until[growth.into]) & stays[growth.into])
        if len(short):
            named, rows, of = self._stored_rows(growth.was.take(short))
            self._write(named, rows, until[growth.into[short]][of])

    def forget(self) -> None:
        """Delete the rows that were left out."""
        for gone in self._left_out:
            nothing = [pa.nulls(len(gone), field.type) for field in self._spec.table.value]
            values = pa.RecordBatch.from_arrays(nothing, schema=self._spec.table.value)
            self._table.write(gone, values, np.ones(len(gone), dtype=np.bool_))

    def _write(self, named: KeyBatch, rows: pa.Table, until: Numbers) -> None:
        kept = [*one_batch(rows.select(self._spec.kept.names)).columns, pa.array(until)]
        self._table.write(named, pa.RecordBatch.from_arrays(kept, schema=self._spec.table.value))

    def _new_rows(self, sessions: Sessions) -> tuple[Numbers, Numbers]:
        """For each row of this batch in one of these sessions: the position of the session, and of the row."""
        keys, of = sessions.by_key()
        at, key = positions_of(self._new, keys, self._spec.key.names)
        order = np.lexsort((self._new.column(TIME).to_numpy()[at], key))
        at, key = at[order], key[order]
        asked, found = _pairs(self._ranges(self._new.take(pa.array(at)), key, sessions, of))
        return asked, at[found]

    def _stored_rows(self, sessions: Sessions) -> tuple[KeyBatch, pa.Table, Numbers]:
        """The identities of the stored rows of some sessions, the rows, and the position of each row's session."""
        keys, of = sessions.by_key()
        rows, index = self._of_keys(keys, with_new=False)
        asked, found = _pairs(self._ranges(rows, index, sessions, of))
        rows = rows.take(pa.array(found))
        return self._named(keys, index[found], rows), rows, asked

    def _named(self, keys: KeyBatch, index: Numbers, rows: pa.Table) -> KeyBatch:
        times, place = (rows.column(name).to_numpy() for name in (TIME, PLACE))
        columns = [*keys.columns.take(pa.array(index)).columns, pa.array(times), pa.array(place)]
        identity = pa.RecordBatch.from_arrays(columns, schema=self._spec.table.identity)
        return KeyBatch(keys.sort_keys[index], identity, times)


def _pairs(ranges: Ranges) -> tuple[Numbers, Numbers]:
    """For each pair of a range and a row in it, the positions of both."""
    asked = np.repeat(np.arange(len(ranges.counts)), ranges.counts)
    begins = np.cumsum(ranges.counts) - ranges.counts
    return asked, ranges.start[asked] + np.arange(len(asked)) - begins[asked]


def positions_of(rows: pa.Table, keys: KeyBatch, names: Sequence[str]) -> tuple[Numbers, Numbers]:
    """The positions of the rows that have one of these keys, and the positions of their keys."""
    numbers = rows.column(SORT_KEY).to_numpy()
    order = np.argsort(numbers, kind="stable")
    asked = KeyBatch(numbers[order], one_batch(rows.select(list(names)).take(pa.array(order))))
    at = pa.schema([("at", pa.int64())])
    table = SortedBatch(keys.sort_keys, None, tuple(keys.columns.columns), (pa.array(np.arange(len(keys))),))
    positions, found = lookup([(table,)], asked, at)
    return order[found], positions.column(0).filter(pa.array(found)).to_numpy()
