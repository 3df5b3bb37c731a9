"""`join`: what the user declared, and what can be refused before anything starts. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from penstock.config import Duration, choice, duration_us, seconds
from penstock.errors import ConfigError
from penstock.operators.base import LEFT, RIGHT, EventTimeNeed, Node, Operator, SecondInput
from penstock.operators.event_time import TimeColumn
from penstock.operators.join.spec import How
from penstock.operators.window.kinds import WINDOW_END, TimeWindows

UNBOUNDED = "unbounded"

On = str | Sequence[str | tuple[str, str]]
"""A key column that both streams have, or several; a pair where the names differ."""
Within = tuple[Duration, Duration] | str | None
EventTimeOf = str | tuple[str, str] | None
"""The name of the column with the event time, or one for each stream."""


@dataclass(frozen=True, eq=False)
class Join(Operator):
    """Rows of two streams with the same key, side by side: within bounds of time, in the same window, or whatever their time."""

    right: SecondInput
    how: How
    within_us: tuple[int, int] | None = None
    windows: TimeWindows | None = None
    event_time: str | None = None
    """The column of the left stream that the user named; None for the event time of the stream."""
    at: str | None = None
    """The name of a column to add, with the time of each result."""

    may_reject_rows: ClassVar[bool] = False
    late_inputs: ClassVar[tuple[str, ...]] = (LEFT, RIGHT)

    @classmethod
    def checked(
        cls,
        uid: str,
        left: Node,
        right: Node,
        *,
        on: On,
        within: Within,
        window: object,
        how: str,
        event_time: EventTimeOf,
        at: str | None,
    ) -> Join:
        """What the user wrote, or a `ConfigError` that says what is wrong with it."""
        kind = choice("how", how, How)
        keys, right_keys = key_pairs(on, uid)
        within_us = _bounds(within, uid) if window is None else None
        windows = None if window is None else _windows(window, within, uid)
        times = _event_times(event_time, uid)
        if at is not None and not _is_name(at):
            raise ConfigError(
                f"join {uid!r}: at={at!r}: it takes the name of the column that results have their time in, such as 'joined_at'",
                uid=uid,
            )
        if within_us is None and windows is None and (kind is not How.INNER or at or any(times)):
            raise ConfigError(
                f"join {uid!r}: with within='unbounded' rows are kept for ever, so that it is never known that one has no partner, and "
                f"time means nothing: how={how!r}, event_time and at cannot be; bound it, such as within=('-5min', '10min')",
                uid=uid,
            )
        if at is not None and windows is not None:
            raise ConfigError(
                f"join {uid!r}: at={at!r}: the time of a result is that of its window, which ends at window_end; leave it out",
                uid=uid,
            )
        return cls(
            uid, left, keys, SecondInput(right, right_keys, times[1]), kind, within_us, windows, times[0], at
        )

    def describe(self) -> str:
        """The kind of join: inner, left, right or full."""
        return f"{self.how.value} join"

    @property
    def second_input(self) -> SecondInput | None:
        """The stream that was given to the method."""
        return self.right

    @property
    def judges_by_time(self) -> bool:
        """Unless rows are kept for ever."""
        return self.within_us is not None or self.windows is not None

    @property
    def end_column(self) -> str | None:
        """The end of the window, where rows of the same window are joined."""
        return None if self.windows is None else WINDOW_END

    def needs_event_time(self) -> EventTimeNeed | None:
        """Where bounds or windows say how long rows are kept."""
        if not (self.within_us or self.windows):
            return None
        return EventTimeNeed("keeps rows as long as event time says", "they would be kept for ever")

    def result_time(self) -> TimeColumn | None:
        """A pair has two times, and a row without a partner comes out long after its own: so the user must say which one counts."""
        if self.windows is not None:
            return TimeColumn(WINDOW_END, earlier_us=1, of_results=True)
        if self.at is not None:
            return TimeColumn(self.at, of_results=True)
        raise ConfigError(
            f"join {self.uid!r}: its results have the times of two rows, and by either of them they may be late; name a column for the "
            "time of the result, join(..., at='joined_at'), or say which column counts where it is used, such as "
            "window(..., event_time='at')",
            operator=self.uid,
        )


# ── what is refused ────────────────────────────────────────────────────────────────────────────────


def key_pairs(on: On, uid: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both streams."""
    given = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, list | tuple) else ()
    pairs = [
        (one, one) if isinstance(one, str) else tuple(one)
        for one in given
        if isinstance(one, str | tuple | list)
    ]
    names = [name for pair in pairs for name in pair]
    whole = len(pairs) == len(given) and all(len(pair) == 2 for pair in pairs)  # noqa: PLR2004
    if not pairs or not whole or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"operator {uid!r}: on={on!r}: it takes the key column that both streams have, several in a list, or pairs such as "
            "[('order_id', 'id')] where the names differ",
            uid=uid,
        )
    keys, right_keys = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    for one in (keys, right_keys):
        if len(set(one)) < len(one):
            raise ConfigError(f"operator {uid!r}: on={on!r}: a column is named twice", uid=uid)
    return keys, right_keys


def _event_times(given: EventTimeOf, uid: str) -> tuple[str | None, str | None]:
    """The column with the event time of each stream."""
    times = given if isinstance(given, tuple) else (given, given)
    if len(times) != 2 or not all(name is None or _is_name(name) for name in times):  # noqa: PLR2004
        raise ConfigError(
            f"join {uid!r}: event_time={given!r}: it takes the name of a column that both streams have, or a pair of names such as "
            "('ordered_at', 'paid_at'), the left stream's first; None is the event time that a stream has from its source",
            uid=uid,
        )
    return times


def _is_name(given: object) -> bool:
    return isinstance(given, str) and bool(given)


def _bounds(within: Within, uid: str) -> tuple[int, int] | None:
    if within == UNBOUNDED:
        return None
    if within is None:
        raise ConfigError(
            f"join {uid!r}: within is missing: without bounds all rows of both streams would have to be kept for ever. Say how far apart "
            "in event time rows are that belong together, such as within=('-5min', '10min'): a right row from 5 minutes before the left "
            "one to 10 minutes after it; or window=tumbling('1h'); or within='unbounded' if you want them kept",
            uid=uid,
        )
    if not isinstance(within, tuple | list) or len(within) != 2:  # noqa: PLR2004
        raise ConfigError(
            f"join {uid!r}: within={within!r}: it takes two durations, the earliest and the latest right row as seen from the left one, "
            "such as ('-5min', '10min')",
            uid=uid,
        )
    lower, upper = (_signed("within", bound) for bound in within)
    if lower > upper:
        raise ConfigError(
            f"join {uid!r}: within={within!r}: the first bound is later than the second, so that nothing would match",
            uid=uid,
        )
    return lower, upper


def _windows(window: object, within: Within, uid: str) -> TimeWindows:
    if within is not None:
        raise ConfigError(f"join {uid!r}: it has both within= and window=; leave one out", uid=uid)
    if not isinstance(window, TimeWindows):
        raise ConfigError(
            f"join {uid!r}: window={window}: it takes ps.windows.tumbling('1h') or sliding('1h', '10min')",
            uid=uid,
        )
    return window


def _signed(setting: str, given: Duration) -> int:
    """A duration that may be negative."""
    if isinstance(given, timedelta):
        length = given.total_seconds()
    elif isinstance(given, str) and given.strip()[:1] in ("-", "+"):
        length = seconds(setting, given.strip()[1:].strip())
        length = -length if given.strip().startswith("-") else length
    else:
        length = seconds(setting, given)
    return duration_us(setting, given, length)
