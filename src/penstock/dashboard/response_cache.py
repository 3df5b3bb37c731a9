"""Caches encoded pages and JSON until the job is read again, so that many readers cost one rendering. The dashboard's process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST = 64
MOST_BYTES = 32 * 1024 * 1024


class ResponseCache:
    """The newest answers, bounded in number and in bytes."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, asked: Hashable, mark: Hashable, make: Callable[[], bytes]) -> bytes:
        """The answer to `asked`. It is made anew when `mark`, the version of what it shows, has changed."""
        before = self._answers.get(asked)
        if before is not None and before[0] == mark:
            self._answers.move_to_end(asked)
            return before[1]
        made = make()
        self._forget(asked)
        self._answers[asked] = (mark, made)
        self._bytes += len(made)
        while len(self._answers) > MOST or (self._bytes > MOST_BYTES and len(self._answers) > 1):
            self._forget(next(iter(self._answers)))
        return made

    def _forget(self, asked: Hashable) -> None:
        _, made = self._answers.pop(asked, (None, b""))
        self._bytes -= len(made)
