"""The model of the interval join that other tests use is Flink's operator, row by row."""

from __future__ import annotations

from flink_scripts import play_join
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.time_models import IntervalJoin, Joined, Pair, Sided
from builders.time_scripts import sided_batches
from services.flink import Flink
from services.tiers import share


def in_any_order(joined: list[Joined]) -> list[tuple[list[Pair], list[Sided]]]:
    return [(sorted(one.pairs), sorted(one.late)) for one in joined]


@given(lower=st.integers(-12, 12), length=st.integers(0, 12), data=st.data())
@settings(max_examples=share(50))
def test_a_row_at_a_time(flink: Flink, lower: int, length: int, data: st.DataObject) -> None:
    """Each row finds the partners that it finds in Flink, and the same rows are late, for bounds of any sign."""
    script = data.draw(sided_batches(lower, lower + length))
    model = IntervalJoin(lower, lower + length, as_flink=True)
    expected = []
    for rows, watermark in script:
        expected += [model.batch([sided], None) for sided in rows]
        expected.append(model.batch([], watermark))
    assert in_any_order(play_join(flink, lower, lower + length, script)) == in_any_order(expected)


@given(lower=st.integers(-12, 12), length=st.integers(0, 12), data=st.data())
@settings(max_examples=share(50))
def test_a_batch_at_a_time(flink: Flink, lower: int, length: int, data: st.DataObject) -> None:
    """A batch gives all that Flink gives for its rows, whatever their order."""
    script = data.draw(sided_batches(lower, lower + length))
    model = IntervalJoin(lower, lower + length, as_flink=True)
    expected = [model.batch(rows, watermark) for rows, watermark in script]
    mixed = [(data.draw(st.permutations(rows)), watermark) for rows, watermark in script]
    steps, played = iter(play_join(flink, lower, lower + length, mixed)), []
    for rows, _ in script:
        of_batch = [next(steps) for _ in range(len(rows) + 1)]
        played.append(
            Joined(
                [pair for one in of_batch for pair in one.pairs],
                [row for one in of_batch for row in one.late],
            )
        )
    assert in_any_order(played) == in_any_order(expected)
