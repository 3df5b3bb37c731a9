"""What the backends that keep sorted files have in common: the tables of a subtask, and the file that a batch adds. In tasks on executors.

The handle that `freeze` returns names only files that this subtask wrote at its present parallelism, and so
holds keys of its own key groups only. That is what makes the handles of all subtasks safe to concatenate in
the next rescale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.state.backends.base import (
    VALUES,
    FileRef,
    KeyBatch,
    OpenState,
    Part,
    StateHandle,
    StateLayout,
    Workplace,
)
from penstock.state.backends.fetch import check_unchanged
from penstock.state.backends.merge import Ownership, merge_tables
from penstock.state.backends.sorted_file import FileHeader, Rows, SortedFile, TableHeader
from penstock.state.backends.sorted_rows import SortedBatch, SortedTable
from penstock.state.backends.sorted_table import OpenSortedTable, any_deleted, table_header


class SortedState(OpenState):
    """State as sorted files, newest first, and the writes of this batch in memory; a backend adds `freeze`."""

    backend: str

    def __init__(
        self,
        workplace: Workplace,
        layout: StateLayout,
        files: tuple[SortedFile, ...],
        before: StateHandle | None,
    ) -> None:
        super().__init__(before)
        self._workplace = workplace
        self._layout = layout
        self._files = files
        self._purging = False
        self._tables = {
            name: OpenSortedTable(workplace, table, [file.table(name) for file in files])
            for name, table in layout.by_name.items()
        }
        self._values = self._tables[VALUES]

    @property
    @override
    def now_us(self) -> int:
        return self._workplace.time.now_us

    def read_parts(self, keys: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """See `OpenState.read_parts`."""
        return self._values.read_parts(keys, max_bytes)

    @override
    def write(
        self, keys: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self._values.write(keys, values, deleted)

    @override
    def table(self, name: str) -> OpenSortedTable:
        return self._tables[name]

    @override
    def purge(self) -> None:
        self._purging = True

    @override
    def scan(self) -> Iterator[pa.RecordBatch]:
        """Writes of this batch are included."""
        return self._values.scan()

    @override
    def close(self) -> None:
        """A map ends with the last array that uses it."""
        self._files = ()
        for table in self._tables.values():
            table.close()

    def _fresh(self) -> tuple[SortedFile, ...]:
        """What this batch wrote, as a file in memory; empty when it wrote nothing."""
        written = {name: rows for name, table in self._tables.items() if (rows := table.fresh())}
        if not written:
            return ()
        return (SortedFile(header_of(self._workplace, self._layout, written), written),)

    def _handle(self, refs: tuple[FileRef, ...]) -> StateHandle:
        return StateHandle(
            subtask=self._workplace.subtask,
            backend=self.backend,
            version=self._workplace.version,
            refs=refs,
            generation=self.generation,
        )

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
    """What a file that this subtask writes says about itself."""
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
