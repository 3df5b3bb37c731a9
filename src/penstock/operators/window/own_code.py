"""Own code over windows: how it is called, and the rows of tumbling and sliding windows. Executors.

The rows of a window are stored until it has closed and no late row can come any more. They lie in a table by time, in the order of the last
moments of their windows, once for each of their windows. The rows of windows that close are one range of that table. They expire with the
allowed lateness, so nothing is deleted.

Stored and new rows are read in portions of whole windows that fit into memory. Both are in the order of a table by time: by the last moment
of their window, then by sort key. So the windows before the last row of a portion are complete.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.calls import (
    OUTPUT_ROWS,
    PROCESS,
    Blamed,
    blamed_on,
    encode_calls,
    not_iterable,
    python_keys,
    rare_collections,
)
from penstock.operators.columns import rows_at, widened
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.grouping import Grouped, PieceLimits, equal_rows, pieces
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.process.user_code import Context, OpenedCode
from penstock.operators.state.cells import copy_emitted
from penstock.operators.values.python_values import as_moments, python_values
from penstock.operators.values.row_order import Order, order_keys
from penstock.operators.values.rows import Rows, RowTable
from penstock.operators.views import StoredTable, TableView
from penstock.operators.window.base import (
    LAST,
    PLACE,
    Numbers,
    RowTimes,
    TimeWindow,
    WindowProcess,
    WindowTask,
    arrival_numbers,
    rows_in,
    shown_bounds,
)
from penstock.state.backends.base import OpenState, StateLayout, TableLayout, with_stamps
from penstock.state.backends.sorted_rows import SortedBatch
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, Lifetime, Measure
from penstock.state.sizes import PART_BYTES, Bytes, cut, in_batches, one_batch, table_row_bytes
from penstock.windows import TimeWindows

LIMITS = PieceLimits(rows=1 << 18, bytes=256 << 20)
"""The most rows, and bytes of rows, that are Python objects at the same time."""


@dataclass(frozen=True)
class WindowRows:
    """Windows with their rows: window i has the rows `bounds[i]` up to `bounds[i + 1]`, and the key in row i of `keys`."""

    keys: pa.RecordBatch
    bounds: Numbers
    rows: pa.Table
    starts: Numbers | None = None
    """The first moments of the windows; None where time has nothing to do with them."""
    ends: Numbers | None = None
    """The ends of the windows: one microsecond after their last moments."""


@dataclass(frozen=True)
class WindowCode:
    """The user's code, the columns of its results, and the type of the times that it is called with."""

    operator: WindowProcess
    output: pa.Schema
    time: pa.DataType | None
    """The type of `start` and `end` of a window; None where windows count rows."""

    def results(self, windows: WindowRows, context: Context) -> Iterator[pa.RecordBatch]:
        """Call the code for each window. Raises `BadRecordError` with the key whose results do not fit the schema."""
        times = [] if windows.starts is None or windows.ends is None else [windows.starts, windows.ends]
        columns = [*windows.keys.columns, *(as_moments(one, self.time) for one in times)]
        named = pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])
        numbers = np.zeros(len(named), dtype=np.int64)
        if len(named):
            context.before_calls()
        with rare_collections():
            for piece in pieces(Grouped(KeyBatch(numbers, named), windows.bounds, windows.rows), LIMITS):
                yield from self._piece(piece, windows.keys.num_columns, context)

    def _piece(self, piece: Grouped, keys: int, context: Context) -> Iterator[pa.RecordBatch]:
        columns = piece.keys.columns.columns
        names = python_keys(pa.RecordBatch.from_arrays(columns[:keys], names=[str(at) for at in range(keys)]))
        windows: list[TimeWindow | None] = [None] * len(names)
        if len(columns) > keys:
            starts, ends = (python_values(column) for column in columns[keys:])
            windows = list(map(TimeWindow, starts, ends))
        table, given = RowTable(piece.table), _Given(self, context)
        for key, window, (start, stop) in zip(names, windows, pairwise(piece.starts.tolist()), strict=True):
            rows = Rows(table, start, stop)
            results = self.operator.process(key, window, rows, context)
            yield from given.take(key, rows, results)
        yield from given.encoded()


