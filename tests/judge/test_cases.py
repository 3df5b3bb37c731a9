"""Cases that a reader can follow: Flink gives what they say, and so do the models and Penstock."""

from __future__ import annotations

import pytest
from cases import JOINS, WINDOWS, Case, JoinCase, rows_of, sided
from flink_scripts import play_batches, summed
from flink_scripts import play_join as flink_join
from penstock_operators import BACKENDS, FORMS, Undisturbed, by_interval, play_join, play_windows

from builders.time_models import IntervalJoin, Joined, Row, Sided
from services.flink import Flink

windows = pytest.mark.parametrize("case", WINDOWS, ids=lambda case: case.name)
joins = pytest.mark.parametrize("case", JOINS, ids=lambda case: case.name)


def expected_windows(case: Case) -> list[tuple[list[str], list[Row]]]:
    return [(sorted(step.results), sorted(rows_of(step.late))) for step in case.steps]


def expected_joins(case: JoinCase) -> list[tuple[list[str], list[Sided]]]:
    return [(sorted(step.pairs), sorted(sided(*step.late))) for step in case.steps]


def written(joined: Joined) -> tuple[list[str], list[Sided]]:
    return sorted(f"{one.key} {one.left}-{one.right}" for one in joined.pairs), sorted(joined.late)


@windows
def test_windows_of_flink(flink: Flink, case: Case) -> None:
    """And of the model."""
    script = [step.batch for step in case.steps]
    model = case.kind.model()
    for given in ([model.batch(batch) for batch in script], play_batches(flink, case.kind, script)):
        assert [(sorted(summed(one.fired)), sorted(one.late)) for one in given] == expected_windows(case)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
@windows
def test_windows_of_penstock(case: Case, form: str, backend: str) -> None:
    """With one subtask."""
    script = [step.batch for step in case.steps]
    assert play_windows(
        case.kind, script, form=form, backend=backend, chance=Undisturbed()
    ) == expected_windows(case)


@joins
def test_joins_of_flink(flink: Flink, case: JoinCase) -> None:
    """And of the models."""
    script = [(step.rows, step.watermark) for step in case.steps]
    steps, played = iter(flink_join(flink, case.lower, case.upper, script)), []
    for rows, _ in script:
        own = [next(steps) for _ in range(len(rows) + 1)]
        played.append(
            Joined([pair for one in own for pair in one.pairs], [row for one in own for row in one.late])
        )
    assert [written(one) for one in played] == expected_joins(case)
    for as_flink in (True, False):
        model = IntervalJoin(case.lower, case.upper, as_flink=as_flink)
        assert [written(model.batch(*batch)) for batch in script] == expected_joins(case)


@pytest.mark.parametrize("backend", BACKENDS)
@joins
def test_joins_of_penstock(case: JoinCase, backend: str) -> None:
    """With one subtask."""
    script = [(step.rows, step.watermark) for step in case.steps]
    given = play_join(by_interval(case.lower, case.upper), script, backend=backend, chance=Undisturbed())
    assert [written(one) for one in given] == expected_joins(case)
