"""Which column has the time of rows. Driver and executors."""

from __future__ import annotations

from dataclasses import dataclass


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
