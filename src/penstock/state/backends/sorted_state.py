"""What the backends that keep sorted files have in common: read, collect writes, scan. In tasks on executors.

The handle that `freeze` returns names only files that this subtask wrote at its present parallelism, and so
holds keys of its own key groups only. That is what makes the handles of all subtasks safe to concatenate in
the next rescale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.base import (
    FileRef,
    KeyBatch,
    OpenState,
    Part,
    StateHandle,
    StateLayout,
    Workplace,
)
from penstock.state.backends.fetch import check_unchanged
from penstock.state.backends.lookup import lookup_parts
from penstock.state.backends.merge import Ownership, merge_files
from penstock.state.backends.sorted_file import (
    FileHeader,
    SortedBatch,
    SortedFile,
    concat_batches,
    scan_schema,
)
from penstock.state.backends.write_check import WriteCheck
from penstock.state.sizes import PART_BYTES

BATCH_BYTES = PART_BYTES


class SortedState(OpenState):
    """State as sorted files, newest first, and the writes of this batch in memory; a backend adds `freeze`."""

    backend: str

    def __init__(self, workplace: Workplace, layout: StateLayout, files: tuple[SortedFile, ...]) -> None:
        self._workplace = workplace
        self._layout = layout
        self._files = files
        self._written: list[SortedBatch] = []
        self._check = WriteCheck(workplace, layout)
        self._ownership = Ownership(workplace.subtask.index, workplace.parallelism)

    def read_parts(self, keys: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """See `OpenState.read_parts`."""
        return lookup_parts(self._files, keys, self._layout.value, max_bytes)

    def write(
        self, keys: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """See `OpenState.write`."""
        if not len(keys):
            return
        self._check.check(keys, values)
        marks = pa.array(deleted) if deleted is not None and deleted.any() else None
        columns = values.columns
        if marks is not None:
            kept = pa.array(np.arange(len(keys)), mask=deleted)
            columns = [column.take(kept) for column in columns]
        self._written.append(SortedBatch(keys.sort_keys, marks, tuple(keys.columns.columns), tuple(columns)))

    def scan(self) -> Iterator[pa.RecordBatch]:
        """See `OpenState.scan`; writes of this batch are included."""
        schema = scan_schema(self._layout)
        files = [*self._fresh(), *self._files]
        for batch in merge_files(files, ownership=self._ownership, keep_tombstones=False):
            columns = [pa.array(batch.sort_keys), *batch.keys, *batch.values]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def close(self) -> None:
        """See `OpenState.close`; a map ends with the last array that uses it."""
        self._files = ()
        self._written = []

    def _fresh(self) -> tuple[SortedFile, ...]:
        """What this batch wrote, as a file in memory; empty when it wrote nothing."""
        if not self._written:
            return ()
        self._check.check_order()
        batches = tuple(concat_batches(group) for group in _grouped(self._written))
        return (SortedFile(self._header(tombstones=_any_deleted(batches)), batches),)

    def _header(self, *, tombstones: bool) -> FileHeader:
        return header_of(self._workplace, self._layout, tombstones=tombstones)

    def _handle(self, refs: tuple[FileRef, ...]) -> StateHandle:
        return StateHandle(
            subtask=self._workplace.subtask, backend=self.backend, version=self._workplace.version, refs=refs
        )

    def _check_unchanged(self, files: Sequence[SortedFile]) -> None:
        """Before rows get a new checksum: a file that was damaged since it was opened must not become a sound new one."""
        for file in files:
            if file.ref is not None and file.ref.name:
                check_unchanged(self._workplace, file.ref)

    def _wrote(self, file: SortedFile) -> bool:
        """Whether this subtask wrote the file at its present parallelism, so that it holds own keys only."""
        mine = (self._ownership.index, self._ownership.parallelism)
        return (file.header.subtask, file.header.parallelism) == mine


def header_of(workplace: Workplace, layout: StateLayout, *, tombstones: bool) -> FileHeader:
    """What a file that this subtask writes says about itself."""
    return FileHeader(
        key_columns=len(layout.key),
        uid=workplace.subtask.uid,
        subtask=workplace.subtask.index,
        parallelism=workplace.parallelism,
        max_parallelism=workplace.max_parallelism,
        tombstones=tombstones,
    )


def merged(
    workplace: Workplace, layout: StateLayout, files: Sequence[SortedFile], *, keep_tombstones: bool
) -> tuple[Iterator[SortedBatch], FileHeader]:
    """The rows of several files as one, and the header of the file they become."""
    keep = keep_tombstones and any(file.header.tombstones for file in files)
    ownership = Ownership(workplace.subtask.index, workplace.parallelism)
    rows = merge_files(files, ownership=ownership, keep_tombstones=keep)
    return rows, header_of(workplace, layout, tombstones=keep)


def _grouped(batches: list[SortedBatch]) -> Iterator[list[SortedBatch]]:
    """Neighbours that together make one record batch; mostly that is all of them."""
    group: list[SortedBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if group and size > BATCH_BYTES:
            yield group
            group, size = [], batch.nbytes
        group.append(batch)
    yield group


def _any_deleted(batches: tuple[SortedBatch, ...]) -> bool:
    return any(batch.deleted is not None for batch in batches)
