"""Settings: their meaning, the allowed values, and errors that name both. Driver, before Spark starts."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TypeVar

from penstock.errors import ConfigError

_E = TypeVar("_E", bound=enum.Enum)

Duration = str | timedelta

_UNITS_S = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPELLED_OUT = {"millisecond": "ms", "second": "s", "minute": "min", "hour": "h", "day": "d"}
"""As Spark has them; also with an s."""
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")

MINIMUM_TIMEOUT_S = 0.1
"""A checkpoint takes at least one write to storage; a shorter time-out could only ever expire."""


class Mode(enum.Enum):
    """What a failure may do to the result."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class OnCancel(enum.Enum):
    """What happens to the checkpoints of a job that a person cancels."""

    RETAIN_ON_CANCELLATION = "retain-on-cancellation"
    DELETE_ON_CANCELLATION = "delete-on-cancellation"


class OnBadRecord(enum.Enum):
    """What becomes of a row that an operator or a sink cannot take."""

    FAIL = "fail"
    """The job fails, and says which row it was."""
    SKIP = "skip"
    """The row is left out, and counted."""
    KEEP = "keep"
    """The row goes to the dead-letter stream, and is counted. Chosen by asking for that stream."""


def on_bad_record(value: object) -> OnBadRecord:
    """What a user may write for it; a dead-letter stream is asked for, not named."""
    if value in (OnBadRecord.KEEP, OnBadRecord.KEEP.value):
        raise ConfigError(
            f"on_bad_record={value!r}: to keep bad rows, call bad_records() on what process, aggregate, top or write_to returns, and "
            "write that stream to a sink",
            value=value,
        )
    for member in (OnBadRecord.FAIL, OnBadRecord.SKIP):
        if value in (member, member.value):
            return member
    raise ConfigError(
        f"on_bad_record={value!r} is unknown: choose 'fail' or 'skip', or call bad_records() to keep bad rows",
        value=value,
    )


def seconds(setting: str, value: object, *, minimum_s: float = 0.0, exclusive: bool = False) -> float:
    """Turn '10s', '500ms', '1.5 min' or a `timedelta` into seconds, or refuse it by name."""
    result = _parse(setting, value)
    if result < minimum_s or (exclusive and result == minimum_s):
        bound = f"more than {minimum_s:g} s" if exclusive else f"at least {minimum_s:g} s"
        raise ConfigError(
            f"{setting}={value!r} is too short: it must be {bound}", setting=setting, value=value
        )
    return result


