"""The backend `filesystem`: sorted immutable files, memory-mapped. Runs in tasks on executors.

A batch writes its changed rows as one new file. The files are merged in the background (`merge_policy` says which, `snapshot.merger`
does it). They are the snapshot themselves: a checkpoint uploads the new ones and names the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.state.backends.base import FileRef, StateBackend, StateHandle, StateLayout, Workplace
from penstock.state.backends.fetch import open_files, open_verified
from penstock.state.backends.merge_policy import choose_inline, choose_merge
from penstock.state.backends.sorted_file import SortedFile, write_sorted_file
from penstock.state.backends.sorted_state import SortedState, merged
from penstock.state.lifetimes import Moment


class FilesystemBackend(StateBackend):
    """Keep state in files of this machine and of storage: bounded by disk, not by memory."""

    name = "filesystem"

    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> FilesystemState:
        """See `StateBackend.open`."""
        return FilesystemState(workplace, layout, open_files(workplace, layout, handle), handle)

    def choose_merge(self, refs: Sequence[FileRef], now: Moment) -> range | None:
        """See `StateBackend.choose_merge`."""
        return choose_merge(refs, now)

    def merge(
        self, workplace: Workplace, layout: StateLayout, refs: Sequence[FileRef], *, oldest: bool
    ) -> FileRef | None:
        """See `StateBackend.merge`."""
        opened = [open_verified(workplace, layout, ref) for ref in refs]
        name = workplace.new_name("-merged.arrow")
        try:
            return write_merged(
                workplace, layout, opened, name, workplace.merged_path(name), keep_tombstones=not oldest
            )
        finally:
            pa.default_memory_pool().release_unused()  # a worker waits for its next task with what it needs, no more


class FilesystemState(SortedState):
    """Sorted files, on disk."""

    backend = FilesystemBackend.name

    def freeze(self) -> StateHandle:
        """See `OpenState.freeze`."""
        fresh = self._fresh()
        files = [*fresh, *self._files]
        if files and not self._settled():
            return self._handle(self._merge(files, has_older=False))
        if not fresh:
            return self._handle(self._refs(files))
        window = choose_inline([(file.name, file.size) for file in files], self._workplace.merging)
        newest = range(1) if window is None else window
        older = files[newest.stop :]
        return self._handle((*self._merge(files[: newest.stop], has_older=bool(older)), *self._refs(older)))

    def _settled(self) -> bool:
        """Whether all are files that this subtask wrote; others must be merged, to drop foreign keys, and all to drop what has expired."""
        return not self._purging and all(self._wrote(file) and file.name for file in self._files)

    def _refs(self, files: Iterable[SortedFile]) -> tuple[FileRef, ...]:
        return tuple(file.ref for file in files if file.ref is not None)

    def _merge(self, files: list[SortedFile], *, has_older: bool) -> tuple[FileRef, ...]:
        """One new file of what this batch changed and, where there are more files, of those behind it."""
        name = self._workplace.new_name(".arrow")
        path = self._workplace.local_path(name)
        fresh = files[0]
        if len(files) == 1 and fresh.ref is None and (has_older or not fresh.has_tombstones):
            ref = write_sorted_file(
                path,
                name,
                fresh.tables,
                layout=self._layout,
                header=fresh.header,
                time=self._workplace.time,
            )
        else:
            self._check_unchanged(files)
            ref = write_merged(self._workplace, self._layout, files, name, path, keep_tombstones=has_older)
        return () if ref is None else (ref,)


def write_merged(
    workplace: Workplace,
    layout: StateLayout,
    files: Sequence[SortedFile],
    name: str,
    path: Path,
    *,
    keep_tombstones: bool,
) -> FileRef | None:
    """Merge sorted files into one; None, and no file, when no row is left."""
    rows, header = merged(workplace, layout, files, keep_tombstones=keep_tombstones)
    return write_sorted_file(path, name, rows, layout=layout, header=header, time=workplace.time)
