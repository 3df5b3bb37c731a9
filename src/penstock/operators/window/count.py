"""Count windows: every `n` rows of a key. Executors.

For aggregates, the state of an open window is its number of rows and their partial aggregates: columns, no Python per key. For own code,
the rows of open windows lie in a table by key, in the order of arrival. Only the rows of keys with a full window are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.operators.aggregate.columns import AggregateColumn, output_schema, state_schema
from penstock.operators.aggregate.merge import finish, merged_groups
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import Piece, PieceLimits, group_rows, null_keys, pieces_with_state
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.process.user_code import Context
from penstock.operators.state.table_rows import stored_rows
from penstock.operators.values.row_order import Order
from penstock.operators.views import StoredTable, TableView
from penstock.operators.window.base import (
    KEYS_AT_ONCE,
    PLACE,
    PORTION_BYTES,
    Numbers,
    WindowTask,
    arrival_numbers,
)
from penstock.operators.window.own_code import RowsRun, WindowCode, WindowCodeSpec, WindowRows
from penstock.state.backends.base import OpenState, StateLayout, TableLayout
from penstock.state.backends.sorted_lookup import no_columns
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.sizes import in_batches, one_batch
from penstock.windows import CountWindows

SIZE = "__penstock_rows_so_far"
LIMITS = PieceLimits(bytes=256 << 20)


@dataclass(frozen=True)
class CountSpec(Spec):
    """Aggregates over count windows, as `window(windows.count(...)).aggregate(...)` declares them."""

    key: pa.Schema
    windows: CountWindows
    specs: tuple[AggregateColumn, ...]

    @property
    @override
    def output(self) -> pa.Schema:
        return pa.schema([*self.key, *output_schema(self.specs)])

    def layout(self) -> StateLayout:
        """One row for each key. The name of a column has the size of the windows, so that a checkpoint with another size is refused."""
        return StateLayout(
            self.key, pa.schema([(size_name(self.windows), pa.int64()), *state_schema(self.specs)])
        )

    @classmethod
    @override
    def shown_as(cls, column: str) -> str | None:
        return "rows" if column.startswith(SIZE) else None

    @classmethod
    @override
    def refused_values(cls, layout: StateLayout) -> str:
        """The values of an open window mean nothing without the number of its rows."""
        if not any(name.startswith(SIZE) for name in layout.value.names):
            return ""
        return "is that of windows by a number of rows, which cannot be written; leave the operator out"

    @override
    def task(self, context: TaskContext) -> Task:
        return CountAggregateTask(context, self)


@dataclass
class CountAggregateTask(WindowTask):
    """Fills count windows with rows, each of which comes with the partial aggregates of itself."""

    spec: CountSpec

    @override
    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        return {RESULTS: run_count_windows(self.spec, rows.own, state)}

    @override
    def shown_columns(self, table: pa.Table) -> list[str]:
        own = {SORT_KEY, *self.spec.layout().value.names}
        return [name for name in table.column_names if name not in own]

    @override
    def without_null_keys(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        flags, reasons = null_keys(table, list(keys))
        if not reasons:
            return table
        self.context.bad.add(table.filter(pa.array(flags)).select(self.shown_columns(table)), reasons, keys)
        return table.filter(pa.array(~flags))


def size_name(windows: CountWindows) -> str:
    """The name of the column with the number of rows in the open window of a key."""
    return f"{SIZE}_of_{windows.n}"


@dataclass(frozen=True)
class Filled:
    """How the rows of keys fill windows of `n` rows. The first window of a key may have rows from earlier batches."""

    before: Numbers
    """For each key, how many rows its open window had before the batch."""
    counts: Numbers
    """For each key, how many rows the batch has."""
    n: int

    @property
    def full(self) -> Numbers:
        """For each key, how many windows the batch fills."""
        return (self.before + self.counts) // self.n

    @property
    def left(self) -> Numbers:
        """For each key, how many rows its open window has after the batch."""
        return (self.before + self.counts) % self.n

    def window_of(self) -> Numbers:
        """For each row of the batch, in the order of keys, the number of its window among those of its key."""
        first = np.cumsum(self.counts) - self.counts
        within = np.arange(int(self.counts.sum())) - np.repeat(first, self.counts)
        return (np.repeat(self.before, self.counts) + within) // self.n


def run_count_windows(spec: CountSpec, rows: pa.Table, state: OpenState) -> list[pa.RecordBatch]:
    """Add the rows of a batch (sort key, key columns, partial aggregates of each row) to windows; returns those that are full."""
    results: list[pa.RecordBatch] = []
    if rows.num_rows:
        for piece in pieces_with_state(group_rows(rows, spec.key.names), state, LIMITS):
            results += in_batches(_fill(spec, piece, state))
    return results


def _fill(spec: CountSpec, piece: Piece, state: OpenState) -> pa.Table:
    name, schema = size_name(spec.windows), state_schema(spec.specs)
    keys, stored = piece.grouped.keys, piece.stored
    before = np.where(piece.found, stored.column(name).fill_null(0).to_numpy(), 0)
    filled = Filled(before, np.diff(piece.grouped.starts), spec.windows.n)
    begun = np.flatnonzero(before)
    key_index = np.concatenate([begun, np.repeat(np.arange(len(keys)), filled.counts)])
    window = np.concatenate([np.zeros(len(begun), dtype=np.int64), filled.window_of()])
    rows = piece.grouped.table.select(schema.names).cast(schema)
    both = pa.concat_tables(
        [pa.Table.from_batches([stored.select(schema.names).take(pa.array(begun))]), rows]
    )
    order = np.lexsort((window, key_index))
    changes = (np.diff(key_index[order]) != 0) | (np.diff(window[order]) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1, [len(order)]))
    merged = merged_groups(spec.specs, one_batch(both.take(pa.array(order))), starts)
    first = order[starts[:-1]]
    full = window[first] < filled.full[key_index[first]]
    _write(spec, piece, state, filled, merged.filter(pa.array(~full)))
    at = pa.array(key_index[first][full])
    finished = finish(spec.specs, merged.filter(pa.array(full)))
    return pa.Table.from_arrays([*keys.columns.take(at).columns, *finished.columns], schema=spec.output)


def _write(spec: CountSpec, piece: Piece, state: OpenState, filled: Filled, open_: pa.RecordBatch) -> None:
    """Write the windows that are not full, in the order of keys, and delete keys that have none."""
    has = filled.left > 0
    touched = np.flatnonzero(has | piece.found)
    rows = np.full(len(has), -1, dtype=np.int64)
    rows[has] = np.arange(len(open_))
    at = pa.array(rows[touched], mask=~has[touched])
    values = [pa.array(filled.left[touched], mask=~has[touched]), *(one.take(at) for one in open_.columns)]
    schema = spec.layout().value
    gone = ~has[touched]
    state.write(
        piece.grouped.keys.take(touched),
        pa.RecordBatch.from_arrays(values, schema=schema),
        gone if gone.any() else None,
    )


@dataclass(frozen=True)
class CountRowsSpec(WindowCodeSpec):
    """Own code over count windows, as `window(windows.count(...)).process(...)` declares it."""

    key: pa.Schema
    windows: CountWindows
    columns: pa.Schema
    """The columns of the stream."""
    code: WindowCode
    order_by: tuple[Order, ...] = ()

    @property
    def table(self) -> TableLayout:
        """The rows of windows that are not full."""
        return TableLayout(f"rows of {self.windows}", pa.schema([*self.key, (PLACE, pa.int64())]), self.kept)

    @override
    def layout(self) -> StateLayout:
        return StateLayout(self.key, pa.schema([(size_name(self.windows), pa.int64())]), (self.table,))

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:
        """The rows of windows that are not full."""
        is_own = table.names == [PLACE] and table.name.startswith("rows of windows of ")
        return TableView("rows", "rows", (), table.value) if is_own else None

    def run(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:  # noqa: ARG002
        """Call the user's code for the windows that are full. No row of a count window is late."""
        none = rows.slice(0, 0)
        if not rows.num_rows:
            return RowsRun([], none, None)
        numbered = rows.append_column(
            PLACE, pa.array(arrival_numbers(state.generation, np.arange(rows.num_rows)))
        )
        found = pieces_with_state(group_rows(numbered, self.key.names), state, LIMITS)
        results = [batch for piece in found for batch in _Fill(self, piece, state).results(context)]
        return RowsRun(results, none, None)


