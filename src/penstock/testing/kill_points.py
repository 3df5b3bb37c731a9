"""A storage that kills its own process at a chosen moment of the protocol. Driver only.

Everything a checkpoint needs is decided by one write, the creation of its `_metadata`. Right before it every sink has pre-committed
and nothing is complete; right after it the checkpoint is complete and nothing of it is committed. No handler runs, nothing is
flushed, no thread finishes: it is the death that a power cut brings, at the two moments where it matters most.
"""

from __future__ import annotations

import enum
import os
import re
import signal
import threading
from collections.abc import Callable

import msgspec
from typing_extensions import override

from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage

_METADATA = re.compile(r"chk-(\d+)-r\d+/_metadata")


class KillMoment(enum.Enum):
    """Where in the life of a checkpoint the process dies; the value completes the sentence 'killed ...'."""

    BEFORE_COMPLETE = "between pre-commit and complete"
    BEFORE_COMMIT = "between complete and commit"


class KillPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Die at `moment` of the `nth` checkpoint that this process completes, not counting those numbered below `first`."""

    moment: KillMoment
    nth: int = 1
    first: int = 0


class KillingStorage(ForwardingStorage):
    """A storage that does what `inner` does until the kill point is reached, and then ends the process with SIGKILL.

    `last_words` is called with the number of the checkpoint right before: to wait for what should be true then, or to say goodbye.
    Tasks get `inner` itself, so that an executor never dies of it.
    """

    def __init__(
        self, inner: Storage, point: KillPoint, *, last_words: Callable[[int], None] = lambda _: None
    ) -> None:
        super().__init__(inner)
        self.point = point
        self._last_words = last_words
        self._seen = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        return _itself, (self.inner,)

    @override
    def create(self, name: str, data: bytes) -> bool:
        """Does not return from the one that is the kill point."""
        checkpoint = self._reached(name)
        if checkpoint is None:
            return super().create(name, data)
        if self.point.moment is KillMoment.BEFORE_COMMIT:
            super().create(name, data)
        self._last_words(checkpoint)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process survived SIGKILL")  # pragma: no cover

    def _reached(self, name: str) -> int | None:
        """The number of the checkpoint whose metadata `name` is, if it is the one to die at."""
        match = _METADATA.fullmatch(name)
        if match is None or int(match[1]) < self.point.first:
            return None
        with self._lock:
            self._seen += 1
            return int(match[1]) if self._seen == self.point.nth else None


def _itself(storage: Storage) -> Storage:
    return storage