def _parse(setting: str, value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    unit = "" if match is None else _SPELLED_OUT.get(match[2].removesuffix("s"), match[2])
    if match is None or unit not in _UNITS_S:
        raise ConfigError(
            f"{setting}={value!r} is not a duration: use a timedelta or a number with "
            f"{', '.join(_UNITS_S)}, such as '500ms', '10s' or '5min'",
            setting=setting,
            value=value,
        )
    return float(match[1]) * _UNITS_S[unit]


LONGEST_S = 1000 * 365 * 24 * 3600
"""Far from where numbers of microseconds end."""


def duration_us(setting: str, given: Duration, length_s: float) -> int:
    """A length in microseconds; `given` is what the user wrote."""
    if abs(length_s) > LONGEST_S:
        raise ConfigError(f"{setting}={given!r} is longer than 1,000 years", **{setting: given})
    return round(length_s * 1_000_000)


def whole_number(setting: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` if it is an int within the bounds, or refuse it by name."""
    too_large = isinstance(value, int) and maximum is not None and value > maximum
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum or too_large:
        upper = "" if maximum is None else f" to {maximum}"
        raise ConfigError(
            f"{setting}={value!r} is not allowed: it must be a whole number from {minimum}{upper or ' up'}",
            setting=setting,
            value=value,
        )
    return value


def choice(setting: str, value: object, kind: type[_E]) -> _E:
    """Return the member of `kind` that `value` is or names, or refuse it with the list of names."""
    if isinstance(value, kind):
        return value
    for member in kind:
        if value in (member.value, member.name):
            return member
    names = ", ".join(repr(member.value) for member in kind)
    raise ConfigError(f"{setting}={value!r} is unknown: choose one of {names}", setting=setting, value=value)


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When checkpoints are made, how long they may take and how many are kept.

    The defaults are Flink's where it has any, except that a cancelled job keeps its checkpoints.
    """

    interval: Duration = "10s"
    mode: Mode | str = Mode.EXACTLY_ONCE
    timeout: Duration = "10min"
    min_pause: Duration = "0s"
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retained: int = 1
    on_cancel: OnCancel | str = OnCancel.RETAIN_ON_CANCELLATION

    interval_s: float = field(init=False, repr=False)
    timeout_s: float = field(init=False, repr=False)
    min_pause_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checked = {
            "mode": choice("checkpoint.mode", self.mode, Mode),
            "on_cancel": choice("checkpoint.on_cancel", self.on_cancel, OnCancel),
            "interval_s": seconds("checkpoint.interval", self.interval, exclusive=True),
            "timeout_s": seconds("checkpoint.timeout", self.timeout, minimum_s=MINIMUM_TIMEOUT_S),
            "min_pause_s": seconds("checkpoint.min_pause", self.min_pause),
        }
        whole_number("checkpoint.max_concurrent", self.max_concurrent, minimum=1)
        whole_number("checkpoint.tolerable_failures", self.tolerable_failures, minimum=0)
        whole_number("checkpoint.retained", self.retained, minimum=1)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def delivery_mode(self) -> Mode:
        """The mode as the enum, whatever was written."""
        return choice("checkpoint.mode", self.mode, Mode)


def _check_choice(setting: str, value: object, choices: tuple[str, str]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{setting}={value!r} is unknown: choose {choices[0]!r} or {choices[1]!r}",
            setting=setting,
            value=value,
        )


LATE, FAIL = "late", "fail"
WAIT, FOLLOW_CLOCK = "wait", "follow_clock"


@dataclass(frozen=True)
class EventTime:
    """The event time of a source: `job.read(..., event_time=ps.EventTime("at", out_of_order="30s"))`.

    `column`: a timestamp column. The watermark follows the newest row of each partition.
    `out_of_order`: how much older than the newest row of its partition a row may be.
    `idle_after`: a partition without rows for this long no longer holds the watermark; None: it always does.
    `max_ahead`: a time further ahead of the clock is not believed; None: any time is.
    `partition_by`: the columns that tell partitions apart. Penstock knows those of Kafka and `PartitionedLog`.
    `bad_event_time`: a row without a time, or with one that is not believed, is "late", or makes the run "fail".
    `when_all_idle`: while all partitions are idle, the watermark can "wait" for the next row, or "follow_clock". Then the last windows
    close without another row, and rows older than the clock are late.
    """

    column: str
    out_of_order: Duration = "10s"
    idle_after: Duration | None = "1min"
    max_ahead: Duration | None = "1d"
    partition_by: str | Sequence[str] | None = None
    bad_event_time: str = LATE
    when_all_idle: str = WAIT

    def __post_init__(self) -> None:
        _check_choice("bad_event_time", self.bad_event_time, (LATE, FAIL))
        _check_choice("when_all_idle", self.when_all_idle, (WAIT, FOLLOW_CLOCK))
        seconds("out_of_order", self.out_of_order)
        for setting, value in (("idle_after", self.idle_after), ("max_ahead", self.max_ahead)):
            if value is not None:
                seconds(setting, value, exclusive=True)
        if self.when_all_idle == FOLLOW_CLOCK and self.idle_after is None:
            raise ConfigError(
                f"when_all_idle={FOLLOW_CLOCK!r} has no effect with idle_after=None, because no partition is ever idle; give idle_after a "
                "duration, or leave out when_all_idle"
            )

    @classmethod
    def of(cls, uid: str, event_time: str | EventTime | None, **options: object) -> EventTime | None:
        """From the arguments of `job.read`: an object, or a column and the options beside it. None: no event time."""
        usual = {one.name: one.default for one in fields(cls)}
        given = [name for name, value in options.items() if value != usual[name]]
        if event_time is not None and not isinstance(event_time, EventTime):
            return cls(event_time, **options)  # type: ignore[arg-type] # what is no column is refused with the columns
        if given and event_time is None:
            raise ConfigError(
                f"source {uid!r} has {', '.join(given)} and no event_time: say which column has the time of its rows, such as "
                "event_time='at', or leave out the others",
                uid=uid,
            )
        if given:
            raise ConfigError(
                f"source {uid!r} has {', '.join(given)} beside event_time=EventTime(...): give them to EventTime",
                uid=uid,
            )
        return event_time
