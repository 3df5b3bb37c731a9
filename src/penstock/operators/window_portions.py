"""Rows of windows that are over, stored ones and new ones, in portions of whole windows that fit into memory. Executors.

Both are in the order of a table by time: by the last moment of their window, then by sort key. So of all windows before the last row that
was read, all rows are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.wide_columns import rows_at
from penstock.operators.window_kinds import Numbers
from penstock.operators.window_tables import LAST, PLACE
from penstock.state.backends.sorted_rows import SortedBatch
from penstock.state.keys import SORT_KEY
from penstock.state.sizes import Bytes, cut, in_batches


@dataclass(frozen=True)
class NewRows:
    """The rows of a batch, once for each of their windows, in the order of the table. Only their positions: columns are taken last."""

    rows: pa.Table
    at: Numbers
    """Where in `rows` each is."""
    lasts: Numbers
    sort_keys: Numbers
    places: Numbers
    sizes: Bytes

    @classmethod
    def in_order(
        cls, rows: pa.Table, at: Numbers, lasts: Numbers, places: Numbers, sizes_of_rows: Bytes
    ) -> NewRows:
        """Bring them into the order of the table."""
        sort_keys = rows.column(SORT_KEY).to_numpy()[at]
        order = np.lexsort((sort_keys, lasts))
        return cls(rows, at[order], lasts[order], sort_keys[order], places[order], sizes_of_rows[at[order]])

    def __len__(self) -> int:
        return len(self.at)

    @property
    def addresses(self) -> SortedBatch:
        """Where they stand in the table."""
        return SortedBatch(self.sort_keys, None, (), (), self.lasts, by_time=True)

    def slice(self, start: int, stop: int) -> NewRows:
        """Those from `start` up to `stop`."""
        return NewRows(
            self.rows,
            self.at[start:stop],
            self.lasts[start:stop],
            self.sort_keys[start:stop],
            self.places[start:stop],
            self.sizes[start:stop],
        )

    def until(self, last: int) -> NewRows:
        """Those of windows with a last moment up to and with this one."""
        return self.slice(0, int(np.searchsorted(self.lasts, last, side="right")))

    def after(self, last: int) -> NewRows:
        """Those of windows with a last moment behind this one."""
        return self.slice(int(np.searchsorted(self.lasts, last, side="right")), len(self))

    def batches(self, schema: pa.Schema, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """The columns, in parts of at most so many bytes."""
        taken = pa.schema([field for field in schema if field.name not in (LAST, PLACE)])
        for start, stop in cut(self.sizes, max_bytes):
            found = rows_at(self.rows, self.at[start:stop], taken)
            columns = dict(zip(taken.names, found.columns, strict=True))
            columns |= {LAST: pa.array(self.lasts[start:stop]), PLACE: pa.array(self.places[start:stop])}
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def portions(
    stored: Iterable[pa.Table], new: NewRows, schema: pa.Schema, max_bytes: int
) -> Iterator[pa.Table]:
    """All rows, each portion with all of its windows: about `max_bytes` of stored ones and of new ones, unless a window has more."""
    waiting = [schema.empty_table()]
    size = done = 0
    for batch in (batch for table in stored for batch in in_batches(table, max_bytes)):
        if not batch.num_rows:
            continue
        part = pa.Table.from_batches([batch])
        waiting.append(part)
        size += part.nbytes
        end = _addresses(part).address(part.num_rows - 1)
        if size <= max_bytes or _addresses(waiting[1]).address(0) == end:
            continue
        whole = pa.concat_tables(waiting)
        behind, stop = _addresses(whole).first_at(end), new.addresses.first_at(end)
        yield from _cut(whole.slice(0, behind), new.slice(done, stop), schema, max_bytes)
        rest, done = whole.slice(behind), stop
        waiting, size = [waiting[0], rest], rest.nbytes
    yield from _cut(pa.concat_tables(waiting), new.slice(done, len(new)), schema, max_bytes)


def _cut(stored: pa.Table, new: NewRows, schema: pa.Schema, max_bytes: int) -> Iterator[pa.Table]:
    """Stored rows that fit, and any number of new ones."""
    start = begin = 0
    places, of_stored = new.addresses, _addresses(stored)
    for _, enough in cut(new.sizes, max_bytes):
        if enough <= start:  # of a window that was larger
            continue
        address = places.address(enough - 1)
        stop = places.first_behind(address)
        end = stored.num_rows if stop == len(new) else of_stored.first_behind(address)
        taken = pa.Table.from_batches(new.slice(start, stop).batches(schema, max_bytes), schema)
        yield pa.concat_tables([stored.slice(begin, end - begin), taken])
        start, begin = stop, end
    if begin < stored.num_rows:
        yield stored.slice(begin)


def _addresses(rows: pa.Table) -> SortedBatch:
    sort_keys, lasts = (rows.column(name).to_numpy() for name in (SORT_KEY, LAST))
    return SortedBatch(sort_keys, None, (), (), lasts, by_time=True)
