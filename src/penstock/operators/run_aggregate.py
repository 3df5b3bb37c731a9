"""Merge the aggregates of a batch, one row a key, into the state: columns in, columns out. Executors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.aggregates import AggregateSpec, finish, merge
from penstock.operators.distinct_values import counting_distinct, partials_with_counts
from penstock.operators.grouping import group_rows, one_row_a_key
from penstock.operators.pieces import Piece, PieceLimits, pieces_with_state
from penstock.operators.task_time import NO_TIME, TaskTime
from penstock.state.backends.base import OpenState, with_stamps
from penstock.state.lifetimes import Lifetime
from penstock.state.sizes import in_batches

LIMITS = PieceLimits(bytes=256 << 20)


def run_aggregate(
    specs: Sequence[AggregateSpec],
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    lifetimes: tuple[Lifetime, ...] = (),
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Update the keys of the batch; returns their new values. With counts of distinct values these are rows of their key, too."""
    results: list[pa.RecordBatch] = []
    rows = group_rows(table, key_names) if counting_distinct(specs) else one_row_a_key(table, key_names)
    for piece in pieces_with_state(rows, state, LIMITS):
        results.extend(in_batches(_update(specs, piece, state, lifetimes, time)))
    return results


def _update(
    specs: Sequence[AggregateSpec],
    piece: Piece,
    state: OpenState,
    lifetimes: tuple[Lifetime, ...],
    time: TaskTime,
) -> pa.Table:
    keys = piece.grouped.keys
    if counting_distinct(specs):
        partials = partials_with_counts(specs, piece.grouped, state)
    else:
        (partials,) = piece.grouped.table.combine_chunks().to_batches()
    merged = merge(specs, piece.stored, piece.found, partials)
    touches, every = time.touches(piece.grouped, state.now_us), np.arange(len(keys))
    stamps = [touches.column(lifetime, every) for lifetime in lifetimes]
    stored = with_stamps(merged.schema, lifetimes)
    state.write(keys, pa.RecordBatch.from_arrays([*merged.columns, *stamps], schema=stored))
    finished = finish(specs, merged)
    names = [*keys.columns.schema.names, *finished.schema.names]
    return pa.Table.from_arrays([*keys.columns.columns, *finished.columns], names=names)
