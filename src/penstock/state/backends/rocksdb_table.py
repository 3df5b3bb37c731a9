"""One table of a subtask's state, as a range of keys in RocksDB. Runs in tasks on executors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.state.backends.base import (
    KeyBatch,
    OneKey,
    OpenTable,
    Part,
    RowsOfKeys,
    StateLayout,
    TableLayout,
    Workplace,
)
from penstock.state.backends.rocksdb_rows import RowCodec
from penstock.state.backends.rocksdb_version import WorkingVersion
from penstock.state.backends.sorted_file import numbered_schema, scan_schema
from penstock.state.backends.sorted_rows import WriteCheck
from penstock.state.keys import rows_equal
from penstock.state.lifetimes import Measure
from penstock.state.sizes import PART_BYTES, one_batch

ROWS_AT_ONCE = 8192
"""How many rows are Python objects at a time; it bounds memory, not what a batch may hold."""

Row = tuple[bytes, bytes]


class Walked(NamedTuple):
    """Where to go on, None when that was the end of the table; how many rows were seen; when the first expires, by each clock."""

    behind: bytes | None
    rows: int
    first_us: dict[str, int]


class RocksdbTable(OpenTable):
    """Rows as bytes. Writes go to the database at once, so a row must be read before it is written."""

    def __init__(
        self, workplace: Workplace, layout: TableLayout, codec: RowCodec, version: WorkingVersion
    ) -> None:
        self._layout = layout
        self._expiry = layout.expiry(workplace.time)
        self._codec = codec
        self._version = version
        self._check = WriteCheck(workplace, layout)

    @override
    def read(self, rows: KeyBatch) -> Part:
        values = [
            value for _, part in _parts(rows) for value in self._version.get(self._codec.encode_keys(part))
        ]
        return self._decoded(values)

    @override
    def read_parts(self, rows: KeyBatch, max_bytes: int) -> Iterator[Part]:
        waiting: list[bytes | None] = []
        size = 0
        for _, part in _parts(rows):
            for value in self._version.get(self._codec.encode_keys(part)):
                size += len(value or b"")
                if waiting and size > max_bytes:
                    yield self._decoded(waiting)
                    waiting, size = [], len(value or b"")
                waiting.append(value)
        yield self._decoded(waiting)

    def _decoded(self, values: list[bytes | None]) -> Part:
        found = np.fromiter((value is not None for value in values), dtype=np.bool_, count=len(values))
        parts = [
            self._codec.decode_values(values[start : start + ROWS_AT_ONCE], self._version.label)
            for start in range(0, max(1, len(values)), ROWS_AT_ONCE)
        ]
        decoded = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return (decoded, found) if self._expiry is None else self._expiry.read(decoded, found)

    @override
    def rows_of(self, keys: KeyBatch, at_most: int, max_bytes: int = PART_BYTES) -> RowsOfKeys:
        starts: list[int] = [0]
        left_out: list[bool] = []
        parts: list[pa.RecordBatch] = []
        size = 0
        for at in range(len(keys)):
            few = self._few_rows(keys, at, at_most, max_bytes)
            rows, own_size = ([], 0) if few is None else few
            size += own_size
            if left_out and size > max_bytes:
                break
            part = self._own(rows, keys.slice(at, at + 1)) if rows else None
            if part is not None:
                parts.append(part)
            left_out.append(few is None)
            starts.append(starts[-1] + (0 if part is None else part.num_rows))
        empty = pa.schema([*self._layout.identity, *self._layout.value]).empty_table()
        together = pa.Table.from_batches(parts) if parts else empty
        return RowsOfKeys(
            np.array(starts, dtype=np.int64), one_batch(together), np.array(left_out, dtype=np.bool_)
        )

    def _few_rows(
        self, keys: KeyBatch, at: int, at_most: int, max_bytes: int
    ) -> tuple[list[Row], int] | None:
        """The rows of a key, and their bytes; None where one of these is too many."""
        rows: list[Row] = []
        size = 0
        for row in self._rows_at(keys, at):
            rows.append(row)
            size += len(row[0]) + len(row[1])
            if len(rows) > at_most or size > max_bytes:
                return None
        return rows, size

    @override
    def one_key(self, key: KeyBatch) -> OneKey:
        return _OneKey(self, key)

    def row_of(self, key: KeyBatch, sub: pa.Array, order: int) -> KeyBatch:
        """One row of a key."""
        columns = pa.RecordBatch.from_arrays([*key.columns.columns, sub], schema=self._layout.identity)
        return KeyBatch(key.sort_keys, columns, np.array([order], dtype=np.int64))

    def rows_of_one(self, key: KeyBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a key in their order, in parts."""
        for rows in _groups(self._rows_at(key, 0)):
            yield self._own(rows, key)

    def _rows_at(self, keys: KeyBatch, at: int) -> Iterator[Row]:
        """All rows with the sort key of this key, including those of other keys that share it."""
        sort_key = int(keys.sort_keys[at])
        return self._version.rows(self._codec.start_of(sort_key), self._codec.start_of(sort_key + 1))

    def _own(self, rows: list[Row], key: KeyBatch) -> pa.RecordBatch:
        _, decoded = self._columns(rows)
        width = key.columns.num_columns
        asked = [pa.repeat(column[0], decoded.num_rows) for column in key.columns.columns]
        own = rows_equal(decoded.columns[:width], asked)
        return decoded if own.all() else decoded.filter(pa.array(own))

    def _columns(self, rows: list[Row]) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        sort_keys, live, _ = self._columns_and_kept(rows)
        return sort_keys, live

    def _columns_and_kept(
        self, rows: list[Row]
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.bool_]]:
        """The rows that have not expired, and their positions."""
        label = self._version.label
        sort_keys, identity = self._codec.decode_keys([key for key, _ in rows], label)
        values = self._codec.decode_values([value for _, value in rows], label)
        schema = pa.schema([*self._layout.identity, *self._layout.value])
        if self._expiry is None:
            all_rows = pa.RecordBatch.from_arrays([*identity.columns, *values.columns], schema=schema)
            return sort_keys, all_rows, np.ones(len(rows), dtype=np.bool_)
        columns, gone = self._expiry.applied(values.columns)
        live = pa.RecordBatch.from_arrays([*identity.columns, *columns], schema=schema)
        if gone is None:
            return sort_keys, live, np.ones(len(rows), dtype=np.bool_)
        return sort_keys[~gone], live.filter(pa.array(~gone)), ~gone

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """The range of bytes that holds the rows of this key."""
        return self._codec.bounds

    @property
    def shortest_ttls_us(self) -> dict[str, int]:
        """How long what expires first lives, by the clock by which it does."""
        shortest: dict[str, int] = {}
        for lifetime in self._layout.lifetimes:
            clock = lifetime.measure.value
            shortest[clock] = min(shortest.get(clock, lifetime.ttl_us), lifetime.ttl_us)
        return shortest

    @property
    def expires_from_the_front(self) -> bool:
        """Whether what has expired are its first rows: of a table by time, whose stamps are its order."""
        return self._layout.by_time and bool(self._layout.lifetimes)

    def expire_front(self) -> None:
        """Remove the rows before the first that has not expired."""
        for rows in _groups(self._version.rows(*self._codec.bounds)):
            keys, stored = [key for key, _ in rows], [value for _, value in rows]
            values = self._codec.decode_values(stored, self._version.label)
            flags = self._expiry.has_expired(values.columns) if self._expiry else np.zeros(len(rows), bool)
            over = len(flags) if flags.all() else int(np.argmin(flags))
            self._version.put(keys[:over], [None] * over)
            if over < len(flags):
                return

    def expire(self, start: bytes, at_most: int) -> Walked:
        """Remove what has expired among this number of rows from `start` on."""
        last, seen = start, 0
        first_us: dict[str, int] = {}
        for rows in _groups(islice(self._version.rows(start, self._codec.bounds[1]), at_most)):
            for measure, moment_us in self._expire(rows).items():
                first_us[measure.value] = min(first_us.get(measure.value, moment_us), moment_us)
            last, seen = rows[-1][0], seen + len(rows)
        return Walked(None if seen < at_most else last + b"\0", seen, first_us)

    def _expire(self, rows: list[Row]) -> dict[Measure, int]:
        """Returns when the first that is left will expire, or has, by each clock."""
        keys, stored = [key for key, _ in rows], [value for _, value in rows]
        label, expiry = self._version.label, self._expiry
        if expiry is None:
            return {}
        first_us = expiry.first(self._codec.decode_stamps(stored, label))
        if not expiry.is_over(first_us):
            return first_us
        values = self._codec.decode_values(stored, label)
        found = np.flatnonzero(expiry.has_expired(values.columns))
        if len(found):
            columns, gone = expiry.applied(values.take(pa.array(found)).columns)
            left: list[bytes | None] = list(
                self._codec.encode_values(
                    pa.RecordBatch.from_arrays(list(columns), schema=self._layout.value)
                )
            )
            for at in () if gone is None else np.flatnonzero(gone).tolist():
                left[at] = None
            self._version.put([keys[at] for at in found.tolist()], left)
        return first_us

    @override
    def until(self, time: int, after: int | None = None) -> Iterator[pa.RecordBatch]:
        start = self._codec.bounds[0] if after is None else self._codec.start_of(after + 1)
        return self._scanned(self._version.rows(start, self._codec.start_of(time + 1)))

    @override
    def at(self, time: int, sort_key: int) -> Iterator[pa.RecordBatch]:
        return self._scanned(self._version.rows(*self._codec.range_of(time, sort_key)))

    @override
    def write(
        self, rows: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        if not len(rows):
            return
        self._check.check(rows, values)
        for start, part in _parts(rows):
            encoded: list[bytes | None] = list(self._codec.encode_values(values.slice(start, len(part))))
            if deleted is not None:
                for gone in np.flatnonzero(deleted[start : start + len(part)]).tolist():
                    encoded[gone] = None
            self._version.put(self._codec.encode_keys(part), encoded)

    def check_written(self) -> None:
        """Before the batch ends: what was written must have come in order, where that is asked."""
        if not self._layout.ordered:
            self._check.check_order()

    @override
    def scan(self) -> Iterator[pa.RecordBatch]:
        """Writes of this batch are included."""
        return self._scanned(self._version.rows(*self._codec.bounds))

    @override
    def numbered(self) -> Iterator[pa.RecordBatch]:
        """Writes of this batch are included."""
        schema = numbered_schema(self._layout)
        for rows in _groups(self._version.rows(*self._codec.bounds)):
            orders = self._codec.decode_orders([key for key, _ in rows])
            sort_keys, live, kept = self._columns_and_kept(rows)
            numbers = [pa.array(sort_keys)] + ([] if orders is None else [pa.array(orders[kept])])
            yield pa.RecordBatch.from_arrays([*numbers, *live.columns], schema=schema)

    def _scanned(self, found: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        schema = scan_schema(self._layout)
        for rows in _groups(found):
            sort_keys, decoded = self._columns(rows)
            yield pa.RecordBatch.from_arrays([pa.array(sort_keys), *decoded.columns], schema=schema)


def open_tables(
    workplace: Workplace, layout: StateLayout, version: WorkingVersion
) -> dict[str, RocksdbTable]:
    """The tables of a version that is open."""
    return {
        name: RocksdbTable(workplace, table, RowCodec(table, number), version)
        for number, (name, table) in enumerate(layout.by_name.items())
    }


class _OneKey(OneKey):
    """The rows of one key."""

    def __init__(self, table: RocksdbTable, key: KeyBatch) -> None:
        self._table = table
        self._key = key

    @override
    def get(self, sub: pa.Array, order: int) -> pa.RecordBatch | None:
        values, found = self._table.read(self._table.row_of(self._key, sub, order))
        return values if found[0] else None

    @override
    def scan(self) -> Iterator[pa.RecordBatch]:
        return self._table.rows_of_one(self._key)


def _parts(keys: KeyBatch) -> Iterator[tuple[int, KeyBatch]]:
    """Slices of at most `ROWS_AT_ONCE`, with where they start; at least one, so that no keys have columns too."""
    for start in range(0, max(1, len(keys)), ROWS_AT_ONCE):
        yield start, keys.slice(start, min(start + ROWS_AT_ONCE, len(keys)))


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """At most `ROWS_AT_ONCE` rows, and no more than fit into an array."""
    group: list[Row] = []
    size = 0
    for row in rows:
        size += len(row[0]) + len(row[1])
        if group and (size > PART_BYTES or len(group) == ROWS_AT_ONCE):
            yield group
            group, size = [], len(row[0]) + len(row[1])
        group.append(row)
    if group:
        yield group
