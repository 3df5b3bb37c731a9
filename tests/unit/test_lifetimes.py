"""When files fade, which of them are then written anew, and what becomes of state whose time to live is another one now."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.checkpoint.model import StoredLifetime
from penstock.checkpoint.state_columns import columns_of
from penstock.ids import SubtaskId
from penstock.operators.event_time import OperatorClock
from penstock.operators.state.ttl import TimeToLive
from penstock.recovery.state_plan import TtlChanges
from penstock.state.backends.base import StateLayout, TableLayout, with_stamps
from penstock.state.backends.file_backends import choose_merge
from penstock.state.ddl import arrow_schema
from penstock.state.handle import FileRef, StateHandle
from penstock.state.lifetimes import (
    FAR_AWAY_US,
    LONG_AGO_US,
    Ending,
    Expiry,
    Fading,
    Lifetime,
    Measure,
    Moment,
    StateTime,
    fading,
)

KB, MB = 1024, 1024 * 1024


def files(*sizes_and_fades: tuple[int, int]) -> list[FileRef]:
    return [
        FileRef(size // 100, size, "", f"file-{at}", fades=fades or None)
        for at, (size, fades) in enumerate(sizes_and_fades)
    ]


@pytest.mark.parametrize(
    ("refs", "expected"),
    [
        ([(MB, 0), (9 * MB, 0)], None),
        ([(MB, 0), (9 * MB, 51)], None),
        ([(MB, 0), (9 * MB, 50)], range(1, 2)),
        ([(9 * MB, 50)], range(1)),
        ([(MB, 50), (9 * MB, 0)], range(1)),
        ([(MB, 0), (3 * MB, 50), (5 * MB, 0)], range(1, 2)),
        ([(MB, 50), (3 * MB, 50), (5 * MB, 50)], range(2, 3)),
        ([(KB, 0), (100 * KB, 50), (5 * KB, 0)], range(1, 3)),
        ([(KB, 0)] * 4 + [(9 * MB, 50)], range(4)),
    ],
)
def test_a_faded_file_is_written_anew(refs: list[tuple[int, int]], expected: range | None) -> None:
    """The oldest first, with older ones that are small, and only when nothing else is due."""
    assert choose_merge(files(*refs), Moment(50)) == expected


def test_a_file_fades_when_half_of_it_has_expired() -> None:
    """Where little of it can expire, when all of that has."""
    assert fading([], 10) == Fading(None, None)
    assert fading([Ending(5, 9, 10)], 10).clock_us == 5
    assert fading([Ending(5, 9, 4), Ending(7, 8, 6)], 10).clock_us == 7
    assert fading([Ending(5, 9, 10)], 21).clock_us == 9
    assert fading([Ending(1 << 63, 1 << 63, 1)], 1) == Fading(None, None)


def expiry(now_us: int, switched_on_us: int = 0) -> Expiry:
    lifetime = Lifetime(("n",), "__touched_n", 10)
    return Expiry(["n", "m", "__touched_n"], [lifetime], StateTime(now_us, {"__touched_n": switched_on_us}))


def test_each_rewrite_halves_what_is_mortal() -> None:
    """At the moment at which a file fades at least half of it has expired, down to the last row."""
    touched = [3, 1, 4, 1, 5, 9, 2, 6]
    rewrites = 0
    while touched:
        columns = [pa.array(touched), pa.nulls(len(touched), pa.int64()), pa.array(touched)]
        moment = fading(expiry(0).endings(columns), len(touched)).clock_us
        assert moment is not None
        _, gone = expiry(moment).applied(columns)
        assert gone is not None
        left = [stamp for stamp, is_gone in zip(touched, gone, strict=True) if not is_gone]
        assert len(left) <= len(touched) / 2
        touched, rewrites = left, rewrites + 1
    assert rewrites <= 4


def test_a_row_is_gone_when_nothing_is_left_of_it() -> None:
    """A value beside the expired one keeps the row; a null that cannot expire does not; a missing stamp counts from the switch."""
    columns = [pa.array([1, 1, None, 1]), pa.array([None, 2, None, None]), pa.array([5, 5, None, None])]
    values, gone = expiry(15).applied(columns)
    assert [column.to_pylist() for column in values] == [
        [None, None, None, None],
        [None, 2, None, None],
        [None, None, None, None],
    ]
    assert gone is not None
    assert gone.tolist() == [True, False, True, True]
    values, gone = expiry(15, switched_on_us=6).applied(columns)
    assert values[0].to_pylist() == [1, 1, None, 1]
    assert gone is None
    assert values[2].to_pylist() == [6, 6, None, 6]


KEY = arrow_schema("k string")


def layout(ttl_us: int | None, ttl_of_map_us: int | None = None) -> StateLayout:
    mortal = () if ttl_us is None else (Lifetime(("n",), "__touched_n", ttl_us),)
    of_map = () if ttl_of_map_us is None else (Lifetime(("m",), "__touched_m", ttl_of_map_us),)
    table = TableLayout(
        "m",
        arrow_schema("k string, m_key string"),
        with_stamps(arrow_schema("m long"), of_map),
        lifetimes=of_map,
    )
    return StateLayout(KEY, with_stamps(arrow_schema("n long"), mortal), (table,), mortal)


def lifetimes(now: StateLayout, stored: dict[str, StoredLifetime]) -> TtlChanges:
    return TtlChanges({"op": now}, {"op": stored}, 100)


def test_stamps_are_no_columns_of_the_state() -> None:
    """A checkpoint fits whether there is a time to live or not: the columns that it names are the same."""
    with_ttl, without = columns_of(layout(10, 20), {"__touched_n": 3}), columns_of(layout(None))
    assert (with_ttl.key, with_ttl.value, with_ttl.tables) == (without.key, without.value, without.tables)
    assert with_ttl.lifetimes == {
        "__touched_n": StoredLifetime("__values", ("n",), 10, 3),
        "__touched_m": StoredLifetime("m", ("m",), 20, 0),
    }


def test_since_when_a_time_to_live_holds() -> None:
    """As the checkpoint says, or from now on."""
    stored = columns_of(layout(10), {"__touched_n": 3}).lifetimes
    assert lifetimes(layout(99, 20), stored).switched_on == {"op": {"__touched_n": 3, "__touched_m": 100}}


@pytest.mark.parametrize(
    ("before", "now", "brings_back"),
    [
        ((10, 20), (10, 20), False),
        ((10, None), (5, 7), False),
        ((10, None), (11, None), True),
        ((10, 20), (10, None), True),
    ],
)
def test_what_would_come_back(
    before: tuple[int, int | None], now: tuple[int, int | None], *, brings_back: bool
) -> None:
    """A longer time to live, or one that is switched off, needs state that is rid of what has expired."""
    changed = lifetimes(layout(*now), columns_of(layout(*before)).lifetimes)
    assert bool(changed.brings_back) is brings_back
    former, since = changed.former
    assert former["op"] == layout(*before)
    assert set(since["op"]) == set(columns_of(layout(*before)).lifetimes)


@pytest.mark.parametrize(
    ("now", "fades"), [((10, 20), 7), ((10, None), 7), ((5, 20), 105), ((None, 30), 130)]
)
def test_files_fade_when_a_new_time_to_live_has_passed(
    now: tuple[int | None, int | None], fades: int
) -> None:
    """They know nothing of it: without this, what was there before would stay until something else merges them."""
    stored = columns_of(layout(10, 20)).lifetimes
    subtask = SubtaskId("op", 0)
    handle = StateHandle(subtask, "filesystem", 1, (FileRef(1, 1, "", "a", fades=7),))
    (ref,) = lifetimes(layout(*now), stored).fading({subtask: handle})[subtask].refs
    assert ref.fades == fades


def test_a_time_to_live_by_event_time_that_is_new_where_no_watermark_was() -> None:
    """There is no moment to count from: what has no stamp stays until it is touched, whatever the first watermark is."""
    lifetime = Lifetime(("n",), "__event_n", 10, Measure.WATERMARK)
    time = StateTime(0, {"__event_n": LONG_AGO_US}, watermark_us=1 << 50)
    values = [pa.array([1, 2]), pa.array([None, 5], pa.int64())]
    columns, gone = Expiry(["n", "__event_n"], [lifetime], time).applied(values)
    assert gone is not None
    assert gone.tolist() == [False, True]
    assert columns[0].to_pylist() == [1, None]


def test_stamps_of_another_clock_are_other_stamps() -> None:
    """A time to live that goes by event time now does not take moments of the clock for event times."""
    by_clock, by_event = TimeToLive("1h").lifetime("n"), TimeToLive("1h", by="event_time").lifetime("n")
    assert by_clock.stamp != by_event.stamp


@pytest.mark.parametrize(
    ("before_us", "watermark_us", "touched_us"),
    [(5, 7, 7), (5, FAR_AWAY_US, 5), (FAR_AWAY_US, FAR_AWAY_US, LONG_AGO_US)],
)
def test_nothing_is_touched_at_the_end_of_time(before_us: int, watermark_us: int, touched_us: int) -> None:
    """It would live for ever."""
    assert OperatorClock(before_us, watermark_us).touched_us == touched_us
