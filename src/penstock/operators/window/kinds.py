"""The kinds of windows, as a user names them. Pure; driver and executors. Durations are microseconds.

    tumbling("1min")            one behind the other
    sliding("10min", "1min")    every minute one of ten minutes
    session("30min")            rows of a key that follow each other within the gap
    count_window(100)           every hundred rows of a key

A window has all moments from its start on, up to its end and without it. `last` is the last of them, end - 1 us: it closes when the
watermark has come to that.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.config import Duration, seconds, whole_number
from penstock.errors import ConfigError
from penstock.operators.process.keyed import Output
from penstock.operators.process.user_code import Context, OpensAndCloses
from penstock.operators.rows import Rows
from penstock.state.lifetimes import in_microseconds
from penstock.wording import exactly, in_so_many_us

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""The columns that an aggregate of windows adds."""
LONGEST_S = 1000 * 365 * 24 * 3600
MOST_OVERLAPS = 2_000
"""In so many sliding windows a row may be: a day every minute. Each of them is a row of state, and is in memory with the others."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size that begin every so often, at `offset` and multiples from there."""

    size_us: int
    every_us: int
    offset_us: int = 0

    @property
    def pane_us(self) -> int:
        """Rows of such a stretch are always in the same windows."""
        return gcd(self.size_us, self.every_us)

    def windows_of(self, panes: Numbers) -> tuple[Numbers, Numbers]:
        """The windows of each pane: positions in `panes` (the first moments of each), and the last moments of windows."""
        newest = panes - (panes - self.offset_us) % self.every_us
        counts = (self.size_us - (panes - newest) + self.every_us - 1) // self.every_us
        at = np.repeat(np.arange(len(panes)), counts)
        back = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        return at, newest[at] - back * self.every_us + (self.size_us - 1)

    def starts(self, lasts: Numbers) -> Numbers:
        """Where the windows begin that have these last moments."""
        return lasts - (self.size_us - 1)

    def __str__(self) -> str:
        slide = "" if self.every_us == self.size_us else f" every {exactly(self.every_us)}"
        offset = f" from {exactly(self.offset_us)} on" if self.offset_us else ""
        return f"windows of {exactly(self.size_us)}{slide}{offset}"


@dataclass(frozen=True)
class SessionWindows:
    """Rows of a key of which each follows another within the gap."""

    gap_us: int

    def __str__(self) -> str:
        return f"sessions with gaps of {exactly(self.gap_us)}"


@dataclass(frozen=True)
class CountWindows:
    """Every so many rows of a key."""

    n: int

    def __str__(self) -> str:
        return f"windows of {self.n} rows"


Windows = TimeWindows | SessionWindows | CountWindows

_ONE_BEHIND_THE_OTHER = re.compile(r"windows of (\d+ \w+)(?: from \d+ \w+ on)?")


def size_of_tumbling(said: str) -> int | None:
    """The size of windows that lie one behind the other, as `str` says them; None for others, and for what are no windows."""
    found = _ONE_BEHIND_THE_OTHER.fullmatch(said)
    return None if found is None else in_so_many_us(found[1])


def tumbling(size: Duration, *, offset: Duration = "0s") -> TimeWindows:
    """Windows one behind the other: `tumbling("1min")`. They begin at multiples of `size` since 1970 in UTC, moved by `offset`."""
    size_us = _length("size", size)
    return TimeWindows(size_us, size_us, _offset(offset, size_us))


def sliding(size: Duration, every: Duration, *, offset: Duration = "0s") -> TimeWindows:
    """Windows that overlap: `sliding("10min", "1min")` begins one every minute, and a row is in ten of them."""
    size_us, every_us = _length("size", size), _length("every", every)
    if every_us > size_us:
        raise ConfigError(
            f"sliding({size!r}, {every!r}): windows would begin less often than they are long, so that rows between two of them would be "
            "in none; choose every <= size, and leave out rows with transform(...) if that is what you want",
            size=size,
            every=every,
        )
    if size_us > every_us * MOST_OVERLAPS:
        raise ConfigError(
            f"sliding({size!r}, {every!r}): each row would be in {-(-size_us // every_us):,} windows, more than {MOST_OVERLAPS:,}; begin "
            "windows less often",
            size=size,
            every=every,
        )
    return TimeWindows(size_us, every_us, _offset(offset, every_us))


def session(gap: Duration) -> SessionWindows:
    """A window for each stretch of activity of a key: it ends when no row has come for `gap`."""
    return SessionWindows(_length("gap", gap))


def count_window(n: int) -> CountWindows:
    """A window of every `n` rows of a key. What is not full yet stays open, whatever the time."""
    return CountWindows(whole_number("n", n, minimum=1))


def _length(name: str, given: Duration) -> int:
    length = seconds(name, given, exclusive=True)
    if length > LONGEST_S:
        raise ConfigError(f"{name}={given!r} is longer than 1,000 years", **{name: given})
    length_us = in_microseconds(length)
    if length_us < 1:
        raise ConfigError(
            f"{name}={given!r} is too short: it must be at least a microsecond", **{name: given}
        )
    return length_us


def _offset(given: Duration, every_us: int) -> int:
    return in_microseconds(seconds("offset", given)) % every_us


class TimeWindow(NamedTuple):
    """All moments from `start` on, up to `end` and without it; of the type of the event time, in UTC.

    One that reaches beyond the years 1 to 9999 begins or ends with the first or last moment that Python knows.
    """

    start: datetime
    end: datetime


class WindowProcess(OpensAndCloses, ABC):
    """Own Python code that sees all rows of a window of a key when it closes.

    An instance is pickled into tasks: keep settings in it. Anything else it remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(
        self, key: Any, window: TimeWindow | None, rows: Rows, ctx: Context
    ) -> Iterable[Output] | None:
        """Handle the rows of one window, and yield results (tuples in the order of the schema, or dictionaries).

        Called when the watermark has passed the end of the window, and again with all its rows when late rows come within the allowed
        lateness; of a count window when it is full, with `window` None. Called again after a recovery.
        `ctx.watermark` is where event time has come to, `ctx.now` the time of the batch by the driver's clock.
        `key` is the value of the key column, a tuple for several. `rows` are in the order in which they came, or in that of `order_by`.
        The classic mistake: adding the result to something outside. A window with allowed lateness may have several results, of which
        the last counts: write them by key and window.
        """
