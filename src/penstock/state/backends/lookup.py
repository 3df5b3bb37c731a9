"""Look rows up in a table of sorted files, newest first. Runs in tasks on executors.

Everything is vectorised: a binary search of all addresses at once, then one comparison of all keys. Only rows
that share their address with another one take a further round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.equality import Flags, rows_equal
from penstock.state.backends.sorted_rows import Positions, SortedBatch, SortedTable, first_at_or_behind
from penstock.state.keys import KeyBatch
from penstock.state.sizes import cut, row_bytes

_NOWHERE = -1


def lookup(
    tables: Sequence[SortedTable], keys: KeyBatch, value_schema: pa.Schema
) -> tuple[pa.RecordBatch, Flags]:
    """The newest values of the keys (nulls where there is none), and which of them were found."""
    (found,) = lookup_parts(tables, keys, value_schema, sys.maxsize)
    return found


def lookup_parts(
    tables: Sequence[SortedTable], keys: KeyBatch, value_schema: pa.Schema, max_bytes: int
) -> Iterator[tuple[pa.RecordBatch, Flags]]:
    """`lookup` in parts of at most so many bytes of values; at least one part."""
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
        """Resolve what this file knows: a value is found, a tombstone says that there is none."""
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
        """What the values take at most: less than all rows that lie beside them."""
        return sum(column.nbytes for batch in self.sources for column in batch.values)

    def sizes(self) -> Positions:
        """The bytes of each key's values."""
        sizes = np.zeros(len(self.row), dtype=np.int64)
        for number, batch in enumerate(self.sources):
            at = np.flatnonzero(self.source == number)
            sizes[at] = row_bytes(batch.values, self.row[at])
        return sizes

    def values(self, start: int, stop: int, schema: pa.Schema) -> tuple[pa.RecordBatch, Flags]:
        """The values of the keys from `start` up to `stop`, and which of them were found."""
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
