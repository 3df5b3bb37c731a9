"""Windows of every so many rows of a key: aggregates in columns, no Python per key. Executors.

Of a window that is not full the state has the partial aggregates of its rows, and how many they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.columns import AggregateColumn, output_schema, state_schema
from penstock.operators.aggregate.merge import finish, merged_groups
from penstock.operators.grouping import group_rows
from penstock.operators.pieces import Piece, PieceLimits, pieces_with_state
from penstock.operators.window_kinds import CountWindows, Numbers
from penstock.operators.window_tables import one_batch
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.sizes import in_batches

SIZE = "__penstock_rows_so_far"
LIMITS = PieceLimits(bytes=256 << 20)


@dataclass(frozen=True)
class CountSpec:
    """What `window(count_window(...)).aggregate(...)` was asked for."""

    key: pa.Schema
    windows: CountWindows
    specs: tuple[AggregateColumn, ...]

    @property
    def output(self) -> pa.Schema:
        """The columns of the results."""
        return pa.schema([*self.key, *output_schema(self.specs)])

    def layout(self) -> StateLayout:
        """What is kept of each key. How many rows make a window is in the name of a column, so that another number is refused by name."""
        return StateLayout(
            self.key, pa.schema([(size_name(self.windows), pa.int64()), *state_schema(self.specs)])
        )


def size_name(windows: CountWindows) -> str:
    """The column that says how many rows the open window of a key has."""
    return f"{SIZE}_of_{windows.n}"


@dataclass(frozen=True)
class Filled:
    """How rows of keys fill windows of `n` rows, of which the first may have rows already."""

    before: Numbers
    """For each key how many rows its open window had."""
    counts: Numbers
    """For each key how many rows came."""
    n: int

    @property
    def full(self) -> Numbers:
        """For each key how many windows are full now."""
        return (self.before + self.counts) // self.n

    @property
    def left(self) -> Numbers:
        """For each key how many rows its open window has now."""
        return (self.before + self.counts) % self.n

    def window_of(self) -> Numbers:
        """For each row that came, in the order of keys, the number of its window among those of its key."""
        first = np.cumsum(self.counts) - self.counts
        within = np.arange(int(self.counts.sum())) - np.repeat(first, self.counts)
        return (np.repeat(self.before, self.counts) + within) // self.n


def run_count_windows(spec: CountSpec, rows: pa.Table, state: OpenState) -> list[pa.RecordBatch]:
    """Take in the rows of a batch (sort key, key columns, the partial aggregates of each row alone); returns the windows that are full."""
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
    """The windows that are not full, in the order of keys; keys that have none any more are forgotten."""
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
