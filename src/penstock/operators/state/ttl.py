"""`TimeToLive`: how long a state is kept, and the stamps that say when it was last touched. Driver (declared) and executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.config import LONGEST_S, seconds
from penstock.errors import ConfigError, InternalError
from penstock.operators.columns import Positions
from penstock.operators.state.timers import CLOCK, EVENT_TIME
from penstock.state.backends.base import OpenTable
from penstock.state.keys import Flags, KeyBatch
from penstock.state.lifetimes import (
    FAR_AWAY_US,
    LONG_AGO_US,
    STAMP_TYPE,
    Lifetime,
    Measure,
    Stamps,
    in_microseconds,
    stamp_name,
)

WRITE, READ = "write", "read"
_MEASURES = {CLOCK: Measure.CLOCK, EVENT_TIME: Measure.WATERMARK}


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
        """Whether reading a value renews it."""
        return self.since == READ

    def lifetime(self, *columns: str, state: str = "") -> Lifetime:
        """The lifetime of these columns, with a stamp for the state."""
        measure = _MEASURES[self.by]
        return Lifetime(columns, stamp_name(state, measure), self.ttl_us, measure)


TTL = str | float | timedelta | TimeToLive
"""What a user may write for it."""


def time_to_live(ttl: TTL | None) -> TimeToLive | None:
    """Read the argument `ttl=`; None for a state that never expires."""
    return ttl if ttl is None or isinstance(ttl, TimeToLive) else TimeToLive(ttl)


def _as_timedelta(number: float) -> timedelta:
    try:
        return timedelta(seconds=number)
    except (OverflowError, ValueError) as error:
        raise ConfigError(f"ttl={number!r} is no duration in seconds: {error}", value=number) from error


# ── when state was last touched ────────────────────────────────────────────────────────────────────


class TouchTimes:
    """When the state of some keys counts as touched in a batch: at the time of the batch, or at their event time."""

    def __init__(self, now_us: int = 0, event_times: Callable[[], Stamps] | None = None) -> None:
        self._now_us = now_us
        self._event_times = event_times
        """One moment for each key; only asked for where something lives by event time."""

    @cached_property
    def _event_us(self) -> Stamps:
        if self._event_times is None:
            raise InternalError(
                "state that lives by event time is touched where the event time of keys is not known"
            )
        return self._event_times()

    def fired(self, keys: Positions, at_us: Stamps) -> None:
        """Timers of keys fire: what that touches is touched at their moments, if nothing of the key is later."""
        np.maximum.at(self._event_us, keys, at_us)

    def only(self, key: int, at_us: int) -> None:
        """Set when the state of a key is touched, after later rows turned out to be bad."""
        self._event_us[key] = at_us

    def of(self, lifetime: Lifetime, keys: Positions) -> Stamps:
        """The stamps of what is touched of the keys at these positions."""
        if lifetime.measure is Measure.WATERMARK:
            return self._event_us[keys]
        return np.full(len(keys), self._now_us, dtype=np.int64)

    def column(self, lifetime: Lifetime, keys: Positions) -> pa.Array:
        """The stamps as a column."""
        return pa.array(self.of(lifetime, keys))

    def of_rows(
        self, lifetimes: Sequence[Lifetime], keys: Positions, table: OpenTable, rows: KeyBatch
    ) -> list[pa.Array]:
        """The stamps of rows of a table that are touched: each is of the key at one of these positions.

        What is stored is read only where time goes by the rows: the clock never goes back.
        """
        if not any(lifetime.measure is Measure.WATERMARK for lifetime in lifetimes):
            return [self.column(lifetime, keys) for lifetime in lifetimes]
        order = np.lexsort((rows.sort_keys if rows.orders is None else rows.orders, rows.sort_keys))
        stored = table.read(rows.take(order))[0]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        stamps = stored.select([lifetime.stamp for lifetime in lifetimes]).take(pa.array(back))
        return [
            pa.array(not_earlier(self.of(lifetime, keys), before))
            for lifetime, before in zip(lifetimes, stamps.columns, strict=True)
        ]


def not_earlier(touched: Stamps, stored: pa.Array) -> Stamps:
    """The stamps of what is touched now: a touch by an older row does not shorten a life. Null is none.

    The end of time is the stamp of what was stored before the operator knew event time: the first touch gives it one.
    """
    before = stored.fill_null(LONG_AGO_US).to_numpy(zero_copy_only=False)
    return np.maximum(touched, np.where(before == FAR_AWAY_US, LONG_AGO_US, before))


class ColumnStamps:
    """The stamps of one column of the row of a key; `renews` when a look at the value counts as a touch."""

    def __init__(self, lifetime: Lifetime, *, renews: bool) -> None:
        self.name = lifetime.stamp
        self.renews = renews
        self.lifetime = lifetime
        self._stored = pa.nulls(0, STAMP_TYPE)

    def load(self, stored: pa.RecordBatch) -> None:
        """Take those of the keys that come next."""
        self._stored = stored.column(self.name)

    @property
    def known(self) -> Flags:
        """The keys that have a value."""
        known: Flags = self._stored.is_valid().to_numpy(zero_copy_only=False)
        return known

    def column(self, values: pa.Array | pa.ChunkedArray, touched: Flags, times: TouchTimes) -> pa.Array:
        """The stamps of the same keys when these were touched; null where there is no value."""
        known = self._stored.fill_null(0) if self._stored.null_count else self._stored
        stamps = known.to_numpy(zero_copy_only=False).copy()
        keys = np.flatnonzero(touched)
        stamps[keys] = not_earlier(times.of(self.lifetime, keys), self._stored.take(pa.array(keys)))
        if not values.null_count:
            return pa.array(stamps)
        return pa.array(stamps, mask=np.asarray(values.is_null()))
