"""Merge the aggregates of a batch, one row a key, into the state: columns in, columns out. Executors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.operators.aggregates import AggregateSpec, finish, merge
from penstock.operators.distinct_values import (
    ValueLives,
    counting_distinct,
    life_fields,
    partials_with_counts,
)
from penstock.operators.everything import shown_key
from penstock.operators.grouping import group_rows, one_row_a_key
from penstock.operators.pieces import Piece, PieceLimits, pieces_with_state
from penstock.operators.stamps import not_earlier
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
    keys, distinct = piece.grouped.keys, counting_distinct(specs)
    touches, every = time.touches(piece.grouped, state.now_us), np.arange(len(keys))
    stamps = [
        not_earlier(touches.of(lifetime, every), piece.stored.column(lifetime.stamp))
        for lifetime in lifetimes
    ]
    lives: list[ValueLives] = []
    for lifetime, touched in zip(lifetimes, stamps, strict=True):
        lives += [ValueLives.of(spec, piece, touched, lifetime, state.generation) for spec in distinct]
    if distinct:
        partials = partials_with_counts(specs, piece.grouped, state, lifetimes, lives)
    else:
        (partials,) = piece.grouped.table.combine_chunks().to_batches()
    merged = merge(specs, piece.stored, piece.found, partials)
    of_lives = [column for life in lives for column in life.columns]
    schema = pa.schema([*merged.schema, *(life_fields(distinct) if lives else ())])
    values = [*merged.columns, *of_lives, *map(pa.array, stamps)]
    state.write(keys, pa.RecordBatch.from_arrays(values, schema=with_stamps(schema, lifetimes)))
    finished = finish(specs, merged)
    shown = keys.columns.select(shown_key(keys.columns.schema).names)
    names = [*shown.schema.names, *finished.schema.names]
    return pa.Table.from_arrays([*shown.columns, *finished.columns], names=names)
