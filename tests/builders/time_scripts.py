"""Scripts for operators of event time, from hypothesis: rows on the borders of windows, at equal times, late by little and by much."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from builders.time_models import CLOCK, EVENT, Batch, Command, Row, Sided

KEYS = ("a", "b")
_MOST_BATCHES = 8
_MOST_ROWS = 6


@st.composite
def watermarks(draw: st.DrawFn, unit: int) -> list[int]:
    """Where the watermark goes at the end of each batch; it may stand still. It begins before 1970 as often as behind it."""
    at = draw(st.integers(-4 * unit, 4 * unit))
    steps = draw(st.lists(st.integers(0, 2 * unit), min_size=1, max_size=_MOST_BATCHES))
    found = []
    for step in steps:
        at += step
        found.append(at)
    return found


@st.composite
def batches(draw: st.DrawFn, unit: int, marks: Sequence[int] = ()) -> list[Batch]:
    """Rows around the watermark; `unit` is the length that the operator knows: the size of its windows, the gap of its sessions.

    `marks` are distances to the watermark at which more happens than elsewhere.
    """
    found, values, before = [], iter(range(1_000)), None
    for watermark in draw(watermarks(unit)):
        ahead = _rows(watermark, unit, marks)
        around = ahead if before is None else st.one_of(ahead, _rows(before, unit, marks))
        rows = draw(st.lists(around, max_size=_MOST_ROWS))
        found.append(Batch(tuple(Row(key, time, next(values)) for key, time in rows), watermark))
        before = watermark
    return found


def _rows(watermark: int, unit: int, marks: Sequence[int]) -> st.SearchStrategy[tuple[str, int]]:
    return st.tuples(st.sampled_from(KEYS), times(watermark, unit, marks))


def times(watermark: int, unit: int, marks: Sequence[int] = ()) -> st.SearchStrategy[int]:
    """Anything around a watermark, and often a border: a multiple of the unit, one before it, one behind it; the watermark itself."""
    borders = st.builds(
        lambda number, beside: number * unit + beside,
        st.integers((watermark // unit) - 3, (watermark // unit) + 3),
        st.integers(-1, 1),
    )
    marked = st.sampled_from([watermark, *(watermark + mark for mark in marks)])
    anywhere = st.integers(watermark - 3 * unit, watermark + 3 * unit)
    return st.one_of(borders, marked, st.integers(watermark - 1, watermark + 1), anywhere)


@st.composite
def sided_batches(draw: st.DrawFn, lower: int, upper: int) -> list[tuple[list[Sided], int]]:
    """Rows of two sides, for joins with these bounds. Many are as far from a watermark as partners from each other."""
    unit = max(abs(lower), abs(upper), 4)
    return [
        ([Sided(draw(st.booleans()), row) for row in batch.rows], batch.watermark)
        for batch in draw(batches(unit, marks=(lower, -lower, upper, -upper)))
    ]


@st.composite
def command_batches(draw: st.DrawFn, unit: int) -> list[tuple[list[Command], int, int]]:
    """Commands for timers, and where the watermark and the clock go. The clock is never before 1970."""
    found, now = [], 0
    for watermark in draw(watermarks(unit)):
        now += draw(st.integers(0, 2 * unit))
        commands = draw(st.lists(_commands(watermark, now, unit), max_size=_MOST_ROWS))
        found.append((commands, watermark, now))
    return found


def _commands(watermark: int, now: int, unit: int) -> st.SearchStrategy[Command]:
    key, action = st.sampled_from(KEYS), st.sampled_from(["s", "s", "d"])
    return st.one_of(
        st.builds(Command, key, action, st.just(EVENT), times(watermark, unit), st.just(0)),
        st.builds(Command, key, action, st.just(CLOCK), times(now, unit), st.just(0)),
        st.builds(Command, key, st.just("again"), st.just(EVENT), st.integers(0, unit), st.integers(0, 3)),
    )
