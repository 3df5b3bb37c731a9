"""Reading a journal again and again: a file that has not grown is not read anew. Wherever somebody looks; one thread at a time."""

from __future__ import annotations

from itertools import chain

from penstock.journal.events import Event
from penstock.journal.files import (
    KEEP_BYTES,
    KEEP_FILES,
    SEGMENT_BYTES,
    ReadEvents,
    by_budget,
    read_segment,
    segments,
)
from penstock.storage import Storage

MOST_FILES = 2 * KEEP_FILES
MOST_BYTES = KEEP_BYTES + 2 * SEGMENT_BYTES
"""Limits of what is read of each budget, the newest first: more than is kept, and not all that somebody may have put there."""


class JournalReader:
    """The journal of one job."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, tuple[int, ReadEvents]] = {}
        """By name: how large a file was, and what was in it."""

    def read(self) -> ReadEvents:
        """All that could be read, in the order in which it happened."""
        found = by_budget(segments(self._storage)).values()
        self._read = {name: read for names in found for name, read in self._newest(names).items()}
        parts = [read for _, read in self._read.values()]
        events: list[Event] = list(chain.from_iterable(one.events for one in parts))
        events.sort(key=lambda event: event.at)
        return ReadEvents(tuple(events), sum(one.unreadable for one in parts))

    def _newest(self, names: list[str]) -> dict[str, tuple[int, ReadEvents]]:
        found: dict[str, tuple[int, ReadEvents]] = {}
        read_bytes = 0
        for name in names[: -MOST_FILES - 1 : -1]:
            size = self._storage.size(name) or 0
            read_bytes += size
            if found and read_bytes > MOST_BYTES:
                break
            found[name] = self._segment(name, size)
        return dict(reversed(found.items()))

    def _segment(self, name: str, size: int) -> tuple[int, ReadEvents]:
        before = self._read.get(name)
        return (
            before if before is not None and before[0] == size else (size, read_segment(self._storage, name))
        )
