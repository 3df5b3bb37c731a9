"""Where the command line prints. Driver."""

from __future__ import annotations

from collections.abc import Iterator

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
