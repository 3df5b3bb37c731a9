"""Where the command line prints. Driver."""

from __future__ import annotations

from rich.console import Console


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints text as it is: names, paths and errors may hold square brackets, which are no markup, and colons."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False)
