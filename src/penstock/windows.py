"""How a stream is cut into windows: what `window(...)` is given. Driver and executors.

    tumbling("1min")            one after the other
    sliding("10min", "1min")    one of ten minutes every minute
    session("30min")            rows of a key that follow each other within the gap
    count(100)                  every hundred rows of a key

A window has all moments from its start up to, but not including, its end. Durations are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from penstock.config import Duration, duration_us, seconds, whole_number
from penstock.errors import ConfigError
from penstock.state.lifetimes import in_microseconds
from penstock.wording import exactly

__all__ = ["count", "session", "sliding", "tumbling"]

MOST_OVERLAPS = 2_000
"""The most sliding windows that a row may be in; a day every minute has 1,440. Each is a row of state, and all are in memory at once."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimeWindows:
    """Windows of `size_us` that begin every `every_us`, counted from `offset_us`."""

    size_us: int
    every_us: int
    offset_us: int = 0

    @property
    def pane_us(self) -> int:
        """The length of a pane: all rows of a pane are in the same windows."""
        return gcd(self.size_us, self.every_us)

    def windows_of(self, panes: Numbers) -> tuple[Numbers, Numbers]:
        """The windows of each pane: positions in `panes` (their first moments), and the last moments of the windows."""
        newest = panes - (panes - self.offset_us) % self.every_us
        counts = (self.size_us - (panes - newest) + self.every_us - 1) // self.every_us
        at = np.repeat(np.arange(len(panes)), counts)
        back = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        return at, newest[at] - back * self.every_us + (self.size_us - 1)

    def starts(self, lasts: Numbers) -> Numbers:
        """The starts of the windows with these last moments."""
        return lasts - (self.size_us - 1)

    def __str__(self) -> str:
        slide = "" if self.every_us == self.size_us else f" every {exactly(self.every_us)}"
        offset = f" from {exactly(self.offset_us)} on" if self.offset_us else ""
        return f"windows of {exactly(self.size_us)}{slide}{offset}"


@dataclass(frozen=True)
class SessionWindows:
    """Sessions: rows of a key of which each follows another within the gap."""

    gap_us: int

    def __str__(self) -> str:
        return f"sessions with gaps of {exactly(self.gap_us)}"


@dataclass(frozen=True)
class CountWindows:
    """Windows of `n` rows of a key."""

    n: int

    def __str__(self) -> str:
        return f"windows of {self.n} rows"


Windows = TimeWindows | SessionWindows | CountWindows


def tumbling(size: Duration, *, offset: Duration = "0s") -> TimeWindows:
    """Windows one after the other: `tumbling("1min")`. They begin at multiples of `size` since 1970 in UTC, moved by `offset`."""
    size_us = _length("size", size)
    return TimeWindows(size_us, size_us, _offset(offset, size_us))


def sliding(size: Duration, every: Duration, *, offset: Duration = "0s") -> TimeWindows:
    """Windows that overlap: with `sliding("10min", "1min")` a window begins every minute, and a row is in ten of them."""
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


def count(n: int) -> CountWindows:
    """A window of every `n` rows of a key. A window that is not full stays open, however much time passes."""
    return CountWindows(whole_number("n", n, minimum=1))


def _length(name: str, given: Duration) -> int:
    length_us = duration_us(name, given, seconds(name, given, exclusive=True))
    if length_us < 1:
        raise ConfigError(
            f"{name}={given!r} is too short: it must be at least a microsecond", **{name: given}
        )
    return length_us


def _offset(given: Duration, every_us: int) -> int:
    return in_microseconds(seconds("offset", given)) % every_us
