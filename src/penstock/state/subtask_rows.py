"""Rows of state that belong to a subtask and not to a key: lists of operators, and broadcast state. Executors.

In their tables the number of the subtask is the key. Subtask i uses key group i, which it owns at any parallelism. So a backend stores,
merges and checks these rows like any others. Only after a change of parallelism `take_over` distributes them again, because key groups
would give all of them to the former subtasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.state.backends.base import OnRescale, OpenState, OpenTable, StateLayout, TableLayout
from penstock.state.backends.sorted_file import scan_schema
from penstock.state.keys import GROUP_SHIFT, SORT_KEY, KeyBatch, order_numbers

SUBTASK = pa.field("__subtask", pa.int32())
"""The first column of such a table. The second column identifies a row within its subtask."""

RowsByTable = Mapping[str, pa.Table]
"""By name of table: the identity columns, then values."""


def subtask_sort_key(subtask: int) -> int:
    """The sort key of rows that belong to a subtask."""
    return subtask << GROUP_SHIFT


def subtask_key(subtask: int) -> KeyBatch:
    """A batch with the subtask's number as its only key."""
    column = pa.array([subtask], SUBTASK.type)
    return KeyBatch(
        np.array([subtask_sort_key(subtask)], dtype=np.int64),
        pa.RecordBatch.from_arrays([column], schema=pa.schema([SUBTASK])),
    )


def rows_of_subtask(state: OpenState, layout: StateLayout) -> RowsByTable:
    """The rows of a subtask in such tables, in order. The tables are small."""
    return {
        table.name: _scanned(state.table(table.name), table).drop_columns([SORT_KEY])
        for table in layout.of_subtasks
    }


def take_over(
    state: OpenState, layout: StateLayout, former: Sequence[RowsByTable], *, subtask: int, parallelism: int
) -> None:
    """Write the share of a subtask of the rows of all former subtasks, in the order of these; `state` has the other tables already."""
    for table in layout.of_subtasks:
        share = share_of(table, [rows[table.name] for rows in former], subtask, parallelism)
        opened = state.table(table.name)
        _write(opened, table, _outdated(opened, table, share, subtask), gone=True)
        _write(opened, table, share, gone=False)


def share_of(table: TableLayout, former: Sequence[pa.Table], subtask: int, parallelism: int) -> pa.Table:
    """The share of the new subtask of the rows of all former ones, with its own number."""
    if table.on_rescale is OnRescale.COPY:
        return _owned_by(subtask, former[subtask % len(former)])
    rows = pa.concat_tables(former)
    if table.on_rescale is OnRescale.SPLIT:
        first, after = (at * rows.num_rows // parallelism for at in (subtask, subtask + 1))
        rows = rows.slice(first, after - first)
    places = pa.array(np.arange(rows.num_rows), table.identity.field(1).type)
    return _owned_by(subtask, rows.set_column(1, table.identity.field(1), places))


def _owned_by(subtask: int, rows: pa.Table) -> pa.Table:
    return rows.set_column(0, SUBTASK, pa.array(np.full(rows.num_rows, subtask), SUBTASK.type))


def _outdated(opened: OpenTable, table: TableLayout, share: pa.Table, subtask: int) -> pa.Table:
    """Rows that came with the key groups and are not overwritten: those of other subtasks, and unused positions."""
    there = _scanned(opened, table)
    gone = there.column(SUBTASK.name).to_numpy() != subtask
    if table.on_rescale is not OnRescale.COPY:
        places = there.column(2).to_numpy()
        gone |= ~np.isin(places, share.column(1).to_numpy())
    return there.filter(pa.array(gone))


def _write(opened: OpenTable, table: TableLayout, rows: pa.Table, *, gone: bool) -> None:
    if not rows.num_rows:
        return
    identity, values = (_one_batch(rows, schema) for schema in (table.identity, table.value))
    sort_keys = identity.column(0).to_numpy().astype(np.int64) << GROUP_SHIFT
    deleted = np.ones(len(sort_keys), dtype=np.bool_) if gone else None
    opened.write(KeyBatch(sort_keys, identity, order_numbers(identity.column(1))), values, deleted)


def _one_batch(rows: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [rows.column(name).combine_chunks() for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _scanned(opened: OpenTable, table: TableLayout) -> pa.Table:
    return pa.Table.from_batches(opened.scan(), scan_schema(table))
