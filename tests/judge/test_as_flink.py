"""Penstock's operators give, batch by batch, what Flink's own give for the same rows and watermarks, wherever the state lies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from flink_scripts import kinds, play_batches, summed
from flink_scripts import play_join as flink_join
from flink_scripts import play_timers as flink_timers
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_operators import (
    BACKENDS,
    FORMS,
    Drawn,
    by_interval,
    by_window,
    play_join,
    play_timers,
    play_windows,
)

from builders.time_models import FAR_AWAY, LONG_AGO, Alarm, Batch, IntervalJoin, Joined, Pair, Sided
from builders.time_scripts import KEYS, batches, command_batches, sided_batches
from penstock.operators.join.spec import How
from services.flink import Flink
from services.tiers import share

backends = st.sampled_from(BACKENDS)


@pytest.mark.parametrize("name", ["tumbling", "sliding", "session", "count"])
@given(data=st.data(), backend=backends, form=st.sampled_from(FORMS))
@settings(max_examples=share(40))
def test_windows(flink: Flink, name: str, data: st.DataObject, backend: str, form: str) -> None:
    """The last result that a window has in Flink in a batch, and the same late rows; of sessions if Flink gets the latest rows first."""
    kind = data.draw(kinds(name).filter(lambda kind: kind.second <= (kind.first if name == "sliding" else 0)))
    script = data.draw(batches(kind.first, kind.marks))
    expected = play_batches(flink, kind, script)
    assert play_windows(kind, script, form=form, backend=backend, chance=Drawn(data)) == [
        (sorted(summed(one.fired)), sorted(one.late)) for one in expected
    ]


@given(lower=st.integers(-12, 12), length=st.integers(0, 12), data=st.data(), backend=backends)
@settings(max_examples=share(40))
def test_interval_join(flink: Flink, lower: int, length: int, data: st.DataObject, backend: str) -> None:
    """All pairs of Flink's, in the batch in which it gives them, and the same late rows.

    What comes beside them has a row at the very time of the watermark, whose partner Flink has forgotten by then.
    """
    upper = lower + length
    script = data.draw(sided_batches(lower, upper))
    ours = play_join(by_interval(lower, upper), script, backend=backend, chance=Drawn(data))
    steps = iter(flink_join(flink, lower, upper, script))
    before = LONG_AGO
    for own, (rows, watermark) in zip(ours, script, strict=True):
        theirs = [next(steps) for _ in range(len(rows) + 1)]
        assert sorted(own.late) == sorted(late for step in theirs for late in step.late)
        beside = Counter(own.pairs)
        beside.subtract(pair for step in theirs for pair in step.pairs)
        times: dict[tuple[bool, int | None], int] = {(left, row.value): row.time for left, row in rows}
        assert all(
            count == 0
            or (count == 1 and before in (times.get((True, pair.left)), times.get((False, pair.right))))
            for pair, count in beside.items()
        )
        before = watermark


@pytest.mark.parametrize("name", ["tumbling", "sliding"])
@given(data=st.data(), backend=backends)
@settings(max_examples=share(40))
def test_window_join(flink: Flink, name: str, data: st.DataObject, backend: str) -> None:
    """In the end the pairs that Flink makes of the rows of each window when it closes, and in each batch the same late rows."""
    kind = replace(data.draw(kinds(name).filter(lambda kind: kind.second <= kind.first)), lateness=0)
    script = [*data.draw(batches(kind.first, kind.marks)), Batch((), FAR_AWAY)]
    is_left = {row.value: data.draw(st.booleans(), label="left") for batch in script for row in batch.rows}
    sides = [([Sided(is_left[row.value], row) for row in batch.rows], batch.watermark) for batch in script]
    ours = play_join(by_window(kind), sides, backend=backend, chance=Drawn(data))
    theirs = play_batches(flink, kind, script)
    pairs = [
        Pair(window.key, left, right)
        for batch in theirs
        for window in batch.fired
        for left in window.values
        for right in window.values
        if is_left[left] and not is_left[right]
    ]
    assert sorted(pair for batch in ours for pair in batch.pairs) == sorted(pairs)
    assert [sorted(one.row for one in batch.late) for batch in ours] == [
        sorted(batch.late) for batch in theirs
    ]


@pytest.mark.parametrize("how", list(How))
@given(lower=st.integers(-12, 12), length=st.integers(0, 12), data=st.data(), backend=backends)
@settings(max_examples=share(20))
def test_interval_join_as_its_model(
    how: How, lower: int, length: int, data: st.DataObject, backend: str
) -> None:
    """All rows that come in time find each other, and rows alone come out when nothing can match them any more."""
    upper = lower + length
    script = [*data.draw(sided_batches(lower, upper)), ([], FAR_AWAY)]
    outer = {How.LEFT: ["left"], How.RIGHT: ["right"], How.FULL: ["left", "right"]}.get(how, [])
    model = IntervalJoin(lower, upper, outer=outer)
    expected = [model.batch(rows, watermark) for rows, watermark in script]
    ours = play_join(by_interval(lower, upper, how), script, backend=backend, chance=Drawn(data))
    assert in_any_order(ours) == in_any_order(expected)


@given(script=command_batches(10), data=st.data(), backend=backends)
@settings(max_examples=share(40))
def test_timers(flink: Flink, script: list, data: st.DataObject, backend: str) -> None:
    """The same timers fire in the same batch, those of a key in the same order."""
    expected = [by_key(batch) for batch in flink_timers(flink, script)]
    assert [by_key(batch) for batch in play_timers(script, backend, Drawn(data))] == expected


def in_any_order(joined: list[Joined]) -> list[tuple[list[Pair], list[Sided]]]:
    return [(sorted(one.pairs, key=repr), sorted(one.late)) for one in joined]


def by_key(alarms: list[Alarm]) -> dict[str, list[Alarm]]:
    return {key: [alarm for alarm in alarms if alarm.key == key] for key in KEYS}
