"""The state of a subtask in sorted files, for the backends `filesystem` and `memory`: its tables, and the file that a batch adds.

Runs in tasks on executors. The handle that `freeze` returns names only files that this subtask wrote at its present parallelism, so it
holds only keys of its own key groups. This makes it safe to concatenate the handles of all subtasks in the next rescale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.state.backends.base import (
    KeyBatch,
    OneKey,
    OpenState,
    OpenTable,
    Part,
    RowsOfKeys,
    StateHandle,
    StateLayout,
    TableLayout,
    Workplace,
)
from penstock.state.backends.fetch import check_unchanged
from penstock.state.backends.sorted_file import (
    FileHeader,
    Rows,
    SortedFile,
    TableHeader,
    numbered_schema,
    scan_schema,
)
from penstock.state.backends.sorted_lookup import KeyRanges, OneSortedKey, lookup, lookup_parts, rows_of_keys
from penstock.state.backends.sorted_rows import (
    Address,
    Ownership,
    SortedBatch,
    SortedTable,
    WriteCheck,
    concat_batches,
    in_order,
    merge_tables,
    sorting_positions,
)
from penstock.state.sizes import PART_BYTES

BATCH_BYTES = PART_BYTES
FIRST_ROWS, MORE_ROWS = 1024, 16
"""Rows of each file that are merged at first, and the factor by which this grows: a reader in the order of time may want only a few."""


class OpenSortedTable(OpenTable):
    """The rows that the files have, the newest file first, and the writes of this batch in memory."""

    def __init__(self, workplace: Workplace, layout: TableLayout, stored: Sequence[SortedTable]) -> None:
        self._layout = layout
        self._expiry = layout.expiry(workplace.time)
        self._stored = stored
        self._ranges: KeyRanges | None = None
        self._written: list[SortedBatch] = []
        self._check = WriteCheck(workplace, layout)
        self._ownership = Ownership(workplace.subtask.index, workplace.parallelism)

    @override
    def read(self, rows: KeyBatch) -> Part:
        found = lookup(self._stored, rows, self._layout.value)
        return found if self._expiry is None else self._expiry.read(*found)

    @override
    def read_parts(self, rows: KeyBatch, max_bytes: int) -> Iterator[Part]:
        parts = lookup_parts(self._stored, rows, self._layout.value, max_bytes)
        expiry = self._expiry
        return parts if expiry is None else (expiry.read(*part) for part in parts)

    @override
    def rows_of(self, keys: KeyBatch, at_most: int, max_bytes: int = PART_BYTES) -> RowsOfKeys:
        return rows_of_keys(
            self._stored, self._layout, keys, at_most=at_most, max_bytes=max_bytes, expiry=self._expiry
        )

    @override
    def one_key(self, key: KeyBatch) -> OneKey:
        if self._ranges is None:
            self._ranges = KeyRanges(self._stored)
        return OneSortedKey(self._ranges, self._layout, key, self._expiry)

    @override
    def until(self, time: int, after: int | None = None) -> Iterator[pa.RecordBatch]:
        rows = FIRST_ROWS
        while after is None or after < time:
            border = min(
                (at for table in self._stored if (at := _behind(table, after, rows)) is not None),
                default=time,
            )
            border = min(border, time)
            yield from self._scanned([tuple(_between(table, after, border)) for table in self._stored])
            after, rows = border, rows * MORE_ROWS

    @override
    def at(self, time: int, sort_key: int) -> Iterator[pa.RecordBatch]:
        return self._scanned([tuple(_at(table, (time, sort_key))) for table in self._stored])

    @override
    def write(
        self, rows: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        if not len(rows):
            return
        self._check.check(rows, values)
        marks = pa.array(deleted) if deleted is not None and deleted.any() else None
        columns = values.columns
        if marks is not None:
            kept = pa.array(np.arange(len(rows)), mask=deleted)
            columns = [column.take(kept) for column in columns]
        self._written.append(
            SortedBatch(
                rows.sort_keys,
                marks,
                tuple(rows.columns.columns),
                tuple(columns),
                rows.orders,
                self._layout.by_time,
            )
        )

    @override
    def scan(self) -> Iterator[pa.RecordBatch]:
        """Writes of this batch are included."""
        return self._scanned([self.fresh(), *self._stored])

    @override
    def numbered(self) -> Iterator[pa.RecordBatch]:
        """Writes of this batch are included."""
        schema = numbered_schema(self._layout)
        for rows in self._merged([self.fresh(), *self._stored]):
            numbers = [pa.array(one) for one in (rows.sort_keys, rows.orders) if one is not None]
            yield pa.RecordBatch.from_arrays([*numbers, *rows.keys, *rows.values], schema=schema)

    def _scanned(self, tables: Sequence[SortedTable]) -> Iterator[pa.RecordBatch]:
        schema = scan_schema(self._layout)
        for rows in self._merged(tables):
            yield pa.RecordBatch.from_arrays(
                [pa.array(rows.sort_keys), *rows.keys, *rows.values], schema=schema
            )

    def _merged(self, tables: Sequence[SortedTable]) -> Iterator[SortedBatch]:
        return merge_tables(tables, ownership=self._ownership, keep_tombstones=False, expiry=self._expiry)

    def fresh(self) -> SortedTable:
        """The writes of this batch, as the table of a file in memory."""
        if not self._written:
            return ()
        if not self._layout.ordered:
            self._check.check_order()
            return tuple(concat_batches(group) for group in _grouped(self._written))
        return _sorted(self._written)

    def close(self) -> None:
        """Let go of the files."""
        self._stored, self._ranges, self._written = (), None, []


def table_header(layout: TableLayout, *, tombstones: bool) -> TableHeader:
    """How the columns of a table are written."""
    return TableHeader(
        len(layout.identity), layout.ordered, layout.by_time, tombstones, len(layout.lifetimes)
    )


def _behind(table: SortedTable, after: int | None, rows: int) -> int | None:
    """The time of the last of this number of rows after a time; None if there are fewer."""
    for batch in table:
        start = _first_behind(batch, after)
        if len(batch) - start >= rows:
            return int(batch.major[start + rows - 1])
        rows -= len(batch) - start
    return None


def _between(table: SortedTable, after: int | None, time: int) -> Iterator[SortedBatch]:
    """The rows after one time and up to another, of rows in the order of time. Only the batches that hold them are searched."""
    for batch in table:
        if batch.major[0] > time:
            return
        start = _first_behind(batch, after)
        stop = len(batch) if batch.major[-1] <= time else _first_behind(batch, time)
        if start < stop:
            yield batch.slice(start, stop)


def _at(table: SortedTable, address: Address) -> Iterator[SortedBatch]:
    """The rows at one address."""
    for batch in table:
        if batch.address(0) > address:
            return
        start, stop = batch.first_at(address), batch.first_behind(address)
        if start < stop:
            yield batch.slice(start, stop)


def _first_behind(batch: SortedBatch, time: int | None) -> int:
    """The position of the first row after a time; None is before all time."""
    if time is None or batch.major[0] > time:
        return 0
    if batch.major[-1] <= time:
        return len(batch)
    return int(np.searchsorted(batch.major, time, side="right"))


def _sorted(written: list[SortedBatch]) -> SortedTable:
    """Rows that were written in any order, in theirs. Keys that share a sort key may have been written one after the other."""
    groups = [concat_batches(group) for group in _grouped(written)]
    ordered = [batch if in_order(batch) else batch.take(sorting_positions(batch)) for batch in groups]
    follow = all(one.address(len(one) - 1) <= next_one.address(0) for one, next_one in pairwise(ordered))
    if follow:
        return tuple(ordered)
    whole = [(batch,) for batch in reversed(ordered)]
    return tuple(merge_tables(whole, ownership=Ownership(0, 1), keep_tombstones=True))


def _grouped(batches: list[SortedBatch]) -> Iterator[list[SortedBatch]]:
    """Groups of adjacent batches that fit into one record batch; mostly there is one group."""
    group: list[SortedBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if group and size > BATCH_BYTES:
            yield group
            group, size = [], batch.nbytes
        group.append(batch)
    yield group


def any_deleted(batches: SortedTable) -> bool:
    """Whether there are tombstones among the rows."""
    return any(batch.deleted is not None for batch in batches)


class SortedState(OpenState):
    """State as sorted files, newest first, and the writes of this batch in memory; a backend adds `freeze`."""

    def __init__(
        self,
        workplace: Workplace,
        layout: StateLayout,
        files: tuple[SortedFile, ...],
        before: StateHandle | None,
    ) -> None:
        self._tables = {
            name: OpenSortedTable(workplace, table, [file.table(name) for file in files])
            for name, table in layout.by_name.items()
        }
        super().__init__(workplace, self._tables, before)
        self._layout = layout
        self._files = files
        self._purging = False

    @override
    def purge(self) -> None:
        self._purging = True

    @override
    def close(self) -> None:
        """A map ends with the last array that uses it."""
        self._files = ()
        for table in self._tables.values():
            table.close()

    def _fresh(self) -> tuple[SortedFile, ...]:
        """The writes of this batch, as a file in memory; empty if there are none."""
        written = {name: rows for name, table in self._tables.items() if (rows := table.fresh())}
        if not written:
            return ()
        return (SortedFile(header_of(self._workplace, self._layout, written), written),)

    def _check_unchanged(self, files: Sequence[SortedFile]) -> None:
        """Before rows get a new checksum: a file that was damaged since it was opened must not become a sound new one."""
        for file in files:
            if file.ref is not None and file.ref.name:
                check_unchanged(self._workplace, file.ref)

    def _wrote(self, file: SortedFile) -> bool:
        """Whether this subtask wrote the file at its present parallelism, so that it holds own keys only."""
        mine = (self._workplace.subtask.index, self._workplace.parallelism)
        return (file.header.subtask, file.header.parallelism) == mine


def header_of(workplace: Workplace, layout: StateLayout, rows: Mapping[str, SortedTable]) -> FileHeader:
    """The header of the files that this subtask writes."""
    by_name = layout.by_name
    return FileHeader(
        uid=workplace.subtask.uid,
        subtask=workplace.subtask.index,
        parallelism=workplace.parallelism,
        max_parallelism=workplace.max_parallelism,
        tables={
            name: table_header(by_name[name], tombstones=any_deleted(table)) for name, table in rows.items()
        },
    )


def merged(
    workplace: Workplace, layout: StateLayout, files: Sequence[SortedFile], *, keep_tombstones: bool
) -> tuple[Rows, FileHeader]:
    """The rows of several files as one, without what has expired, and the header of the file they become."""
    ownership = Ownership(workplace.subtask.index, workplace.parallelism)
    rows: dict[str, Iterator[SortedBatch]] = {}
    headers: dict[str, TableHeader] = {}
    for name, table in layout.by_name.items():
        stored = [file.table(name) for file in files]
        expiry = table.expiry(workplace.time)
        keep = keep_tombstones and (expiry is not None or any(any_deleted(one) for one in stored))
        rows[name] = merge_tables(stored, ownership=ownership, keep_tombstones=keep, expiry=expiry)
        headers[name] = table_header(table, tombstones=keep)
    return rows, msgspec.structs.replace(header_of(workplace, layout, {}), tables=headers)
