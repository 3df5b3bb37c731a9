"""Which operators wait for time, and for which of them it has come. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from penstock.errors import UserCodeError
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import LONG_AGO_US, Measure


def woken(handles: Iterable[StateHandle], watermarks_us: Mapping[str, int], now_us: int) -> frozenset[str]:
    """The operators in whose state something is due when their watermark has come to this, and the clock to that."""
    return frozenset(
        handle.subtask.uid
        for handle in handles
        if handle.due.is_reached(watermarks_us.get(handle.subtask.uid, LONG_AGO_US), now_us)
    )


def waiting_in_event_time(handles: Iterable[StateHandle]) -> dict[str, int]:
    """The operators that wait for a moment in event time, and the first of each."""
    found: dict[str, int] = {}
    for handle in handles:
        uid, first = handle.subtask.uid, handle.due.event_us
        if first is not None:
            found[uid] = min(first, found.get(uid, first))
    return found


def refuse_waiting(handles: Iterable[StateHandle]) -> None:
    """Raise `UserCodeError` if anything waits in event time, which has come to its end: it would never come."""
    for uid, first_us in waiting_in_event_time(handles).items():
        raise UserCodeError(
            f"operator {uid}: event time has come to its end, and it still waits for {_moment(first_us)}: its code sets a timer again "
            "and again. With drain=True a timer that is set when another one fires must be the last some day",
            operator=uid,
        )


def _moment(us: int) -> str:
    try:
        return f"{datetime.fromtimestamp(us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{us} us after 1970"


def living_by_event_time(layouts: Mapping[str, StateLayout]) -> frozenset[str]:
    """The operators with state that ends with event time."""
    return frozenset(
        uid
        for uid, layout in layouts.items()
        if any(
            lifetime.measure is Measure.WATERMARK
            for table in layout.by_name.values()
            for lifetime in table.lifetimes
        )
    )