@dataclass(frozen=True)
class RowsRun:
    """The results of a batch, the rows that came too late, and when the next window closes."""

    results: list[pa.RecordBatch]
    late: pa.Table
    waits_for: int | None


class WindowCodeSpec(Spec):
    """Own code over windows of one kind, typed against the columns of its stream."""

    key: pa.Schema
    columns: pa.Schema
    """The columns of its stream."""
    code: WindowCode

    @property
    def kept(self) -> pa.Schema:
        """The stored columns of a row, apart from its key."""
        return pa.schema([field for field in self.columns if field.name not in self.key.names])

    @property
    @override
    def output(self) -> pa.Schema:
        return self.code.output

    @property
    def allowed_lateness_us(self) -> int | None:
        """How long windows are kept after their end; None where they count rows."""
        return None

    @abstractmethod
    def run(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:
        """Add the rows of a batch (with their sort keys) to their windows, and call the user's code for windows that have closed."""

    @override
    def task(self, context: TaskContext) -> Task:
        return WindowProcessTask(context, self)


@dataclass
class WindowProcessTask(WindowTask):
    """Calls own code over windows of any kind. An exception of that code ends the run."""

    spec: WindowCodeSpec

    @property
    @override
    def lateness_us(self) -> int | None:
        return self.spec.allowed_lateness_us

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """Call own code for the windows that have closed, and again for closed ones that have got late rows."""
        told, clock = self.context, self.clock
        context = Context(
            told.uid,
            told.batch,
            told.subtask,
            told.parallelism,
            _watermark_us=clock.watermark_us if self.uses_time else clock.before_us,
            _now_us=clock.now_us,
        )
        code = self.spec.code.operator
        with OpenedCode(code, context) as opened, blamed_on(code.process):
            given = self.spec.run(rows.own, state, clock, replace(context, _opened=opened))
        told.late.add(given.late)
        self._due = Due(event_us=given.waits_for)
        return {RESULTS: given.results}


class _Given:
    """Encodes results together. Only when one does not fit the schema, it searches for the key that gave it."""

    def __init__(self, code: WindowCode, context: Context) -> None:
        self._code, self._uid = code, context.operator
        self._calls: list[tuple[Any, Rows, int]] = []
        self._results: list[Any] = []

    def take(self, key: Any, rows: Rows, results: Any) -> Iterator[pa.RecordBatch]:
        """Collect the results of a call. A generator runs only now."""
        if results is not None:
            if not isinstance(results, Iterable):
                raise _of(not_iterable(results, self._uid), key, rows)
            self._results += map(copy_emitted, results)
        self._calls.append((key, rows, len(self._results)))
        if len(self._results) >= OUTPUT_ROWS:
            yield from self.encoded()

    def encoded(self) -> Iterator[pa.RecordBatch]:
        """Encode the results collected so far."""
        if self._results:
            table = encode_calls(self._results, self._code.output, self._uid, self._by_call())
            yield from in_batches(table)
        self._calls, self._results = [], []

    def _by_call(self) -> Iterator[Blamed]:
        start = 0
        for key, rows, stop in self._calls:
            if start < stop:
                yield PROCESS, self._results[start:stop], partial(_of, key=key, rows=rows)
            start = stop


def _of(error: BadRecordError, key: Any, rows: Rows) -> BadRecordError:
    error.facts.update(key=key, row=rows)
    return error


@dataclass(frozen=True)
class RowsByWindow:
    """The rows of a batch, once for each of their windows, in the order of the table. It holds positions; columns are copied last."""

    rows: pa.Table
    at: Numbers
    """The position of each in `rows`."""
    lasts: Numbers
    sort_keys: Numbers
    places: Numbers
    sizes: Bytes

    @classmethod
    def in_order(
        cls, rows: pa.Table, at: Numbers, lasts: Numbers, places: Numbers, sizes_of_rows: Bytes
    ) -> RowsByWindow:
        """Sort rows into the order of the table."""
        sort_keys = rows.column(SORT_KEY).to_numpy()[at]
        order = np.lexsort((sort_keys, lasts))
        return cls(rows, at[order], lasts[order], sort_keys[order], places[order], sizes_of_rows[at[order]])

    def __len__(self) -> int:
        return len(self.at)

    @property
    def addresses(self) -> SortedBatch:
        """The places of the rows in the table."""
        return SortedBatch(self.sort_keys, None, (), (), self.lasts, by_time=True)

    def slice(self, start: int, stop: int) -> RowsByWindow:
        """The rows from `start` up to `stop`."""
        return RowsByWindow(
            self.rows,
            self.at[start:stop],
            self.lasts[start:stop],
            self.sort_keys[start:stop],
            self.places[start:stop],
            self.sizes[start:stop],
        )

    def until(self, last: int) -> RowsByWindow:
        """The rows of windows whose last moment is at most `last`."""
        return self.slice(0, int(np.searchsorted(self.lasts, last, side="right")))

    def after(self, last: int) -> RowsByWindow:
        """The rows of windows whose last moment is after `last`."""
        return self.slice(int(np.searchsorted(self.lasts, last, side="right")), len(self))

    def batches(self, schema: pa.Schema, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """The columns of the rows, in batches of at most `max_bytes`."""
        taken = pa.schema([field for field in schema if field.name not in (LAST, PLACE)])
        for start, stop in cut(self.sizes, max_bytes):
            found = rows_at(self.rows, self.at[start:stop], taken)
            columns = dict(zip(taken.names, found.columns, strict=True))
            columns |= {LAST: pa.array(self.lasts[start:stop]), PLACE: pa.array(self.places[start:stop])}
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def portions(
    stored: Iterable[pa.Table], new: RowsByWindow, schema: pa.Schema, max_bytes: int
) -> Iterator[pa.Table]:
    """Yield all rows in portions of whole windows: about `max_bytes` of stored and of new rows each, unless one window has more."""
    waiting = [schema.empty_table()]
    size = done = 0
    for batch in (batch for table in stored for batch in in_batches(table, max_bytes)):
        if not batch.num_rows:
            continue
        part = pa.Table.from_batches([batch])
        waiting.append(part)
        size += part.nbytes
        end = _addresses(part).address(part.num_rows - 1)
        if size <= max_bytes or _addresses(waiting[1]).address(0) == end:
            continue
        whole = pa.concat_tables(waiting)
        behind, stop = _addresses(whole).first_at(end), new.addresses.first_at(end)
        yield from _cut(whole.slice(0, behind), new.slice(done, stop), schema, max_bytes)
        rest, done = whole.slice(behind), stop
        waiting, size = [waiting[0], rest], rest.nbytes
    yield from _cut(pa.concat_tables(waiting), new.slice(done, len(new)), schema, max_bytes)


def _cut(stored: pa.Table, new: RowsByWindow, schema: pa.Schema, max_bytes: int) -> Iterator[pa.Table]:
    """Cut stored rows that fit into memory, together with any number of new ones, into portions of whole windows."""
    start = begin = 0
    places, of_stored = new.addresses, _addresses(stored)
    for _, enough in cut(new.sizes, max_bytes):
        if enough <= start:  # of a window that was larger
            continue
        address = places.address(enough - 1)
        stop = places.first_behind(address)
        end = stored.num_rows if stop == len(new) else of_stored.first_behind(address)
        taken = pa.Table.from_batches(new.slice(start, stop).batches(schema, max_bytes), schema)
        yield pa.concat_tables([stored.slice(begin, end - begin), taken])
        start, begin = stop, end
    if begin < stored.num_rows:
        yield stored.slice(begin)


def _addresses(rows: pa.Table) -> SortedBatch:
    sort_keys, lasts = (rows.column(name).to_numpy() for name in (SORT_KEY, LAST))
    return SortedBatch(sort_keys, None, (), (), lasts, by_time=True)


STAMP = "__penstock_ends"
FEW_KEYS = 64
"""Late rows of up to this many keys are looked up key by key; for more keys, all rows of the window are read."""


@dataclass(frozen=True)
class WindowRowsSpec(WindowCodeSpec):
    """Own code over tumbling or sliding windows, as `window(...).process(...)` declares it."""

    key: pa.Schema
    windows: TimeWindows
    lateness_us: int
    columns: pa.Schema
    """The columns of the stream."""
    time: TimeColumn
    order_by: tuple[Order, ...]
    code: WindowCode

    @property
    def table(self) -> TableLayout:
        """The rows of windows. The name of the table says which windows, so that a checkpoint with other windows is refused."""
        lifetime = Lifetime(tuple(self.kept.names), STAMP, self.lateness_us, Measure.WATERMARK)
        identity = pa.schema([*self.key, (LAST, pa.int64()), (PLACE, pa.int64())])
        value = with_stamps(self.kept, (lifetime,))
        return TableLayout(f"rows of {self.windows}", identity, value, by_time=True, lifetimes=(lifetime,))

    @override
    def layout(self) -> StateLayout:
        return StateLayout(self.key, pa.schema([]), (self.table,))

    @classmethod
    @override
    def shown(cls, table: StoredTable) -> TableView | None:
        if not {LAST, PLACE} <= set(table.names):
            return None
        return TableView("rows", "rows of windows", shown_bounds(table.name), table.value)

    @property
    @override
    def allowed_lateness_us(self) -> int | None:
        return self.lateness_us

    def run(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:
        """Call the user's code for the windows that have closed."""
        return _Run(self, state, clock, context).run(rows)


@dataclass(frozen=True)
class _Run:
    spec: WindowRowsSpec
    state: OpenState
    clock: OperatorClock
    context: Context

    def run(self, rows: pa.Table) -> RowsRun:
        times = RowTimes.of(rows, self.spec.time, self.clock, operator=self.context.operator)
        windows = self.spec.windows
        newest = times.numbers - (times.numbers - windows.offset_us) % windows.every_us
        over_us = self.clock.closed_until_us(self.spec.lateness_us)
        in_time = times.sensible & (newest + windows.size_us - 1 > over_us)
        late = rows.filter(pa.array(~in_time))
        new = self._by_window(rows, np.flatnonzero(in_time), times.numbers)
        stored = chain(self._updated(new.until(self.clock.before_us)), self._due())
        over = portions(stored, new.until(self.clock.watermark_us), self._table_columns, PART_BYTES)
        results = [result for portion in over for result in self._results(portion)]
        waits_for = self._first_open(new.lasts)
        self._write(new.after(self.clock.watermark_us - self.spec.lateness_us))
        return RowsRun(results, late, waits_for)

    @property
    def _table_columns(self) -> pa.Schema:
        return pa.schema([(SORT_KEY, pa.int64()), *self.spec.table.identity, *self.spec.kept])

    def _by_window(self, rows: pa.Table, at: Numbers, times: Numbers) -> RowsByWindow:
        """The rows of the batch, once for each of their windows that still accepts rows."""
        pane = times[at] - (times[at] - self.spec.windows.offset_us) % self.spec.windows.pane_us
        of, lasts = self.spec.windows.windows_of(pane)
        open_ = lasts > self.clock.closed_until_us(self.spec.lateness_us)
        at, lasts = at[of[open_]], lasts[open_]
        rows = widened(rows).combine_chunks()
        return RowsByWindow.in_order(
            rows, at, lasts, arrival_numbers(self.state.generation, at), table_row_bytes(rows)
        )

    def _due(self) -> Iterator[pa.Table]:
        """Stored rows of windows that the watermark passes in this batch."""
        table = self.state.table(self.spec.table.name)
        for part in table.until(self.clock.watermark_us, after=self.clock.before_us):
            yield self._read(part)

    def _read(self, part: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([part]).select(self._table_columns.names).cast(self._table_columns)

    def _updated(self, new: RowsByWindow) -> Iterator[pa.Table]:
        """Stored rows of windows that had closed before this batch, and have late rows in it."""
        if not len(new):
            return
        table, schema = self.state.table(self.spec.table.name), self._table_columns
        names = [SORT_KEY, *self.spec.key.names, LAST]
        named = pa.schema([schema.field(name) for name in names])
        windows = [self._windows(pa.Table.from_batches([part])) for part in new.batches(named, PART_BYTES)]
        for last in np.unique(new.lasts).tolist():
            sort_keys = np.unique(new.sort_keys[new.lasts == last]).tolist()
            few = len(sort_keys) <= FEW_KEYS
            found = [table.at(last, one) for one in sort_keys] if few else [table.until(last, after=last - 1)]
            for part in chain.from_iterable(found):
                rows = self._read(part)
                yield rows.filter(pa.array(rows_in(self._windows(rows), windows, by_time=True)))

    def _windows(self, rows: pa.Table) -> KeyBatch:
        names = [*self.spec.key.names, LAST]
        return KeyBatch(
            rows.column(SORT_KEY).to_numpy(), one_batch(rows.select(names)), rows.column(LAST).to_numpy()
        )

    def _results(self, over: pa.Table) -> Iterator[pa.RecordBatch]:
        if not over.num_rows:
            return
        over = widened(over).combine_chunks()
        keys = [over.column(name).chunk(0) for name in self.spec.key.names]
        numbers = [over.column(name).to_numpy() for name in (LAST, SORT_KEY)]
        order, bounds = equal_rows(numbers, keys)
        within = [*order_keys(over, self.spec.order_by), over.column(PLACE).to_numpy()]
        group = np.empty(len(order), dtype=np.int64)
        group[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        order = np.lexsort((*within[::-1], group))
        first, lasts = pa.array(order[bounds[:-1]]), numbers[0][order[bounds[:-1]]]
        named = pa.RecordBatch.from_arrays(
            [key.take(first).cast(field.type) for key, field in zip(keys, self.spec.key, strict=True)],
            schema=self.spec.key,
        )
        rows = over.select(self.spec.columns.names).take(pa.array(order))
        windows = WindowRows(named, bounds, rows, self.spec.windows.starts(lasts), lasts + 1)
        yield from self.spec.code.results(windows, self.context)

    def _first_open(self, new: Numbers) -> int | None:
        """The last moment of the first window that is still open after this batch."""
        watermark = self.clock.watermark_us
        stored = next(self.state.table(self.spec.table.name).until(FAR_AWAY_US, after=watermark), None)
        first = FAR_AWAY_US if stored is None else int(stored.column(LAST)[0].as_py())
        first = min(first, int(new[new > watermark].min(initial=FAR_AWAY_US)))
        return None if first >= FAR_AWAY_US else first

    def _write(self, rows: RowsByWindow) -> None:
        for part in rows.batches(self._table_columns, PART_BYTES):
            lasts = part.column(LAST).to_numpy()
            named = part.select(self.spec.table.identity.names)
            values = [*part.select(self.spec.kept.names).columns, part.column(LAST)]
            self.state.table(self.spec.table.name).write(
                KeyBatch(part.column(SORT_KEY).to_numpy(), named, lasts),
                pa.RecordBatch.from_arrays(values, schema=self.spec.table.value),
            )
