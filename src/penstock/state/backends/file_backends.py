"""The backends `filesystem` and `memory`, which keep state in sorted immutable files. Run in tasks on executors.

`filesystem`: a batch writes its changed rows as one new file, and reads files through memory maps. Files are merged in the background
(`choose_merge` chooses them, `snapshot.merger` merges them). The files are the snapshot: a checkpoint uploads the new ones and refers to
the old ones.

Merges are chosen from sizes alone, which is pure. They are size-tiered: a file's level is the logarithm of its bytes, and `FAN_IN` files
of a level become one file of a higher level. So a row is rewritten once per level, and the number of files grows with the logarithm of
the state.

Space: overwritten and deleted rows stay in older files until a merge drops them. When the files before the oldest have grown as large as
the oldest, with tombstones weighed twice by the rows they hide, everything becomes one file. So the files of a subtask take at most twice
the live size, or four times where most rows were deleted, in addition to the running merge.

Expired values: a file that has faded (`state/lifetimes.py`: half of its mortal values have expired) is rewritten without them when no other
merge is due. All such rewrites of a file together write little more than the file once more. In the oldest file, rows without any
remaining value are dropped. In other files they become tombstones, unless the older files are small enough to be merged along.

A subtask has at most one background merge at a time. The batch itself only merges tiny files, at no visible cost, and the newest of
more than `INLINE_FILES` files, which only happens when files arrive faster than the background merges them.

`memory`: all state of a subtask is one inline sorted file of at most a few megabytes inside the checkpoint, rewritten in every batch that
changes it. For tests and tiny jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.state.backends.base import StateBackend, StateHandle, StateLayout, Workplace
from penstock.state.backends.fetch import open_files, open_verified
from penstock.state.backends.sorted_file import SortedFile, encode_sorted_file, write_sorted_file
from penstock.state.backends.sorted_state import SortedState, merged
from penstock.state.handle import FileRef
from penstock.state.lifetimes import Moment

FAN_IN = 4
MAX_FILES = 16
INLINE_FILES = 24
_TIMELESS = Moment()
SMALLEST_LEVEL_BYTES = 128 * 1024  # below this a merge costs less than looking into another file


def choose_merge(refs: Sequence[FileRef], now: Moment = _TIMELESS) -> range | None:
    """The files to merge next, as positions in `refs` (newest first), or None when there is nothing to do."""
    if _mostly_dead(refs):
        return range(len(refs))
    levels = [_level(ref.size) for ref in refs]
    for level in sorted(set(levels)):
        stretch = _stretch(levels, level)
        if stretch is not None:
            return stretch
    if len(refs) > MAX_FILES:
        return _cheapest([ref.size for ref in refs])
    return _faded(refs, now)


def choose_inline(files: Sequence[tuple[str, int]], merging: frozenset[str]) -> range | None:
    """The newest files, as (name, size), that the batch merges while it writes its own; never those that are being merged already.

    Tiny ones, because a file more costs more than writing their rows again; and the newer half when there are too many.
    """
    free = next((at for at, (name, _) in enumerate(files) if name in merging), len(files))
    sums = accumulate(size for _, size in files[:free])
    tiny = sum(1 for total in sums if total <= SMALLEST_LEVEL_BYTES)
    if tiny >= FAN_IN:
        return range(tiny)
    return range(min(free, INLINE_FILES // 2)) if len(files) > INLINE_FILES and free > 1 else None


def _mostly_dead(refs: Sequence[FileRef]) -> bool:
    if len(refs) < 2:  # noqa: PLR2004 - nothing to merge with
        return False
    *newer, oldest = refs
    hidden = sum(ref.tombstones for ref in newer) * oldest.size / max(oldest.rows, 1)
    return sum(ref.size for ref in newer) + 2 * hidden > max(oldest.size, SMALLEST_LEVEL_BYTES)


def _faded(refs: Sequence[FileRef], now: Moment) -> range | None:
    """The oldest faded file, together with the older files if they are no larger."""
    behind = 0
    for at in reversed(range(len(refs))):
        if _has_faded(refs[at], now):
            return range(at, len(refs) if behind <= refs[at].size else at + 1)
        behind += refs[at].size
    return None


def _has_faded(ref: FileRef, now: Moment) -> bool:
    return (ref.fades is not None and ref.fades <= now.clock_us) or (
        ref.fades_event is not None and ref.fades_event <= now.watermark_us
    )


def _level(size: int) -> int:
    level, limit = 0, SMALLEST_LEVEL_BYTES
    while size > limit:
        level, limit = level + 1, limit * FAN_IN
    return level


def _stretch(levels: Sequence[int], level: int) -> range | None:
    """The newest stretch with `FAN_IN` files of this level and none above; lower ones between go along."""
    members: list[int] = []
    for position, other in enumerate(levels):
        if other > level:
            if len(members) >= FAN_IN:
                break
            members = []
        elif other == level:
            members.append(position)
    return range(members[0], members[-1] + 1) if len(members) >= FAN_IN else None


def _cheapest(sizes: Sequence[int]) -> range:
    starts = range(len(sizes) - FAN_IN + 1)
    start = min(starts, key=lambda first: sum(sizes[first : first + FAN_IN]))
    return range(start, start + FAN_IN)


class FilesystemBackend(StateBackend):
    """Keep state in files of this machine and of storage: bounded by disk, not by memory."""

    name = "filesystem"

    @override
    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> FilesystemState:
        return FilesystemState(workplace, layout, open_files(workplace, layout, handle), handle)

    @override
    def choose_merge(self, refs: Sequence[FileRef], now: Moment) -> range | None:
        return choose_merge(refs, now)

    @override
    def merge(
        self, workplace: Workplace, layout: StateLayout, refs: Sequence[FileRef], *, oldest: bool
    ) -> FileRef | None:
        opened = [open_verified(workplace, layout, ref) for ref in refs]
        name = workplace.new_name("-merged.arrow")
        try:
            return write_merged(
                workplace, layout, opened, name, workplace.merged_path(name), keep_tombstones=not oldest
            )
        finally:
            pa.default_memory_pool().release_unused()  # a worker waits for its next task with what it needs, no more


class FilesystemState(SortedState):
    """The state of a subtask in sorted files on disk."""

    backend = FilesystemBackend.name

    @override
    def freeze(self) -> StateHandle:
        fresh = self._fresh()
        files = [*fresh, *self._files]
        if files and not self._settled():
            return self._handle(self._merge(files, has_older=False))
        if not fresh:
            return self._handle(self._refs(files))
        stretch = choose_inline([(file.name, file.size) for file in files], self._workplace.merging)
        newest = range(1) if stretch is None else stretch
        older = files[newest.stop :]
        return self._handle((*self._merge(files[: newest.stop], has_older=bool(older)), *self._refs(older)))

    def _settled(self) -> bool:
        """Whether all are files that this subtask wrote; others must be merged, to drop foreign keys, and all to drop what has expired."""
        return not self._purging and all(self._wrote(file) and file.name for file in self._files)

    def _refs(self, files: Iterable[SortedFile]) -> tuple[FileRef, ...]:
        return tuple(file.ref for file in files if file.ref is not None)

    def _merge(self, files: list[SortedFile], *, has_older: bool) -> tuple[FileRef, ...]:
        """Write one new file with the changes of this batch and, if there are too many files, the content of the next older ones."""
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


DEFAULT_LIMIT_BYTES = 4 * 1024 * 1024


class MemoryBackend(StateBackend):
    """Keep state inline, up to `limit_bytes` for each subtask."""

    name = "memory"

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        if limit_bytes <= 0:
            raise ConfigError(
                f"the limit of backend 'memory' is {limit_bytes} bytes: it must be positive",
                limit_bytes=limit_bytes,
            )
        self.limit_bytes = limit_bytes

    @override
    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> MemoryState:
        return MemoryState(workplace, layout, open_files(workplace, layout, handle), handle, self.limit_bytes)


class MemoryState(SortedState):
    """At most one sorted file, inline."""

    backend = MemoryBackend.name

    def __init__(
        self,
        workplace: Workplace,
        layout: StateLayout,
        files: tuple[SortedFile, ...],
        before: StateHandle | None,
        limit_bytes: int,
    ) -> None:
        super().__init__(workplace, layout, files, before)
        self._limit_bytes = limit_bytes

    @override
    def freeze(self) -> StateHandle:
        fresh = self._fresh()
        if not fresh and self._settled():
            return self._handle(tuple(file.ref for file in self._files if file.ref is not None))
        files = [*fresh, *self._files]
        self._check_unchanged(files)
        rows, header = merged(self._workplace, self._layout, files, keep_tombstones=False)
        ref = encode_sorted_file(rows, layout=self._layout, header=header, time=self._workplace.time)
        if ref is None:
            return self._handle(())
        self._check_size(ref.size)
        return self._handle((ref,))

    def _settled(self) -> bool:
        inline = all(self._wrote(file) and file.ref is not None and not file.ref.name for file in self._files)
        return not self._purging and len(self._files) <= 1 and inline

    def _check_size(self, size: int) -> None:
        if size > self._limit_bytes:
            raise ConfigError(
                f"the state of {self._workplace.subtask} has {size} bytes, more than the {self._limit_bytes} "
                'bytes that backend="memory" allows for each subtask; '
                'choose backend="filesystem" or raise the limit',
                operator=self._workplace.subtask.uid,
                subtask=self._workplace.subtask.index,
                size=size,
                limit_bytes=self._limit_bytes,
            )
