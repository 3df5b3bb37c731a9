"""The models of windows that other tests use are Flink's: its own operators give the same for the same script, row by row."""

from __future__ import annotations

import pytest
from flink_scripts import kinds, one_by_one, play_batches, play_sums, play_windows, summed
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.time_models import Fired, Row, Windowed
from builders.time_scripts import batches
from services.flink import Flink
from services.tiers import share

KINDS = ["tumbling", "sliding", "session", "count"]


def in_any_order(windowed: list[Windowed]) -> list[tuple[list[Fired], list[Row]]]:
    return [(sorted(one.fired), sorted(one.late)) for one in windowed]


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=share(50))
def test_a_row_at_a_time(flink: Flink, name: str, data: st.DataObject) -> None:
    """Each row and each watermark gives exactly what it gives in Flink, and the same rows are late."""
    kind = data.draw(kinds(name))
    script = data.draw(batches(kind.first, kind.marks))
    model = kind.model()
    expected = [model.batch(batch) for batch in one_by_one(script)]
    assert in_any_order(play_windows(flink, kind, script)) == in_any_order(expected)
    assert [sorted(step) for step in play_sums(flink, kind, script)] == [
        sorted(summed(step.fired)) for step in expected
    ]


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=share(50))
def test_a_batch_at_a_time(flink: Flink, name: str, data: st.DataObject) -> None:
    """A batch gives the last result that each of its windows has in Flink, when Flink gets its latest rows first."""
    kind = data.draw(kinds(name))
    script = data.draw(batches(kind.first, kind.marks))
    model = kind.model()
    expected = [model.batch(batch) for batch in script]
    assert in_any_order(play_batches(flink, kind, script)) == in_any_order(expected)
