"""In which stretch of time a row lies, and whether it comes too late, as Spark computes it. Driver."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.operators.clock import OperatorClock
from penstock.operators.late_panes import ABSURD, LATE
from penstock.operators.window_kinds import TimeWindows
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US


def pane(windows: TimeWindows, time: Column, lateness_us: int, clock: OperatorClock) -> Column:
    """The pane of a row, or the number that says that it comes too late. Nothing is computed of times that are no times."""
    size_us, offset = windows.size_us, F.lit(windows.offset_us)
    newest = time - F.pmod(time - offset, F.lit(windows.every_us))
    late = newest <= F.lit(clock.windows_over_us(lateness_us) - size_us + 1)
    own = time - F.pmod(time - offset, F.lit(windows.pane_us))
    no_time = _absurd(time, size_us + lateness_us, clock)
    return F.when(no_time, F.lit(ABSURD)).when(late, F.lit(LATE)).otherwise(own)


def session_pane(gap_us: int, lateness_us: int, time: Column, clock: OperatorClock) -> Column:
    """A stretch of a gap's length: rows in it are in one session."""
    own = time - F.pmod(time, F.lit(gap_us))
    return F.when(_absurd(time, gap_us + lateness_us, clock), F.lit(ABSURD)).otherwise(own)


def late_session(gap_us: int, lateness_us: int, time: Column, clock: OperatorClock) -> Column:
    """Whether a row comes too late, unless its session has others that do not."""
    late = time <= F.lit(clock.windows_over_us(lateness_us) - gap_us + 1)
    return _absurd(time, gap_us + lateness_us, clock) | late


def _absurd(time: Column, longest_us: int, clock: OperatorClock) -> Column:
    """No time, one too far ahead, or one that is so far away that nothing can be added to it."""
    lowest, highest = LONG_AGO_US + longest_us, min(clock.latest_us, FAR_AWAY_US - 2 * longest_us)
    return time.isNull() | (time < F.lit(lowest)) | (time > F.lit(highest))
