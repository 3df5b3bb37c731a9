"""The consoles that commands print to, and sparklines. Driver."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from penstock.wording import duration

_LATEST_S = 250_000_000_000.0


def print_json(found: Any) -> None:
    """Print one value, indented; structs as objects. Units are in the names."""
    json.dump(msgspec.to_builtins(found), sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def moment(at: float) -> str:
    """Date and time (UTC); '' for one that nobody knows."""
    return "" if not at else _calendar(at).strftime("%Y-%m-%d %H:%M:%S")


def time_of_day(at: float) -> str:
    """Of somebody who knows the date (UTC)."""
    return _calendar(at).strftime("%H:%M:%S")


def iso(at: float) -> str:
    """For programs."""
    return _calendar(at).isoformat(timespec="milliseconds")


def _calendar(at: float) -> datetime:
    """What lies in a storage may be damaged: a moment that no calendar has is the last, or the first, that has a place in it."""
    return datetime.fromtimestamp(min(max(at, 0.0), _LATEST_S), UTC)


def ago(seconds: float) -> str:
    """Whole seconds; a clock that is behind another machine's is no reason for a minus."""
    whole = round(seconds)
    return f"{duration(whole)} ago" if whole >= 1 else "just now"


def lasting(seconds: float) -> str:
    """How long something has lasted, in whole seconds."""
    return duration(max(0, round(seconds)))


def about(seconds: float) -> str:
    """The same in its largest unit alone, for a narrow column: `11 min`, `2 h`."""
    return " ".join(lasting(seconds).split()[:2])


def rate(rows_per_s: float) -> str:
    """`52,310 rows/s`."""
    return f"{rows_per_s:,.0f} rows/s"


def in_brief(text: str, longest: int) -> str:
    """On one line, cut where it is longer. What others wrote may hold control characters, which a terminal would obey."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: max(0, longest - 4)]} ..."


def visible(text: str) -> str:
    """The same without characters that a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


PLAIN_COLUMNS = 160
"""The width of tables where there is no terminal to ask."""


class PlainConsole(Console):
    """Prints text as it is, but for characters that a terminal obeys: what lies in a storage was written by others."""

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Colours are no part of the text."""
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
