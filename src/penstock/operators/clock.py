"""What an operator is told about time in a batch. Executors.

In every batch rows come first, and then time goes on. Rows are judged by `before_us`, the watermark at the beginning of the batch, and
update state; then the watermark goes on to `watermark_us`, and timers fire and windows close that are due up to it. Results of an operator
reach the next one as rows of the same batch, before its watermark goes on: what an operator gives is not late at
the next, which does not pass it while it waits (`engine.watermarks`). Only a source that comes back from idleness is behind the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.operators.time_column import TimeColumn
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US


@dataclass(frozen=True)
class OperatorClock:
    """Event time and the clock, at one operator in one batch; in microseconds since the epoch."""

    before_us: int = LONG_AGO_US
    """The watermark when the batch began. A row is late by it, and what was due up to it has been done."""
    watermark_us: int = LONG_AGO_US
    """Where it goes at the end of the batch. At the end of a drained input `FAR_AWAY_US`."""
    fired_us: int = LONG_AGO_US
    """The time of the batch before: timers by the clock up to it have fired."""
    now_us: int = 0
    """The time of this batch. `fired_us` in one that only clears away, after the end of event time: no timers fire in it."""
    latest_us: int = FAR_AWAY_US
    """An event time after this one is absurd: such a row counts as late. Known where the rows are, see `judging`; so is the next field."""
    refuses_absurd: bool = False
    """Whether a row with an absurd event time, or none, ends the run instead."""
    over_us: int = LONG_AGO_US
    """Windows that end up to it had been forgotten when the batch began, also if the lateness has become longer since."""

    def closed_until_us(self, lateness_us: int) -> int:
        """The last moment of windows that no row of the batch can reach any more, nor one before it."""
        return max(self.before_us - lateness_us, self.over_us)

    def at_any_time(self) -> OperatorClock:
        """The same where no row is late for its time alone."""
        return replace(self, before_us=LONG_AGO_US, over_us=LONG_AGO_US)

    @property
    def touched_us(self) -> int:
        """When that was touched which a timer by the clock touches: where event time goes. Its end is no moment to count from."""
        return next((us for us in (self.watermark_us, self.before_us) if us < FAR_AWAY_US), LONG_AGO_US)

    def judging(self, time: TimeColumn) -> OperatorClock:
        """The same for rows with this time. What is absurd their own source says, and nobody of results."""
        if time.of_results:
            return replace(self, latest_us=FAR_AWAY_US, refuses_absurd=False)
        ahead_us = FAR_AWAY_US if time.ahead_us is None else time.ahead_us
        latest_us = min(self.now_us + ahead_us, FAR_AWAY_US)
        return replace(self, latest_us=latest_us, refuses_absurd=time.refuses_absurd)
