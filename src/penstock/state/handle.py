"""How a checkpoint names state: immutable files, each with a name in storage, size and checksum, or its bytes kept inline.

Runs on driver and executors; the driver never looks inside one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from penstock.ids import SubtaskId

GENERATION_SHIFT = 32
"""Arrival numbers of rows start at the generation of the state, shifted by this: no batch has as many rows as fit in between."""
_STATE_NAME = re.compile(r"state/(?P<uid>[^/]+)/\d+-\d+-(?P<index>\d+)-.*")


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """One immutable sorted file of state: in storage (`name`), or the bytes themselves (`inline`).

    A backend that keeps a database names the database's files the same way: `file` is the name a file has inside the database.
    """

    rows: int
    size: int
    checksum: str
    name: str = ""
    inline: bytes = b""
    tombstones: int = 0
    file: str = ""
    fades: int | None = None
    """When so much will have expired that a rewrite pays off, in microseconds since the epoch; None for never."""
    fades_event: int | None = None
    """The same for values that expire in event time."""


class Due(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first times at which state is due, in microseconds since the epoch: timers, ends of windows, join rows without a partner.

    None if nothing is due. A time may be too early, as after a change of parallelism, but never too late: nothing is searched before it.
    """

    event_us: int | None = None
    """In event time: due when the watermark reaches it."""
    clock_us: int | None = None
    """By the clock of the driver."""

    def is_reached(self, watermark_us: int, now_us: int) -> bool:
        """Whether a timer, window or row is due at these times."""
        return (self.event_us is not None and self.event_us <= watermark_us) or (
            self.clock_us is not None and self.clock_us <= now_us
        )

    @staticmethod
    def first(of: Iterable[Due]) -> Due:
        """The earliest times of several."""
        every = tuple(of)
        return Due(_first(one.event_us for one in every), _first(one.clock_us for one in every))


def _first(moments: Iterable[int | None]) -> int | None:
    return min((moment for moment in moments if moment is not None), default=None)


class StateHandle(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one subtask at one version: its files, the newest first (a newer one hides the same key in an older one)."""

    subtask: SubtaskId
    backend: str
    version: int
    refs: tuple[FileRef, ...] = ()
    generation: int = 0
    """The number of batches that have written it. Not `version`: at least once, a batch is repeated on later state."""
    due: Due = Due()
    """When its timers, windows and join rows are due."""
    over_us: int | None = None
    """Event time up to which windows are closed and removed. At least once, the watermark of its checkpoint may be earlier."""

    @property
    def files(self) -> frozenset[str]:
        """The names in storage that must exist for this handle to be readable."""
        return frozenset(ref.name for ref in self.refs if ref.name)

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(ref.size for ref in self.refs)


def over_in_all(handles: Iterable[StateHandle]) -> int | None:
    """The time up to which windows are removed in all of them."""
    known = [handle.over_us for handle in handles]
    return None if None in known else min((us for us in known if us is not None), default=None)


def state_stem(run: int, batch: int, index: int, attempt: int) -> str:
    """The start of all names of state files of one attempt of a subtask; unique among all attempts of all runs."""
    return f"{run}-{batch}-{index}-{attempt}"


def writer_of(name: str) -> SubtaskId | None:
    """The subtask that wrote a state file, from its name alone; None for other names."""
    found = _STATE_NAME.fullmatch(name)
    return None if found is None else SubtaskId(found["uid"], int(found["index"]))
