"""A hint beside each log file: at which byte the frame of an offset begins. Driver and executors.

Fixed-size entries (base offset, position), in order; some may be missing. Nothing but speed depends on them:
whoever follows an entry checks the frame found there, and goes without the index when it is not the one.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PAIR = struct.Struct("<QQ")


class IndexEntry(NamedTuple):
    """The frame that with first offset `base` begins at byte `position`; `number` is the entry's place."""

    number: int
    base: int
    position: int


class LogIndex:
    """The index file of one partition. Who calls `add` or `replace_from` holds the partition's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def candidates(self, offset: int) -> Iterator[IndexEntry]:
        """Yield entries of frames that begin at or before `offset`, the nearest first."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            numbers = range(os.fstat(descriptor).st_size // _PAIR.size)
            later = bisect.bisect_right(numbers, offset, key=lambda number: _entry(descriptor, number).base)
            for number in reversed(numbers[:later]):
                yield _entry(descriptor, number)
        finally:
            os.close(descriptor)

    def add(self, pairs: list[tuple[int, int]]) -> None:
        """Add (base, position) pairs after the last whole entry; a torn one at the end is overwritten."""
        with self._writable() as descriptor:
            whole = os.fstat(descriptor).st_size // _PAIR.size
            _write(descriptor, whole, pairs)

    def replace_from(self, number: int, pairs: list[tuple[int, int]]) -> None:
        """Keep the entries before `number` and put these pairs in place of the rest."""
        with self._writable() as descriptor:
            os.ftruncate(descriptor, number * _PAIR.size)
            _write(descriptor, number, pairs)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _entry(descriptor: int, number: int) -> IndexEntry:
    base, position = _PAIR.unpack(os.pread(descriptor, _PAIR.size, number * _PAIR.size))
    return IndexEntry(number, base, position)


def _write(descriptor: int, number: int, pairs: list[tuple[int, int]]) -> None:
    os.pwrite(descriptor, b"".join(_PAIR.pack(*pair) for pair in pairs), number * _PAIR.size)
