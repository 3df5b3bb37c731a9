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
    """Print one value as indented JSON; structs become objects."""
    json.dump(msgspec.to_builtins(found), sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def moment(at: float) -> str:
    """Date and time in UTC; '' if unknown."""
    return "" if not at else _calendar(at).strftime("%Y-%m-%d %H:%M:%S")


def time_of_day(at: float) -> str:
    """The time of day in UTC."""
    return _calendar(at).strftime("%H:%M:%S")


def iso(at: float) -> str:
    """ISO 8601 with milliseconds, for programs."""
    return _calendar(at).isoformat(timespec="milliseconds")


def _calendar(at: float) -> datetime:
    """A damaged file may hold any number, so the time is clamped to what a calendar can represent."""
    return datetime.fromtimestamp(min(max(at, 0.0), _LATEST_S), UTC)


def ago(seconds: float) -> str:
    """Whole seconds ago; never negative, although the clocks of two machines may differ."""
    whole = round(seconds)
    return f"{duration(whole)} ago" if whole >= 1 else "just now"


def lasting(seconds: float) -> str:
    """How long something has lasted, in whole seconds."""
    return duration(max(0, round(seconds)))


def about(seconds: float) -> str:
    """A duration in its largest unit only, for a narrow column: `11 min`, `2 h`."""
    return " ".join(lasting(seconds).split()[:2])


def rate(rows_per_s: float) -> str:
    """A rate such as `52,310 rows/s`."""
    return f"{rows_per_s:,.0f} rows/s"


def in_brief(text: str, longest: int) -> str:
    """Put text on one line and shorten it. Control characters are removed: a terminal would obey them."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: max(0, longest - 4)]} ..."


def visible(text: str) -> str:
    """Replace the control characters that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


PLAIN_COLUMNS = 160
"""The width of tables when the output is not a terminal."""


class PlainConsole(Console):
    """A console that replaces control characters: text from a storage may be hostile."""

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def plain_console(*, width: int | None = None, height: int | None = None) -> PlainConsole:
    """A console without markup or emoji: names, paths and errors may contain square brackets and colons."""
    return PlainConsole(width=width, height=height, markup=False, emoji=False)


def table_console() -> Console:
    """A console for tables, with a fixed width if the output is not a terminal."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=PLAIN_COLUMNS)


BARS = " ▁▂▃▄▅▆▇█"
MOST = 40
"""The numbers that a history keeps."""


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` numbers as bars, relative to the largest one."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return "▁" * len(shown)
    steps = len(BARS) - 1
    return "".join(BARS[max(1, round(value / top * steps))] for value in shown)


class RateHistory:
    """The last values of each named rate, for sparklines."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}

    def note(self, name: str, value: float) -> None:
        """Append the newest value of a rate."""
        self._values.setdefault(name, deque(maxlen=MOST)).append(value)

    def line(self, name: str, width: int) -> str:
        """The history as a sparkline."""
        return sparkline(self._values.get(name, ()), width)
