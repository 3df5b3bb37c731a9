"""Where the command line prints. Driver."""

from __future__ import annotations

from rich.console import Console

PLAIN_COLUMNS = 160
"""The width of tables where there is no terminal to ask."""


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints text as it is: names, paths and errors may hold square brackets, which are no markup, and colons."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False)


def table_console() -> Console:
    """For tables, which need to know how wide they may be."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=PLAIN_COLUMNS)
