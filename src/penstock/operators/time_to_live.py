"""`TimeToLive`: how long a state is kept after it was last touched. Driver (declared) and executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from penstock.config import seconds
from penstock.errors import ConfigError
from penstock.operators.timers import CLOCK, EVENT_TIME
from penstock.state.lifetimes import Lifetime, Measure, in_microseconds, stamp_name

WRITE, READ = "write", "read"
_MEASURES = {CLOCK: Measure.CLOCK, EVENT_TIME: Measure.WATERMARK}
LONGEST_S = 1000 * 365 * 24 * 3600
"""Far from where numbers of microseconds end."""


@dataclass(frozen=True)
class TimeToLive:
    """How long a state is kept: `ttl=TimeToLive("24h", since="read")`; `ttl="24h"` alone counts from the last write.

    `duration`: '24h', a number of seconds, or a `timedelta`. `since`: "write", or "read" for the last read or write.
    `by`: "clock" for the driver's clock at the beginning of the batch, or "event_time": from the newest event time of the key's rows in
    the batch that touched it, until the watermark has come so far. Neither ever goes back, also over a restart.
    """

    duration: str | float | timedelta
    since: str = WRITE
    by: str = CLOCK
    ttl_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.duration
        if given in (0, 0.0) and not isinstance(given, bool):
            raise ConfigError(f"ttl={given!r} is too short: it must be more than 0", value=given)
        if isinstance(given, int | float) and not isinstance(given, bool):
            given = _as_timedelta(given)
        length = seconds("ttl", given, exclusive=True)
        if length > LONGEST_S:
            raise ConfigError(
                f"ttl={self.duration!r} is more than {LONGEST_S // (365 * 24 * 3600):,} years; leave ttl out for what is kept for ever",
                value=self.duration,
            )
        ttl_us = in_microseconds(length)
        if ttl_us < 1:
            raise ConfigError(f"ttl={self.duration!r} is too short: it must be at least a microsecond")
        if self.since not in (WRITE, READ):
            raise ConfigError(
                f"since={self.since!r} is unknown: a time to live counts from the last 'write', or from the last 'read' or write",
                value=self.since,
            )
        if self.by not in _MEASURES:
            raise ConfigError(
                f"by={self.by!r} is unknown: a time to live goes by the 'clock', or by 'event_time'",
                value=self.by,
            )
        object.__setattr__(self, "ttl_us", ttl_us)

    @property
    def renews(self) -> bool:
        """Whether reading renews it."""
        return self.since == READ

    def lifetime(self, *columns: str, state: str = "") -> Lifetime:
        """That of these columns, with a stamp for the state."""
        measure = _MEASURES[self.by]
        return Lifetime(columns, stamp_name(state, measure), self.ttl_us, measure)


TTL = str | float | timedelta | TimeToLive
"""What a user may write for it."""


def time_to_live(ttl: TTL | None) -> TimeToLive | None:
    """What `ttl=` means; None for a state that never expires."""
    return ttl if ttl is None or isinstance(ttl, TimeToLive) else TimeToLive(ttl)


def _as_timedelta(number: float) -> timedelta:
    try:
        return timedelta(seconds=number)
    except (OverflowError, ValueError) as error:
        raise ConfigError(f"ttl={number!r} is no duration in seconds: {error}", value=number) from error
