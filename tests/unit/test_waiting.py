"""Which operators wait for time, and what is said when one would wait for ever."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import UserCodeError
from penstock.ids import SubtaskId
from penstock.operators.state.timers import CLOCK, EVENT_TIME, timer_table
from penstock.run.watermarks import due_operators, expiring_by_event_time, refuse_pending_timers
from penstock.state.backends.base import StateLayout
from penstock.state.handle import Due, StateHandle
from penstock.state.lifetimes import FAR_AWAY_US

KEY = pa.schema([("k", pa.string())])


def handle(uid: str, due: Due, index: int = 0) -> StateHandle:
    return StateHandle(SubtaskId(uid, index), "memory", 1, due=due)


def test_an_operator_is_woken_when_one_of_its_subtasks_waits_for_this_moment() -> None:
    """By its own watermark, or by the clock; one without a watermark has none that could have come."""
    handles = [
        handle("event", Due(event_us=10)),
        handle("event", Due(event_us=50), 1),
        handle("clock", Due(clock_us=70)),
        handle("nothing", Due()),
        handle("timeless", Due(event_us=0)),
    ]
    assert due_operators(handles, {"event": 9, "clock": 99, "nothing": 99}, 69) == set()
    assert due_operators(handles, {"event": 10, "clock": 99, "nothing": 99}, 69) == {"event"}
    assert due_operators(handles, {"event": 9}, 70) == {"clock"}


@pytest.mark.parametrize(
    ("first_us", "when"), [(1_700_000_000_000_000, "2023-11-14 22:13:20 UTC"), (FAR_AWAY_US, "us after 1970")]
)
def test_who_waits_behind_the_end_of_time_is_named(first_us: int, when: str) -> None:
    """With the moment, and what to do."""
    refuse_pending_timers([handle("clock", Due(clock_us=1)), handle("nothing", Due())])
    with pytest.raises(
        UserCodeError, match=f"operator loop: .* a timer for .*{when} is still pending: .* drain=True"
    ):
        refuse_pending_timers([handle("nothing", Due()), handle("loop", Due(event_us=first_us))])


def test_which_operators_live_by_event_time() -> None:
    """Those with any table that ends with it; timers by the clock do not."""
    layouts = {
        "event": StateLayout(KEY, pa.schema([]), (timer_table(EVENT_TIME, KEY),)),
        "clock": StateLayout(KEY, pa.schema([]), (timer_table(CLOCK, KEY),)),
        "nothing": StateLayout(KEY, pa.schema([("n", pa.int64())])),
    }
    assert expiring_by_event_time(layouts) == {"event"}
