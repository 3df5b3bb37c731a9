"""Look up rows in a table of sorted files, newest file first. Runs in tasks on executors.

Everything is vectorised: one binary search for all addresses, then one comparison of all keys. Only rows that share their address with
another row need a further round. All rows of one key are adjacent in every file, so reading a key costs as much as its own rows, whatever
the size of the table.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.state.backends.base import OneKey, RowsOfKeys, TableLayout
from penstock.state.backends.sorted_rows import (
    Ownership,
    Positions,
    SortedBatch,
    SortedTable,
    first_at_or_behind,
    merge_piece,
    merge_tables,
)
from penstock.state.keys import Flags, KeyBatch, SortKeys, rows_equal
from penstock.state.lifetimes import Expiry
from penstock.state.sizes import bytes_before, cut, row_bytes

_NOWHERE = -1


def lookup(
    tables: Sequence[SortedTable], keys: KeyBatch, value_schema: pa.Schema
) -> tuple[pa.RecordBatch, Flags]:
    """The newest values of the keys (null if missing), and flags of the keys that were found."""
    (found,) = lookup_parts(tables, keys, value_schema, sys.maxsize)
    return found


def lookup_parts(
    tables: Sequence[SortedTable], keys: KeyBatch, value_schema: pa.Schema, max_bytes: int
) -> Iterator[tuple[pa.RecordBatch, Flags]]:
    """`lookup` in parts, each with at most this number of bytes of values; at least one part."""
    search = _Search(keys)
    for table in tables:
        if not len(search.open):
            break
        search.look_into(table)
    if search.most_bytes() <= max_bytes or not len(keys):
        yield search.values(0, len(keys), value_schema)
        return
    for start, stop in cut(search.sizes(), max_bytes):
        yield search.values(start, stop, value_schema)


class _Search:
    """Where each key was found: `row` of `sources[source]`; `open` lists the unresolved, ascending."""

    def __init__(self, keys: KeyBatch) -> None:
        self._keys = keys
        self.open: Positions = np.arange(len(keys), dtype=np.int64)
        self.sources: list[SortedBatch] = []
        self.source = np.full(len(keys), _NOWHERE, dtype=np.int32)
        self.row = np.zeros(len(keys), dtype=np.int64)

    def look_into(self, table: SortedTable) -> None:
        """Resolve the keys that this file has: a value is found, a tombstone means that there is none."""
        resolved = np.zeros(len(self.open), dtype=np.bool_)
        for batch in table:
            asked = _numbers(self._keys, batch)[0][self.open]
            first = int(np.searchsorted(asked, batch.major[0], side="left"))
            last = int(np.searchsorted(asked, batch.major[-1], side="right"))
            for hits, rows in _matches(batch, self._keys, self.open[first:last]):
                resolved[first + hits] = True
                self._keep_live(batch, self.open[first + hits], rows)
        self.open = self.open[~resolved]

    def _keep_live(self, batch: SortedBatch, positions: Positions, rows: Positions) -> None:
        if batch.deleted is not None:
            live = ~batch.deleted.take(pa.array(rows)).to_numpy(zero_copy_only=False)
            positions, rows = positions[live], rows[live]
        if not len(positions):
            return
        if not self.sources or self.sources[-1] is not batch:
            self.sources.append(batch)
        self.source[positions] = len(self.sources) - 1
        self.row[positions] = rows

    def most_bytes(self) -> int:
        """An upper bound of the size of the values: that of all rows around them."""
        return sum(column.nbytes for batch in self.sources for column in batch.values)

    def sizes(self) -> Positions:
        """The bytes of each key's values."""
        sizes = np.zeros(len(self.row), dtype=np.int64)
        for number, batch in enumerate(self.sources):
            at = np.flatnonzero(self.source == number)
            sizes[at] = row_bytes(batch.values, self.row[at])
        return sizes

    def values(self, start: int, stop: int, schema: pa.Schema) -> tuple[pa.RecordBatch, Flags]:
        """The values of the keys from `start` up to `stop`, and flags of the keys that were found."""
        source, rows = self.source[start:stop], self.row[start:stop]
        found = source != _NOWHERE
        if not len(schema):
            return no_columns(stop - start), found
        columns = [
            _gather([batch.values[i] for batch in self.sources], source, rows, field.type)
            for i, field in enumerate(schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema), found


def _matches(batch: SortedBatch, keys: KeyBatch, asked: Positions) -> Iterator[tuple[Positions, Positions]]:
    """Positions in `asked` and the rows that hold those keys; a further pair for each round of collisions."""
    if not len(asked):
        return
    majors, minors = _numbers(keys, batch)
    major, minor = majors[asked], None if minors is None else minors[asked]
    rows = first_at_or_behind(batch, major, minor)
    pending: Positions = np.arange(len(asked), dtype=np.int64)
    while True:
        hit = _same(batch.major, rows, major[pending])
        if minor is not None and batch.minor is not None:
            hit &= _same(batch.minor, rows, minor[pending])
        pending, rows = pending[hit], rows[hit]
        if not len(pending):
            return
        same = rows_equal(_taken(batch.keys, rows), _asked(keys, asked[pending]))
        if same.any():
            yield pending[same], rows[same]
        pending, rows = pending[~same], rows[~same] + 1


def _numbers(keys: KeyBatch, batch: SortedBatch) -> tuple[Positions, Positions | None]:
    """The numbers of the rows that are asked for, that first by which the table is ordered first."""
    if batch.by_time and keys.orders is not None:
        return keys.orders, keys.sort_keys
    return keys.sort_keys, keys.orders


def _same(numbers: Positions, rows: Positions, wanted: Positions) -> Flags:
    last = len(numbers) - 1
    hit: Flags = numbers[np.minimum(rows, last)] == wanted
    return hit & (rows <= last)


def _asked(keys: KeyBatch, positions: Positions) -> Sequence[pa.Array]:
    if len(positions) == len(keys):
        columns: Sequence[pa.Array] = keys.columns.columns
        return columns
    return _taken(keys.columns.columns, positions)


def _taken(columns: Sequence[pa.Array], rows: Positions) -> list[pa.Array]:
    indices = pa.array(rows)
    return [column.take(indices) for column in columns]


def _gather(
    sources: Sequence[pa.Array], source: npt.NDArray[np.int32], rows: Positions, kind: pa.DataType
) -> pa.Array:
    """One value column: of each key the row of its source, null where it has none."""
    if not sources:
        return pa.nulls(len(rows), kind)
    found = source != _NOWHERE
    if len(sources) > 1:
        # Take from each source what it has, then bring the parts into the order of the keys.
        picks = [np.flatnonzero(source == i) for i in range(len(sources))]
        parts = [one.take(pa.array(rows[pick])) for one, pick in zip(sources, picks, strict=True)]
        joined = pa.concat_arrays(parts)
        rows = np.zeros(len(found), dtype=np.int64)
        rows[np.concatenate(picks)] = np.arange(len(joined), dtype=np.int64)
    else:
        joined = sources[0]
    indices = pa.array(rows) if found.all() else pa.array(rows, mask=~found)
    return joined.take(indices)


def no_columns(rows: int) -> pa.RecordBatch:
    """A batch without columns that still knows its length."""
    return pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))


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
    """The ranges of rows of some keys in a batch: key i has `lengths[i]` rows from `first[i]`. Keys with one sort key share a range."""

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
        """The stretches of the first `keys` keys."""
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
        """Find a single row: the vectorised search is too slow for one."""
        wanted = [*self._key, sub]
        for batch, first, orders in self._stretches:
            at = int(orders.searchsorted(order))
            while at < len(orders) and orders[at] == order:
                if all(map(_has_value, batch.keys, repeat(first + at), wanted)):
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


def _has_value(column: pa.Array, at: int, wanted: pa.Array) -> bool:
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
