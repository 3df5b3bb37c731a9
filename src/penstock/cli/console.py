"""The consoles that commands print to, and sparklines. Driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from penstock.cli.printing import visible

PLAIN_COLUMNS = 160
"""The width of tables where there is no terminal to ask."""


class PlainConsole(Console):
    """Prints text as it is, but for characters that a terminal obeys: what lies in a storage was written by others."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """See `Console.render`. Colours are no part of the text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def plain_console(
    *, stderr: bool = False, width: int | None = None, height: int | None = None
) -> PlainConsole:
    """Names, paths and errors may hold square brackets, which are no markup, and colons."""
    return PlainConsole(stderr=stderr, width=width, height=height, markup=False, emoji=False)


def table_console() -> Console:
    """For tables, which need to know how wide they may be."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=PLAIN_COLUMNS)


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
