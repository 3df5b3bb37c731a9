"""Own code over windows of every so many rows of a key. Executors.

The rows of windows that are not full lie in a table by key, in the order in which they came. Only those of keys of which a window
becomes full are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.count_windows import Filled, size_name
from penstock.operators.grouping import group_rows
from penstock.operators.pieces import Piece, PieceLimits, pieces_with_state
from penstock.operators.process.keyed import Context
from penstock.operators.row_order import Order
from penstock.operators.stored_rows import stored_rows
from penstock.operators.window_calls import WindowCode, WindowRows
from penstock.operators.window_kinds import CountWindows, Numbers
from penstock.operators.window_tables import KEYS_AT_ONCE, PLACE, PORTION_BYTES, one_batch, places
from penstock.state.backends.base import OpenState, StateLayout, TableLayout
from penstock.state.backends.lookup import no_columns
from penstock.state.keys import KeyBatch

LIMITS = PieceLimits(bytes=256 << 20)


@dataclass(frozen=True)
class CountRowsSpec:
    """What `window(count_window(...)).process(...)` was asked for."""

    key: pa.Schema
    windows: CountWindows
    columns: pa.Schema
    """Those of the stream."""
    code: WindowCode
    order_by: tuple[Order, ...] = ()

    @property
    def kept(self) -> pa.Schema:
        """The columns of a row beside its key."""
        return pa.schema([field for field in self.columns if field.name not in self.key.names])

    @property
    def table(self) -> TableLayout:
        """The rows of windows that are not full."""
        return TableLayout(f"rows of {self.windows}", pa.schema([*self.key, (PLACE, pa.int64())]), self.kept)

    def layout(self) -> StateLayout:
        """What is kept."""
        return StateLayout(self.key, pa.schema([(size_name(self.windows), pa.int64())]), (self.table,))


def run_count_rows(
    spec: CountRowsSpec, rows: pa.Table, state: OpenState, context: Context
) -> list[pa.RecordBatch]:
    """Take in the rows of a batch (those of the stream, and the sort key), and call the user's code for the windows that are full."""
    if not rows.num_rows:
        return []
    numbered = rows.append_column(PLACE, pa.array(places(state.generation, np.arange(rows.num_rows))))
    found = pieces_with_state(group_rows(numbered, spec.key.names), state, LIMITS)
    return [batch for piece in found for batch in _Fill(spec, piece, state).results(context)]


class _Fill:
    """The rows of some keys."""

    def __init__(self, spec: CountRowsSpec, piece: Piece, state: OpenState) -> None:
        self._spec, self._piece, self._state = spec, piece, state
        self._table = state.table(spec.table.name)
        before = piece.stored.column(size_name(spec.windows)).fill_null(0).to_numpy()
        counts = np.diff(piece.grouped.starts)
        self._filled = Filled(np.where(piece.found, before, 0), counts, spec.windows.n)

    def results(self, context: Context) -> Iterator[pa.RecordBatch]:
        """Call the user's code, then write what is left."""
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
