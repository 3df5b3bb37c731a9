"""The backend `filesystem`: sorted immutable runs, memory-mapped. Runs in tasks on executors.

A batch writes its changed rows as one new run. Runs are merged in the background (`merge_policy` says which, `snapshot.compactor` does
it). The runs themselves are the snapshot: a checkpoint uploads the new ones and names the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.state.backends.base import RunRef, StateBackend, StateHandle, StateLayout, Workplace
from penstock.state.backends.fetch import open_runs, open_verified
from penstock.state.backends.merge_policy import choose_inline, choose_merge
from penstock.state.backends.run_file import Run, write_run
from penstock.state.backends.run_state import RunState, merged


class FilesystemBackend(StateBackend):
    """Keep state in files of this machine and of storage: bounded by disk, not by memory."""

    name = "filesystem"

    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> FilesystemState:
        """See `StateBackend.open`."""
        return FilesystemState(workplace, layout, open_runs(workplace, layout, handle))

    def choose_merge(self, runs: Sequence[RunRef]) -> range | None:
        """See `StateBackend.choose_merge`."""
        return choose_merge(runs)

    def merge(
        self, workplace: Workplace, layout: StateLayout, runs: Sequence[RunRef], *, oldest: bool
    ) -> RunRef | None:
        """See `StateBackend.merge`."""
        opened = [open_verified(workplace, layout, ref) for ref in runs]
        name = workplace.new_name("-merged.arrow")
        try:
            return write_merged(
                workplace, layout, opened, name, workplace.merged_path(name), keep_tombstones=not oldest
            )
        finally:
            pa.default_memory_pool().release_unused()  # a worker waits for its next task with what it needs, no more


class FilesystemState(RunState):
    """Runs as files."""

    backend = FilesystemBackend.name

    def freeze(self) -> StateHandle:
        """See `OpenState.freeze`."""
        fresh = self._fresh()
        runs = [*fresh, *self._runs]
        if not self._settled():
            return self._handle(self._merge(runs, has_older=False))
        if not fresh:
            return self._handle(self._refs(runs))
        window = choose_inline([(run.name, run.size) for run in runs], self._workplace.merging)
        newest = range(1) if window is None else window
        older = runs[newest.stop :]
        return self._handle((*self._merge(runs[: newest.stop], has_older=bool(older)), *self._refs(older)))

    def _settled(self) -> bool:
        """Whether all runs are files that this subtask wrote; others must be merged, to drop foreign keys."""
        return all(self._wrote(run) and run.name for run in self._runs)

    def _refs(self, runs: Iterable[Run]) -> tuple[RunRef, ...]:
        return tuple(run.ref for run in runs if run.ref is not None)

    def _merge(self, runs: list[Run], *, has_older: bool) -> tuple[RunRef, ...]:
        """One new file of what this batch changed and, where there are more runs, of those behind it."""
        name = self._workplace.new_name(".arrow")
        path = self._workplace.local_path(name)
        fresh = runs[0]
        if len(runs) == 1 and fresh.ref is None and (has_older or not fresh.header.tombstones):
            ref = write_run(path, name, fresh.batches, layout=self._layout, header=fresh.header)
        else:
            self._check_unchanged(runs)
            ref = write_merged(self._workplace, self._layout, runs, name, path, keep_tombstones=has_older)
        return () if ref is None else (ref,)


def write_merged(
    workplace: Workplace,
    layout: StateLayout,
    runs: Sequence[Run],
    name: str,
    path: Path,
    *,
    keep_tombstones: bool,
) -> RunRef | None:
    """Merge runs into one file; None, and no file, when no row is left."""
    batches, header = merged(workplace, layout, runs, keep_tombstones=keep_tombstones)
    return write_run(path, name, batches, layout=layout, header=header)
