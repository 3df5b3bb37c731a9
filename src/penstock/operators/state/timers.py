"""Timers: what a user writes to be called when a moment has come, what they set, and where it is kept. Driver (declared) and executors.

A timer is a row of (key, moment) in a table by time. It is due when time has come to its moment, and has expired when time has gone past
it: so one that has fired needs no write, and is gone in the next batch. There are two tables, for event time and for the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa

from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.state.cells import shown
from penstock.state.backends.base import TableLayout
from penstock.state.lifetimes import LONG_AGO_US, Lifetime, Measure
from penstock.wording import did_you_mean

if TYPE_CHECKING:
    from penstock.operators.process.column_state import BatchState
    from penstock.operators.process.columns import BatchKeys, BatchTimers
    from penstock.operators.process.user_code import Context

EVENT_TIME, CLOCK = KINDS = ("event_time", "clock")
"""What a timer goes by, in the order in which those of a key fire."""

AT = "__at"
"""The column with the moment, in microseconds since the epoch."""

MOMENTS = pa.timestamp("us", tz="UTC")
"""Moments as columns."""

_TABLES = {EVENT_TIME: ("__timers", Measure.WATERMARK), CLOCK: ("__clock_timers", Measure.FIRED)}
_EPOCH, _EPOCH_WITHOUT_ZONE = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)  # noqa: DTZ001
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Timer(NamedTuple):
    """A timer that fires: the moment for which it was set, and whether that is in `"event_time"` or by the `"clock"`."""

    at: datetime
    by: str


class TakesTimers:
    """The method for timers of code that sees one key at a time."""

    def on_timer(self, key: Any, timer: Timer, ctx: Context) -> Iterable[Any] | None:
        """Handle one timer of one key, and yield results as `process` does. An operator that has this method may set timers.

        Called after `process` has seen the rows of the key in the batch, if it has any, with the same state; for all timers of the key
        that are due, in the order of their moments: first those by event time, then those by the clock. Called again after a
        recovery, on the state as it was at the checkpoint.
        The classic mistake: to take `ctx.now` for the moment of the timer. The call may come later, with the next batch: use `timer.at`.
        """
        raise NotImplementedError


class TakesTimerColumns:
    """The method for timers of code that sees many keys at once."""

    def on_timers(self, keys: BatchKeys, timers: BatchTimers, state: BatchState) -> Any:
        """Handle the timers of many keys that are due, and return or yield results as `process_batch` does. It may set timers then.

        Called after `process_batch` has seen the rows of these keys in the batch, if they have any, with the same state. `timers` is
        ordered by key and has the columns `at` and `by`. Timers that are set here and are due already follow in another call.
        """
        raise NotImplementedError


def takes_timers(operator: object) -> bool:
    """Whether the class says what to do when a timer fires."""
    kind = type(operator)
    return getattr(kind, "on_timer", TakesTimers.on_timer) is not TakesTimers.on_timer or (
        getattr(kind, "on_timers", TakesTimerColumns.on_timers) is not TakesTimerColumns.on_timers
    )


def timer_table(by: str, key: pa.Schema) -> TableLayout:
    """The table for timers of one kind, in an operator with this key."""
    name, measure = _TABLES[by]
    lifetime = Lifetime((), f"{name}_at", 0, measure)
    return TableLayout(
        name,
        pa.schema([*key, pa.field(AT, pa.int64())]),
        pa.schema([lifetime.stamp_field]),
        by_time=True,
        lifetimes=(lifetime,),
    )


def timer_tables(operator: object, key: pa.Schema) -> tuple[TableLayout, ...]:
    """The tables of an operator that takes timers; none for any other."""
    return tuple(timer_table(by, key) for by in KINDS) if takes_timers(operator) else ()


def is_timer_table(name: str) -> bool:
    """Whether a table of state with this name holds timers."""
    return any(name == table for table, _ in _TABLES.values())


def moment(us: int) -> datetime:
    """The moment as user code sees it; beyond Python's calendar its first or last moment."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST if us > 0 else _FIRST


def watermark(us: int) -> datetime | None:
    """The watermark as user code sees it; None where it is not known yet."""
    return None if us <= LONG_AGO_US else moment(us)


def microseconds(at: Any, call: str) -> int:
    """The microseconds of a moment that user code gives; `call` begins the error message."""
    if type(at) is not datetime:
        _check_moment(at, call)
    since = at - (_EPOCH_WITHOUT_ZONE if at.tzinfo is None else _EPOCH)
    whole: int = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return whole


def _check_moment(at: Any, call: str) -> None:
    """Subclasses of `datetime` are those of pandas: without a value, or with nanoseconds that would be lost."""
    if isinstance(at, datetime) and at == at and not getattr(at, "nanosecond", 0):  # noqa: PLR0124 - NaT is not itself
        return
    write = "a datetime, such as row.at + timedelta(minutes=5); one without a zone is taken for UTC"
    raise BadRecordError(f"{call}: {shown(at)} is no moment for a timer: it takes {write}", value=shown(at))


def checked_kind(by: Any, call: str) -> str:
    """Check what a timer goes by. A wrong name ends the run, because no other row makes it right."""
    if by in KINDS:
        return str(by)
    close = did_you_mean(by, KINDS) if isinstance(by, str) else ""
    raise UserCodeError(
        f"{call}: by={by!r} is unknown: a timer goes by 'event_time' or by the 'clock'{f'; {close}' if close else ''}",
        is_wrong_name=True,
    )


def no_event_time(operator: str, call: str) -> UserCodeError:
    """The error for a timer that would wait for ever."""
    return UserCodeError(
        f"operator {operator}: {call} by event time, but no source before it has any, so that it would never fire; write "
        "job.read(..., event_time='column'), or set it by='clock'",
        operator=operator,
        is_wrong_name=True,
    )


class NoTimers:
    """In place of timers, for calls that can set none; `why` follows the name of the call in the error."""

    def __init__(self, operator: str, why: str) -> None:
        self._operator, self._why = operator, why

    def set(self, at: object, by: object) -> NoReturn:
        """Refuse to do that in this call."""
        raise self._refusal("set_timer", at, by)

    def delete(self, at: object, by: object) -> NoReturn:
        """Refuse to do that in this call."""
        raise self._refusal("delete_timer", at, by)

    def _refusal(self, call: str, at: object, by: object) -> UserCodeError:
        return UserCodeError(
            f"operator {self._operator}: {call}({shown(at)}, by={by!r}) {self._why}",
            operator=self._operator,
            is_wrong_name=True,
        )
