"""Run `top` over the rows of a task: columns in, columns out. Executors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.operators.grouping import Grouped, group_rows
from penstock.operators.pieces import PieceLimits, pieces
from penstock.operators.table_rows import PieceRows
from penstock.operators.top_rows import RANK, NewRows, Ranked, TopSpec, update_top
from penstock.operators.top_values import update_top_of_values
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

LIMITS = PieceLimits(bytes=256 << 20)


def run_top(spec: TopSpec, table: pa.Table, state: OpenState) -> list[pa.RecordBatch]:
    """Take the rows in; returns the first rows of every key for which they have changed."""
    results: list[pa.RecordBatch] = []
    for piece in pieces(group_rows(table, list(spec.keys)), LIMITS):
        for top in _update(spec, piece, state):
            results.extend(in_batches(_output(spec, top, piece)))
    return results


def _update(spec: TopSpec, piece: Grouped, state: OpenState) -> Iterator[Ranked]:
    new = NewRows(spec, piece)
    tables = [PieceRows(state.table(one.name), one, piece.keys) for one in spec.layout().tables]
    if spec.of:
        every, first = tables
        return update_top_of_values(spec, every, first, new)
    (rows,) = tables
    return update_top(spec, rows, new, state.generation)


def _output(spec: TopSpec, top: Ranked, piece: Grouped) -> pa.Table:
    keys = piece.keys.columns.take(pa.array(top.rows.key_index))
    columns = {
        **dict(zip(keys.schema.names, keys.columns, strict=True)),
        **dict(zip(top.rows.table.column_names, top.rows.table.columns, strict=True)),
        RANK.name: pa.array((top.rank + 1).astype(np.int32)),
    }
    return pa.table([columns[name] for name in spec.output.names], schema=spec.output)
