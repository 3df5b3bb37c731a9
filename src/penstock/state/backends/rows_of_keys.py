"""All rows of some keys in a table of sorted files. Runs in tasks on executors.

The rows of a key lie side by side in every file, so that a key costs what it has, not what the table has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.state.backends.base import OneKey, RowsOfKeys, TableLayout
from penstock.state.backends.equality import Flags, rows_equal
from penstock.state.backends.merge import Ownership, merge_piece, merge_tables
from penstock.state.backends.sorted_rows import Positions, SortedBatch, SortedTable
from penstock.state.keys import KeyBatch, SortKeys
from penstock.state.lifetimes import Expiry
from penstock.state.sizes import bytes_before

EVERYTHING = Ownership(0, 1)
"""A row of a key that is asked for belongs to who asks."""
_NO_KEY = -1


def rows_of_keys(
    tables: Sequence[SortedTable],
    layout: TableLayout,
    keys: KeyBatch,
    *,
    at_most: int,
    max_bytes: int,
    expiry: Expiry | None = None,
) -> RowsOfKeys:
    """The newest of every row of the first of these keys; those that have more rows, or bytes, in all files together are left out."""
    found = [_Stretches.of(batch, keys) for table in tables for batch in table]
    counts, sizes = (np.zeros(len(keys), dtype=np.int64) for _ in range(2))
    for stretches in found:
        counts += stretches.lengths
        sizes += stretches.sizes()
    left_out: Flags = (counts > at_most) | (sizes > max_bytes)
    together = np.cumsum(np.where(left_out, 0, sizes))
    fit = max(int(together.searchsorted(max_bytes, side="right")), min(1, len(keys)))
    if fit < len(keys):
        keys, left_out = keys.slice(0, fit), left_out[:fit]
        found = [stretches.first_ones(fit) for stretches in found]
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
        first, lengths = (np.zeros(len(keys), dtype=np.int64) for _ in range(2))
        start = int(keys.sort_keys.searchsorted(batch.sort_keys[0]))
        stop = int(keys.sort_keys.searchsorted(batch.sort_keys[-1], side="right"))
        asked = keys.sort_keys[start:stop]
        begins = batch.sort_keys.searchsorted(asked)
        # most keys are in few of the files: only those that are there are looked for a second time
        there = np.flatnonzero(batch.sort_keys[begins] == asked)
        first[start:stop] = begins
        ends = batch.sort_keys.searchsorted(asked[there], side="right")
        lengths[start + there] = ends - begins[there]
        return cls(batch, keys.sort_keys, first, lengths)

    def sizes(self) -> Positions:
        """About how many bytes the rows of each key take here."""
        sizes = np.zeros(len(self.first), dtype=np.int64)
        there = np.flatnonzero(self.lengths)
        if len(there):
            first = self.first[there]
            behind = first + self.lengths[there]
            for column in (*self.batch.keys, *self.batch.values):
                sizes[there] += bytes_before(column, behind) - bytes_before(column, first)
        return sizes

    def first_ones(self, keys: int) -> _Stretches:
        """Those of so many keys."""
        return replace(
            self, sort_keys=self.sort_keys[:keys], first=self.first[:keys], lengths=self.lengths[:keys]
        )

    def rows(self, wanted: Flags) -> SortedBatch:
        """The rows of the wanted keys, each once."""
        there = np.flatnonzero(wanted & (self.lengths > 0))
        sort_keys, first, lengths = self.sort_keys[there], self.first[there], self.lengths[there]
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


class _Stretch(NamedTuple):
    """The rows of one key in a batch: they begin at `first`, and have these second numbers."""

    batch: SortedBatch
    first: int
    orders: SortKeys


class KeyRanges:
    """Which sort keys lie in which record batch of a file, so that a key is looked for only where it may be."""

    def __init__(self, tables: Sequence[SortedTable]) -> None:
        self._tables = [
            (
                table,
                [int(batch.sort_keys[0]) for batch in table],
                [int(batch.sort_keys[-1]) for batch in table],
            )
            for table in tables
        ]

    def stretches(self, sort_key: int) -> Iterator[_Stretch]:
        """Where the rows of a key lie, the newest file first."""
        for table, firsts, lasts in self._tables:
            for batch in table[bisect_left(lasts, sort_key) : bisect_right(firsts, sort_key)]:
                first = int(batch.sort_keys.searchsorted(sort_key))
                stop = int(batch.sort_keys.searchsorted(sort_key, side="right"))
                if first < stop and batch.orders is not None:
                    yield _Stretch(batch, first, batch.orders[first:stop])


class OneSortedKey(OneKey):
    """The stretches of one key in all files, the newest first."""

    def __init__(
        self, ranges: KeyRanges, layout: TableLayout, key: KeyBatch, expiry: Expiry | None = None
    ) -> None:
        self._layout = layout
        self._expiry = expiry
        self._key: list[pa.Array] = key.columns.columns
        self._stretches = list(ranges.stretches(int(key.sort_keys[0])))

    @override
    def get(self, sub: pa.Array, order: int) -> pa.RecordBatch | None:
        """What finds many rows at once takes too long for a single one."""
        wanted = [*self._key, sub]
        for batch, first, orders in self._stretches:
            at = int(orders.searchsorted(order))
            while at < len(orders) and orders[at] == order:
                if all(map(_same, batch.keys, repeat(first + at), wanted)):
                    return self._values(batch, first + at)
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

    @override
    def scan(self) -> Iterator[pa.RecordBatch]:
        tables = [(batch.slice(first, first + len(orders)),) for batch, first, orders in self._stretches]
        merged = merge_tables(tables, ownership=EVERYTHING, keep_tombstones=False, expiry=self._expiry)
        for rows in merged:
            asked = [pa.repeat(column[0], len(rows)) for column in self._key]
            mine = rows_equal(rows.keys[: len(asked)], asked)
            yield _columns(rows if mine.all() else rows.take(np.flatnonzero(mine)), self._layout)


def _same(column: pa.Array, at: int, wanted: pa.Array) -> bool:
    """Whether a column has the only value of another at this place."""
    if column[at].equals(wanted[0]):
        return True
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_nested(kind)):
        return False
    return bool(rows_equal([column.slice(at, 1)], [wanted])[0])  # to Arrow NaN equals nothing


def _columns(rows: SortedBatch | None, layout: TableLayout) -> pa.RecordBatch:
    schema = pa.schema([*layout.identity, *layout.value])
    columns = [pa.array([], field.type) for field in schema]
    if rows is not None:
        columns = [*rows.keys, *rows.values]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
