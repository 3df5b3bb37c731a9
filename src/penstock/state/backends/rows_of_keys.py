"""All rows of some keys in a table of sorted files. Runs in tasks on executors.

The rows of a key lie side by side in every file, so that a key costs what it has, not what the table has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.state.backends.base import OneKey, RowsOfKeys, TableLayout
from penstock.state.backends.equality import Flags, rows_equal
from penstock.state.backends.merge import Ownership, merge_piece, merge_tables
from penstock.state.backends.sorted_rows import Positions, SortedBatch, SortedTable
from penstock.state.keys import KeyBatch, SortKeys
from penstock.state.lifetimes import Expiry

EVERYTHING = Ownership(0, 1)
"""A row of a key that is asked for belongs to who asks."""
_NO_KEY = -1


def rows_of_keys(
    tables: Sequence[SortedTable],
    layout: TableLayout,
    keys: KeyBatch,
    at_most: int,
    expiry: Expiry | None = None,
) -> RowsOfKeys:
    """The newest of every row of these keys; keys that have more rows in all files together are left out."""
    found = [_Stretches.of(batch, keys) for table in tables for batch in table]
    counts = np.zeros(len(keys), dtype=np.int64)
    for stretches in found:
        counts += stretches.lengths
    left_out: Flags = counts > at_most
    parts = [part for stretches in found if len(part := stretches.rows(~left_out))]
    if not parts:
        return RowsOfKeys(np.zeros(len(keys) + 1, dtype=np.int64), _columns(None, layout), left_out)
    rows = merge_piece(parts, EVERYTHING, keep_tombstones=False, expiry=expiry)
    key_of_row = _key_of_row(rows, keys)
    order = np.argsort(key_of_row, kind="stable")
    order = order[key_of_row[order] != _NO_KEY]
    starts = np.searchsorted(key_of_row[order], np.arange(len(keys) + 1)).astype(np.int64, copy=False)
    return RowsOfKeys(starts, _columns(rows.take(order), layout), left_out)


@dataclass(frozen=True)
class _Stretches:
    """Where the rows of some keys lie in a batch: those of key i from `first[i]`, `lengths[i]` of them. Keys of one sort key share them."""

    batch: SortedBatch
    sort_keys: SortKeys
    first: Positions
    lengths: Positions

    @classmethod
    def of(cls, batch: SortedBatch, keys: KeyBatch) -> _Stretches:
        first = np.searchsorted(batch.sort_keys, keys.sort_keys).astype(np.int64, copy=False)
        behind = np.searchsorted(batch.sort_keys, keys.sort_keys, side="right").astype(np.int64, copy=False)
        return cls(batch, keys.sort_keys, first, behind - first)

    def rows(self, wanted: Flags) -> SortedBatch:
        """The rows of the wanted keys, each once."""
        sort_keys, first, lengths = self.sort_keys[wanted], self.first[wanted], self.lengths[wanted]
        shared = np.zeros(len(first), dtype=np.bool_)
        shared[1:] = sort_keys[1:] == sort_keys[:-1]
        lengths = np.where(shared, 0, lengths)
        ends = np.cumsum(lengths)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        return self.batch.take(np.repeat(first, lengths) + within)


def _key_of_row(rows: SortedBatch, keys: KeyBatch) -> Positions:
    """For every row the position of its key; keys that share their sort key take a further round each."""
    width = keys.columns.num_columns
    found = np.full(len(rows), _NO_KEY, dtype=np.int64)
    waiting = np.arange(len(rows), dtype=np.int64)
    at = np.searchsorted(keys.sort_keys, rows.sort_keys).astype(np.int64, copy=False)
    while len(waiting):
        within = at < len(keys)
        waiting, at = waiting[within], at[within]
        same_number = keys.sort_keys[at] == rows.sort_keys[waiting]
        waiting, at = waiting[same_number], at[same_number]
        if not len(waiting):
            break
        mine, asked = pa.array(waiting), pa.array(at)
        same = rows_equal(
            [column.take(mine) for column in rows.keys[:width]],
            [column.take(asked) for column in keys.columns.columns],
        )
        found[waiting[same]] = at[same]
        waiting, at = waiting[~same], at[~same] + 1
    return found


class OneSortedKey(OneKey):
    """The stretches of one key in all files, the newest first."""

    def __init__(
        self,
        tables: Sequence[SortedTable],
        layout: TableLayout,
        key: KeyBatch,
        expiry: Expiry | None = None,
    ) -> None:
        self._layout = layout
        self._expiry = expiry
        self._key = key
        self._tables = [tuple(_stretch(batch, int(key.sort_keys[0])) for batch in table) for table in tables]
        self._searched = [
            (batch, batch.orders)
            for table in self._tables
            for batch in table
            if len(batch) and batch.orders is not None
        ]

    def get(self, sub: pa.Array, order: int) -> pa.RecordBatch | None:
        """See `OneKey.get`. What finds many rows at once takes too long for a single one."""
        wanted = [*self._key.columns.columns, sub]
        for batch, orders in self._searched:
            at = int(orders.searchsorted(order))
            while at < len(orders) and orders[at] == order:
                if rows_equal([column.slice(at, 1) for column in batch.keys], wanted)[0]:
                    return self._values(batch, at)
                at += 1
        return None

    def _values(self, batch: SortedBatch, at: int) -> pa.RecordBatch | None:
        if batch.deleted is not None and batch.deleted[at].as_py():
            return None
        columns: Sequence[pa.Array] = [column.slice(at, 1) for column in batch.values]
        if self._expiry is not None:
            columns, gone = self._expiry.applied(columns)
            if gone is not None:
                return None
        return pa.RecordBatch.from_arrays(list(columns), schema=self._layout.value)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """See `OneKey.scan`."""
        width = self._key.columns.num_columns
        merged = merge_tables(self._tables, ownership=EVERYTHING, keep_tombstones=False, expiry=self._expiry)
        for rows in merged:
            asked = [pa.repeat(column[0], len(rows)) for column in self._key.columns.columns]
            mine = rows_equal(rows.keys[:width], asked)
            yield _columns(rows if mine.all() else rows.take(np.flatnonzero(mine)), self._layout)


def _stretch(batch: SortedBatch, sort_key: int) -> SortedBatch:
    first = int(np.searchsorted(batch.sort_keys, sort_key))
    return batch.slice(first, int(np.searchsorted(batch.sort_keys, sort_key, side="right")))


def _columns(rows: SortedBatch | None, layout: TableLayout) -> pa.RecordBatch:
    schema = pa.schema([*layout.identity, *layout.value])
    columns = [pa.array([], field.type) for field in schema]
    if rows is not None:
        columns = [*rows.keys, *rows.values]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
