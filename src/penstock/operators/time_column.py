"""Which column has the time of rows, and which of its times are believed. Driver and executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Limits:
    """Which times of rows are believed, and what becomes of the others."""

    ahead_us: int | None = None
    refuses_absurd: bool = False


ANY_TIME = Limits()


def widest(limits: Sequence[Limits]) -> Limits | None:
    """The limits of streams that meet: a row may be of any of them."""
    if not limits:
        return None
    ahead = [one.ahead_us for one in limits if one.ahead_us is not None]
    return Limits(
        max(ahead) if len(ahead) == len(limits) else None, all(one.refuses_absurd for one in limits)
    )


@dataclass(frozen=True)
class TimeColumn:
    """The time of a row is what stands in this column, less so many microseconds."""

    column: str
    earlier_us: int = 0
    """1 for `window_end`: a window has all moments before its end, and the last of them is the time of its result."""
    of_results: bool = False
    """Whether an operator has given the rows. Their times are believed, however far ahead of the clock: a window may end next month."""
    ahead_us: int | None = None
    """A time so far ahead of the clock is not believed, as the source of the rows says; None: any is."""
    refuses_absurd: bool = False
    """Whether a row without a time that is believed ends the run, as the source of the rows says."""

    def within(self, limits: Limits) -> TimeColumn:
        """The same column with these limits."""
        return replace(self, ahead_us=limits.ahead_us, refuses_absurd=limits.refuses_absurd)
