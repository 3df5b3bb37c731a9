"""A row of little bars that shows how a number went, and the memory of the numbers. Pure; driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

BARS = " ▁▂▃▄▅▆▇█"
MOST = 40
"""Numbers that are remembered."""


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` numbers, each against the largest of them; nothing at all is an empty place."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return "▁" * len(shown)
    steps = len(BARS) - 1
    return "".join(BARS[max(1, round(value / top * steps))] for value in shown)


class Remembered:
    """Numbers by name, each time that somebody looks."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}

    def note(self, name: str, value: float) -> None:
        """The newest."""
        self._values.setdefault(name, deque(maxlen=MOST)).append(value)

    def line(self, name: str, width: int) -> str:
        """How it went."""
        return sparkline(self._values.get(name, ()), width)
