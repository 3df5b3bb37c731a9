"""Rows of state that belong to a subtask and not to a key: lists of operators, and broadcast state. Executors.

In their tables the number of the subtask is the key. Subtask i is put into key group i, which it owns whatever the parallelism is: so a
backend keeps, merges and checks these rows as any others. Only when there is another number of subtasks they are dealt out anew, by
`take_over`: key groups would give all of them to the subtasks that were there before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.state.backends.base import OnRescale, OpenState, OpenTable, StateLayout, TableLayout
from penstock.state.backends.sorted_file import scan_schema
from penstock.state.keys import GROUP_SHIFT, SORT_KEY, KeyBatch, order_numbers

SUBTASK = pa.field("__subtask", pa.int32())
"""The first column of such a table. The second tells its rows apart."""

RowsByTable = Mapping[str, pa.Table]
"""By the names of tables: the columns that tell rows apart, then values."""


def subtask_sort_key(subtask: int) -> int:
    """The sort key of what belongs to a subtask."""
    return subtask << GROUP_SHIFT


def subtask_key(subtask: int) -> KeyBatch:
    """A subtask as a key."""
    column = pa.array([subtask], SUBTASK.type)
    return KeyBatch(
        np.array([subtask_sort_key(subtask)], dtype=np.int64),
        pa.RecordBatch.from_arrays([column], schema=pa.schema([SUBTASK])),
    )


def rows_of_subtask(state: OpenState, layout: StateLayout) -> RowsByTable:
    """What a subtask has in such tables, in the order of rows. They are small."""
    return {
        table.name: _scanned(state.table(table.name), table).drop_columns([SORT_KEY])
        for table in layout.of_subtasks
    }


def take_over(
    state: OpenState, layout: StateLayout, former: Sequence[RowsByTable], *, subtask: int, parallelism: int
) -> None:
    """Write what a subtask gets of what all former subtasks had, the first of these first; `state` has the rest already."""
    for table in layout.of_subtasks:
        share = share_of(table, [rows[table.name] for rows in former], subtask, parallelism)
        opened = state.table(table.name)
        _write(opened, table, _outdated(opened, table, share, subtask), gone=True)
        _write(opened, table, share, gone=False)


def share_of(table: TableLayout, former: Sequence[pa.Table], subtask: int, parallelism: int) -> pa.Table:
    """The rows of the new subtask of what all former ones had, as its own."""
    if table.on_rescale is OnRescale.COPY:
        return _owned_by(subtask, former[subtask % len(former)])
    rows = pa.concat_tables(former)
    if table.on_rescale is OnRescale.SPLIT:
        first, behind = (at * rows.num_rows // parallelism for at in (subtask, subtask + 1))
        rows = rows.slice(first, behind - first)
    places = pa.array(np.arange(rows.num_rows), table.identity.field(1).type)
    return _owned_by(subtask, rows.set_column(1, table.identity.field(1), places))


def _owned_by(subtask: int, rows: pa.Table) -> pa.Table:
    return rows.set_column(0, SUBTASK, pa.array(np.full(rows.num_rows, subtask), SUBTASK.type))


def _outdated(opened: OpenTable, table: TableLayout, share: pa.Table, subtask: int) -> pa.Table:
    """The rows that came with the key groups and are not written over: those of other subtasks, and places that are not used now."""
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
