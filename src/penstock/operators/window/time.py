"""Aggregates over windows that time alone decides: tumbling and sliding. Columns in, columns out, no Python per key. Executors.

    rows of a batch --(Spark, JVM)--> partials by key and pane --> by key and window --merge with state--> windows --those due--> results

Windows lie in a table by time, in the order of their last moments. The windows that the watermark passes in a batch are one range of it.
They expire with the allowed lateness, so nothing is deleted.

Early results (`early=`) are results of open windows that have changed, at most one per interval of the clock. When a window changes that
has no early result pending, one becomes due after the interval. The window stores that next to its aggregates, and a row in a table
ordered by the clock leads to it when it is due. A row of that table is read once, and is gone in the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.operators.aggregate.columns import state_schema
from penstock.operators.aggregate.distinct import WHOSE, counting_distinct
from penstock.operators.aggregate.merge import merge, merged_groups
from penstock.operators.aggregate.operator import shown_values
from penstock.operators.bad_records import ROWS
from penstock.operators.base import Task, TaskContext
from penstock.operators.columns import as_batch, widened
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import equal_rows
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.views import StoredTable, TableView, TimestampColumn
from penstock.operators.window.aggregates import (
    TimeAggregateSpec,
    TimeAggregateTask,
    WindowValues,
    window_values,
    with_no_counts,
)
from penstock.operators.window.base import (
    LAST,
    PANE,
    PLACE,
    WINDOW_START,
    Numbers,
    rows_in,
    shown_bounds,
    size_of_tumbling,
    without_late_rows,
)
from penstock.state.backends.base import OpenState, OpenTable, StateLayout, TableLayout, with_stamps
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY, Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, Lifetime, Measure
from penstock.state.sizes import cut, in_batches, one_batch, row_bytes
from penstock.windows import TimeWindows

AWAITED = "__penstock_awaited"
"""A column beside the aggregates of a window: when its next early result is due, by the clock. A time in the past means nothing."""
_DUE = "__penstock_due"
EARLY = "early results"
"""The table of early results that are due."""
_STAMP = "__penstock_due_at"


def early_table(identity: pa.Schema) -> TableLayout:
    """The table of windows that will give an early result, by the time at which it is due."""
    lifetime = Lifetime((), _STAMP, 0, Measure.FIRED)
    return TableLayout(
        EARLY,
        pa.schema([*identity, (_DUE, pa.int64())]),
        with_stamps(pa.schema([]), (lifetime,)),
        by_time=True,
        lifetimes=(lifetime,),
    )


class EarlyResults:
    """The early results of one subtask in one batch."""

    def __init__(self, identity: pa.Schema, every_us: int, state: OpenState, clock: OperatorClock) -> None:
        self._identity, self._every_us, self._clock = identity, every_us, clock
        self._layout = early_table(identity)
        self._table = state.table(EARLY)
        self._waits_for = FAR_AWAY_US

    def changed(self, windows: KeyBatch, awaited: Numbers, open_: Flags) -> tuple[Numbers, Flags]:
        """For windows that have rows in this batch: when their next early results are due now, and which give one in this batch.

        `awaited` has the times at which they were due so far, 0 for new windows.
        """
        due = open_ & (awaited > self._clock.fired_us) & (awaited <= self._clock.now_us)
        begins = open_ & ~due & (awaited <= self._clock.now_us)
        now_awaited = np.where(begins, self._clock.now_us + self._every_us, awaited)
        self._write(windows.take(np.flatnonzero(begins)), now_awaited[begins])
        return now_awaited, due

    def _write(self, windows: KeyBatch, due: Numbers) -> None:
        if not len(windows):
            return
        columns = pa.RecordBatch.from_arrays(
            [*windows.columns.columns, pa.array(due)], schema=self._layout.identity
        )
        stamps = pa.RecordBatch.from_arrays([pa.array(due)], schema=self._layout.value)
        self._table.write(KeyBatch(windows.sort_keys, columns, due), stamps)
        self._waits_for = min(self._waits_for, int(due.min()))

    def due(self) -> Iterator[tuple[KeyBatch, Numbers]]:
        """Windows whose early result is due by now, unordered, and the times at which it was due. A window may have closed since."""
        for rows in self._table.until(self._clock.now_us, after=self._clock.fired_us):
            identity = rows.select(self._identity.names)
            yield KeyBatch(rows.column(SORT_KEY).to_numpy(), identity), rows.column(_DUE).to_numpy()

    @property
    def waits_for(self) -> int | None:
        """When the next early result is due after this batch; None if there is none."""
        stored = next(self._table.until(FAR_AWAY_US, after=self._clock.now_us), None)
        first = FAR_AWAY_US if stored is None else int(stored.column(_DUE)[0].as_py())
        found = min(first, self._waits_for)
        return None if found >= FAR_AWAY_US else found


STAMP = "__penstock_ends"
PIECE_BYTES = 256 << 20


@dataclass(frozen=True)
class WindowSpec(TimeAggregateSpec):
    """Aggregates over tumbling or sliding windows, as `window(...).aggregate(...)` declares them."""

    windows: TimeWindows
    early_us: int | None = None
    """How long after a change of a window its early result is due; None for no early results."""

    @property
    def taken(self) -> pa.Schema:
        """The columns computed by Spark that are stored."""
        return pa.schema([*self.key, *state_schema(self.specs)])

    @property
    def table(self) -> TableLayout:
        """The windows. The name of the table says which windows, so that a checkpoint with other windows is refused."""
        awaited = [] if self.early_us is None else [pa.field(AWAITED, pa.int64())]
        partials = pa.schema([*state_schema(self.specs), *awaited])
        lifetime = Lifetime(tuple(partials.names), STAMP, self.lateness_us, Measure.WATERMARK)
        identity = pa.schema([*self.key, pa.field(LAST, pa.int64())])
        return TableLayout(
            str(self.windows),
            identity,
            with_stamps(partials, (lifetime,)),
            by_time=True,
            lifetimes=(lifetime,),
        )

    @override
    def layout(self) -> StateLayout:
        table = self.table
        early = () if self.early_us is None else (early_table(table.identity),)
        values = (window_values(one, self.key, self.lateness_us) for one in counting_distinct(self.specs))
        return StateLayout(self.key, pa.schema([]), (table, *early, *values))

    @classmethod
    @override
    def shown(cls, table: StoredTable) -> TableView | None:
        if table.name == EARLY:
            return TableView(table.name, "")
        if LAST not in table.names or PLACE in table.names:
            return None
        values = [field for field in table.own if field.name != LAST]
        bounds = shown_bounds(table.name)
        return shown_values(table, values, bounds[1]) or TableView("windows", "windows", bounds, table.value)

    @classmethod
    @override
    def shown_as(cls, column: str) -> str | None:
        return "" if column == AWAITED else None

    @classmethod
    @override
    def placed_by(cls, layout: StateLayout) -> TimestampColumn | None:
        """A tumbling window is a key of its own: with the key, its start decides."""
        sizes = (size_of_tumbling(table.name) for table in layout.tables if table.by_time)
        size_us = next((size_us for size_us in sizes if size_us is not None), None)
        return None if size_us is None else TimestampColumn(WINDOW_START, LAST, 1 - size_us)

    @override
    def task(self, context: TaskContext) -> Task:
        return WindowAggregateTask(context, self)


@dataclass
class WindowAggregateTask(TimeAggregateTask):
    """Counts late rows. Where late rows are read, Spark itself finds them."""

    spec: WindowSpec

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """The results of windows that close, that got late rows after closing, or whose early result is due."""
        clock = self.clock
        own, number = without_late_rows(rows.own, PANE, ROWS, clock, self.context.uid)
        run = WindowRun(self.spec, state, clock)
        results = run.run(own)
        self.context.late.add_number(number + int(own.column(ROWS).to_numpy()[run.late].sum()))
        self._due = run.due
        return {RESULTS: results}


class WindowRun:
    """The work of one subtask in one batch: first rows, then time."""

    def __init__(self, spec: WindowSpec, state: OpenState, clock: OperatorClock) -> None:
        self._spec = spec
        self._table: OpenTable = state.table(spec.table.name)
        self._values = WindowValues(spec.key, spec.windows, spec.specs, spec.lateness_us, state)
        self._clock = clock
        self._waits_for = FAR_AWAY_US
        self.late: Flags = np.zeros(0, dtype=np.bool_)
        """After `run`: which rows came too late, because all their windows had closed in the state."""
        self._early = (
            None if spec.early_us is None else EarlyResults(spec.table.identity, spec.early_us, state, clock)
        )

    def run(self, rows: pa.Table) -> list[pa.RecordBatch]:
        """Merge the partial aggregates of the batch (sort key, key columns, `PANE`, partials; no late ones), and close windows.

        Returns the results, in batches: of windows that the watermark passes, and of closed windows that got late rows.
        """
        results: list[pa.RecordBatch] = []
        self.late = np.zeros(rows.num_rows, dtype=np.bool_)
        touched: list[KeyBatch] = []
        for windows, partials in self._by_window(rows):
            stored, found = self._table.read(windows)
            merged = merge(self._spec.specs, stored, found, partials)
            given = _lasts(windows) <= self._clock.watermark_us
            awaited = None
            if self._early is not None:
                before = stored.column(AWAITED).fill_null(0).to_numpy()
                awaited, due = self._early.changed(windows, np.where(found, before, 0), ~given)
                given |= due
            results += self._results(windows, merged, given)
            self._write(windows, merged, awaited)
            touched.append(windows)
        for rows_due in self._table.until(self._clock.watermark_us, after=self._clock.before_us):
            results += self._untouched(rows_due, touched)
        if self._early is not None:
            for asked, when in self._early.due():
                results += self._untouched_early(asked, when, touched)
        return results

    @property
    def due(self) -> Due:
        """After `run`: the end of the first open window, and when the next early result is due."""
        stored = next(self._table.until(FAR_AWAY_US, after=self._clock.watermark_us), None)
        first = FAR_AWAY_US if stored is None else int(stored.column(LAST)[0].as_py())
        found = min(first, self._waits_for)
        early = None if self._early is None else self._early.waits_for
        return Due(None if found >= FAR_AWAY_US else found, early)

    # ── rows ───────────────────────────────────────────────────────────────────────────────────

    def _by_window(self, rows: pa.Table) -> Iterator[tuple[KeyBatch, pa.RecordBatch]]:
        """The distinct windows of the rows, in the order of the table, with the partial aggregates of the batch."""
        if not rows.num_rows:
            return
        over_us, counted = self._clock.closed_until_us(self._spec.lateness_us), []
        of_keys = np.arange(rows.num_rows)
        if counting_distinct(self._spec.specs):
            counted = self._values.take_in(rows, PANE, over_us=over_us, watermark_us=self._clock.watermark_us)
            of_keys = np.flatnonzero(rows.column(WHOSE).to_numpy() == 0)
            rows = with_no_counts(rows.take(pa.array(of_keys)), self._spec.specs)
        at, lasts = self._spec.windows.windows_of(rows.column(PANE).to_numpy())
        at, lasts = at[lasts > over_us], lasts[lasts > over_us]
        self.late[of_keys] = np.bincount(at, minlength=rows.num_rows) == 0
        sort_keys = rows.column(SORT_KEY).to_numpy()[at]
        own = rows.select([*self._spec.key.names, *state_schema(self._spec.specs).names])
        for one in counted:
            at = np.concatenate([at, own.num_rows + np.arange(one.rows.num_rows)])
            lasts, sort_keys = np.concatenate([lasts, one.lasts]), np.concatenate([sort_keys, one.sort_keys])
            own = pa.concat_tables([own, one.rows.cast(own.schema)])
        if not len(at):
            return  # all were over in the state
        table = widened(own).combine_chunks()
        keys = [table.column(name).chunk(0).take(pa.array(at)) for name in self._spec.key.names]
        order, starts = equal_rows([lasts, sort_keys], keys)
        at, lasts, sort_keys = at[order], lasts[order], sort_keys[order]
        for first, behind in _cut(table, at, starts):
            rows_of = slice(int(starts[first]), int(starts[behind]))
            piece = as_batch(one_batch(table.take(pa.array(at[rows_of]))), self._spec.taken)
            groups = starts[first : behind + 1] - starts[first]
            yield self._grouped(piece, sort_keys[rows_of], lasts[rows_of], groups)

    def _grouped(
        self, piece: pa.RecordBatch, sort_keys: Numbers, lasts: Numbers, starts: Numbers
    ) -> tuple[KeyBatch, pa.RecordBatch]:
        first = starts[:-1]
        partials = piece.select(state_schema(self._spec.specs).names)
        keys = [piece.column(name).take(pa.array(first)) for name in self._spec.key.names]
        identity = pa.RecordBatch.from_arrays(
            [*keys, pa.array(lasts[first])], schema=self._spec.table.identity
        )
        windows = KeyBatch(sort_keys[first], identity, lasts[first])
        return windows, merged_groups(self._spec.specs, partials, starts)

    def _write(self, windows: KeyBatch, merged: pa.RecordBatch, awaited: Numbers | None) -> None:
        """Write the windows that are open after this batch, or still accept late rows."""
        lasts = _lasts(windows)
        kept = np.flatnonzero(lasts > self._clock.watermark_us - self._spec.lateness_us)
        if not len(kept):
            return
        at = pa.array(kept)
        early = [] if awaited is None else [pa.array(awaited[kept])]
        values = [*merged.take(at).columns, *early, pa.array(lasts[kept])]
        self._table.write(
            windows.take(kept), pa.RecordBatch.from_arrays(values, schema=self._spec.table.value)
        )
        waiting = lasts[lasts > self._clock.watermark_us]
        self._waits_for = min(self._waits_for, int(waiting.min(initial=FAR_AWAY_US)))

    # ── results ────────────────────────────────────────────────────────────────────────────────

    def _untouched(self, due: pa.RecordBatch, touched: Sequence[KeyBatch]) -> Iterator[pa.RecordBatch]:
        """The results of windows that close and have no rows in this batch."""
        windows = KeyBatch(
            due.column(SORT_KEY).to_numpy(),
            due.select(self._spec.table.identity.names),
            due.column(LAST).to_numpy(),
        )
        return self._results(windows, due, ~rows_in(windows, touched, by_time=True))

    def _untouched_early(
        self, asked: KeyBatch, when: Numbers, touched: Sequence[KeyBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The early results of open windows that changed in earlier batches and have no rows in this one."""
        lasts = _lasts(asked)
        order = np.lexsort((asked.sort_keys, lasts))
        windows = KeyBatch(asked.sort_keys[order], asked.columns.take(pa.array(order)), lasts[order])
        stored, found = self._table.read(windows)
        awaited = stored.column(AWAITED).fill_null(0).to_numpy()
        wanted = found & (awaited == when[order]) & (lasts[order] > self._clock.watermark_us)
        return self._results(windows, stored, wanted & ~rows_in(windows, touched, by_time=True))

    def _results(
        self, windows: KeyBatch, partials: pa.RecordBatch, wanted: Flags
    ) -> Iterator[pa.RecordBatch]:
        at = np.flatnonzero(wanted)
        if len(at):
            some = windows.take(at)
            keys, lasts = some.columns.columns[: len(self._spec.key)], _lasts(some)
            starts = self._spec.windows.starts(lasts)
            yield from in_batches(self._spec.results(keys, starts, lasts, partials.take(pa.array(at))))


def _lasts(windows: KeyBatch) -> Numbers:
    numbers: Numbers = windows.columns.column(LAST).to_numpy()
    return numbers


def _cut(table: pa.Table, at: Numbers, starts: Numbers) -> Iterator[tuple[int, int]]:
    """Cut groups of rows into parts whose rows fit into arrays. Mostly one part has all of them."""
    each = table.nbytes / max(1, table.num_rows)
    if each * len(at) <= PIECE_BYTES:
        yield 0, len(starts) - 1
        return
    sizes = row_bytes([column.chunk(0) for column in table.columns])[at]
    yield from cut(np.add.reduceat(sizes, starts[:-1]), PIECE_BYTES)
