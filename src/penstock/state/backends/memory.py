"""The backend `memory`: a few megabytes of state inside the checkpoint itself. Runs in tasks on executors.

All of a subtask's state is one sorted file, inline, written anew in every batch that changes it. For tests and tiny
jobs.
"""

from __future__ import annotations

from typing_extensions import override

from penstock.errors import ConfigError
from penstock.state.backends.base import StateBackend, StateHandle, StateLayout, Workplace
from penstock.state.backends.fetch import open_files
from penstock.state.backends.sorted_file import SortedFile, encode_sorted_file
from penstock.state.backends.sorted_state import SortedState, merged

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