class _Fill:
    """Fills the windows of the keys of one piece."""

    def __init__(self, spec: CountRowsSpec, piece: Piece, state: OpenState) -> None:
        self._spec, self._piece, self._state = spec, piece, state
        self._table = state.table(spec.table.name)
        before = piece.stored.column(size_name(spec.windows)).fill_null(0).to_numpy()
        counts = np.diff(piece.grouped.starts)
        self._filled = Filled(np.where(piece.found, before, 0), counts, spec.windows.n)

    def results(self, context: Context) -> Iterator[pa.RecordBatch]:
        """Call the user's code for full windows, then write the rows that are left."""
        filled, grouped = self._filled, self._piece.grouped
        names = [*self._spec.columns.names, PLACE]
        old_keys, old = self._stored(np.flatnonzero((filled.full > 0) & (filled.before > 0)))
        new_keys = np.repeat(np.arange(len(grouped.keys)), filled.counts)
        window = filled.window_of()
        is_full = window < filled.full[new_keys]
        new = grouped.table.select(names)
        together = pa.concat_tables([old.select(names), new.filter(pa.array(is_full)).cast(self._columns)])
        keys = np.concatenate([old_keys, new_keys[is_full]])
        order = np.lexsort((together.column(PLACE).to_numpy(), keys))
        if len(order):
            bounds = np.arange(0, len(order) + 1, self._spec.windows.n)
            named = grouped.keys.columns.take(pa.array(keys[order][bounds[:-1]]))
            full = together.select(self._spec.columns.names).take(pa.array(order))
            yield from self._spec.code.results(WindowRows(named, bounds, full), context)
        self._write(old_keys, old, new_keys[~is_full], new.filter(pa.array(~is_full)).cast(self._columns))

    @property
    def _columns(self) -> pa.Schema:
        return pa.schema([*self._spec.columns, (PLACE, pa.int64())])

    def _stored(self, wanted: Numbers) -> tuple[Numbers, pa.Table]:
        keys = self._piece.grouped.keys
        found = list(
            stored_rows(self._table, keys, wanted, keys_at_once=KEYS_AT_ONCE, max_bytes=PORTION_BYTES)
        )
        if not found:
            return np.zeros(0, dtype=np.int64), self._columns.empty_table()
        rows = pa.Table.from_batches([rows for _, rows in found]).select(self._columns.names)
        return np.concatenate([numbers for numbers, _ in found]), rows.cast(self._columns)

    def _write(self, old_keys: Numbers, old: pa.Table, new_keys: Numbers, new: pa.Table) -> None:
        rows, index = pa.concat_tables([new, old]), np.concatenate([new_keys, old_keys])
        keys = self._piece.grouped.keys
        place = rows.column(PLACE).to_numpy()
        named = pa.RecordBatch.from_arrays(
            [*keys.columns.take(pa.array(index)).columns, pa.array(place)], schema=self._spec.table.identity
        )
        self._table.write(
            KeyBatch(keys.sort_keys[index], named, place),
            one_batch(rows.select(self._spec.kept.names)) if len(self._spec.kept) else no_columns(len(index)),
            np.arange(len(index)) >= len(new_keys),
        )
        left, found = self._filled.left, self._piece.found
        touched = np.flatnonzero((left > 0) | found)
        gone = left[touched] == 0
        size = pa.RecordBatch.from_arrays(
            [pa.array(left[touched], mask=gone)], schema=self._spec.layout().value
        )
        self._state.write(keys.take(touched), size, gone if gone.any() else None)
