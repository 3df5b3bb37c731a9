"""Answers that were made, kept until what they show has been looked at anew: many may ask for the same. The dashboard's process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST = 64
MOST_BYTES = 32 * 1024 * 1024


class Kept:
    """By what was asked for. One that is as old as what it shows is given again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, asked: Hashable, mark: Hashable, make: Callable[[], bytes]) -> bytes:
        """The answer to `asked`, as it was made for this `mark`, or is made now."""
        before = self._kept.get(asked)
        if before is not None and before[0] == mark:
            self._kept.move_to_end(asked)
            return before[1]
        made = make()
        self._forget(asked)
        self._kept[asked] = (mark, made)
        self._bytes += len(made)
        while len(self._kept) > MOST or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self._forget(next(iter(self._kept)))
        return made

    def _forget(self, asked: Hashable) -> None:
        _, made = self._kept.pop(asked, (None, b""))
        self._bytes -= len(made)
