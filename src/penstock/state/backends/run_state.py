"""What the backends that keep runs have in common: read, collect writes, scan. In tasks on executors.

The handle that `freeze` returns names only runs that this subtask wrote at its present parallelism, and so
holds keys of its own key groups only. That is what makes the handles of all subtasks safe to concatenate in
the next rescale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.backends.base import (
    KeyBatch,
    OpenState,
    Part,
    RunRef,
    StateHandle,
    StateLayout,
    Workplace,
)
from penstock.state.backends.fetch import check_unchanged
from penstock.state.backends.lookup import lookup_parts
from penstock.state.backends.merge import Ownership, merge_runs
from penstock.state.backends.run_file import Run, RunBatch, RunHeader, concat_batches, scan_schema
from penstock.state.backends.write_check import WriteCheck
from penstock.state.sizes import PART_BYTES

BATCH_BYTES = PART_BYTES


class RunState(OpenState):
    """State as runs, newest first, and the writes of this batch in memory; a backend adds `freeze`."""

    backend: str

    def __init__(self, workplace: Workplace, layout: StateLayout, runs: tuple[Run, ...]) -> None:
        self._workplace = workplace
        self._layout = layout
        self._runs = runs
        self._written: list[RunBatch] = []
        self._check = WriteCheck(workplace, layout)
        self._ownership = Ownership(workplace.subtask.index, workplace.parallelism)

    def read_parts(self, keys: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """See `OpenState.read_parts`."""
        return lookup_parts(self._runs, keys, self._layout.value, max_bytes)

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
        self._written.append(RunBatch(keys.sort_keys, marks, tuple(keys.columns.columns), tuple(columns)))

    def scan(self) -> Iterator[pa.RecordBatch]:
        """See `OpenState.scan`; writes of this batch are included."""
        schema = scan_schema(self._layout)
        runs = [*self._fresh(), *self._runs]
        for batch in merge_runs(runs, ownership=self._ownership, keep_tombstones=False):
            columns = [pa.array(batch.sort_keys), *batch.keys, *batch.values]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def close(self) -> None:
        """See `OpenState.close`; a map ends with the last array that uses it."""
        self._runs = ()
        self._written = []

    def _fresh(self) -> tuple[Run, ...]:
        """What this batch wrote, as a run in memory; empty when it wrote nothing."""
        if not self._written:
            return ()
        self._check.check_order()
        batches = tuple(concat_batches(group) for group in _grouped(self._written))
        return (Run(self._header(tombstones=_any_deleted(batches)), batches),)

    def _header(self, *, tombstones: bool) -> RunHeader:
        return header_of(self._workplace, self._layout, tombstones=tombstones)

    def _handle(self, refs: tuple[RunRef, ...]) -> StateHandle:
        return StateHandle(
            subtask=self._workplace.subtask, backend=self.backend, version=self._workplace.version, runs=refs
        )

    def _check_unchanged(self, runs: Sequence[Run]) -> None:
        """Before rows get a new checksum: a file that was damaged since it was opened must not become a sound new one."""
        for run in runs:
            if run.ref is not None and run.ref.name:
                check_unchanged(self._workplace, run.ref)

    def _wrote(self, run: Run) -> bool:
        """Whether this subtask wrote the run at its present parallelism, so that it holds own keys only."""
        mine = (self._ownership.index, self._ownership.parallelism)
        return (run.header.subtask, run.header.parallelism) == mine


def header_of(workplace: Workplace, layout: StateLayout, *, tombstones: bool) -> RunHeader:
    """What a run that this subtask writes says about itself."""
    return RunHeader(
        key_columns=len(layout.key),
        uid=workplace.subtask.uid,
        subtask=workplace.subtask.index,
        parallelism=workplace.parallelism,
        max_parallelism=workplace.max_parallelism,
        tombstones=tombstones,
    )


def merged(
    workplace: Workplace, layout: StateLayout, runs: Sequence[Run], *, keep_tombstones: bool
) -> tuple[Iterator[RunBatch], RunHeader]:
    """The rows of several runs as one, and the header of the run they become."""
    keep = keep_tombstones and any(run.header.tombstones for run in runs)
    ownership = Ownership(workplace.subtask.index, workplace.parallelism)
    rows = merge_runs(runs, ownership=ownership, keep_tombstones=keep)
    return rows, header_of(workplace, layout, tombstones=keep)


def _grouped(batches: list[RunBatch]) -> Iterator[list[RunBatch]]:
    """Neighbours that together make one record batch; mostly that is all of them."""
    group: list[RunBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if group and size > BATCH_BYTES:
            yield group
            group, size = [], batch.nbytes
        group.append(batch)
    yield group


def _any_deleted(batches: tuple[RunBatch, ...]) -> bool:
    return any(batch.deleted is not None for batch in batches)
