"""A join that goes on with state that is not quite as it left it: of a join of another kind, or newer than the watermark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builders.interval_joins import Join, Row, left_input, right_input, shown, table
from builders.operator_cluster import OperatorCluster
from penstock.errors import IncompatibleStateError
from penstock.operators.join.spec import How, JoinSpec
from penstock.recovery.state_match import match_state
from penstock.windows import TimeWindows, sliding, tumbling

MS = 1_000


def within(lower_us: int, upper_us: int, how: How = How.INNER) -> JoinSpec:
    return JoinSpec.by_interval(left_input(), right_input(), lower_us, upper_us, how)


def by(windows: TimeWindows, how: How = How.INNER) -> JoinSpec:
    return JoinSpec.by_window(left_input(), right_input(), windows, how)


def unbounded() -> JoinSpec:
    return JoinSpec.unbounded(left_input(), right_input())


REFUSED: dict[str, tuple[Callable[[], JoinSpec], Callable[[], JoinSpec]]] = {
    "another size": (lambda: by(tumbling("10s")), lambda: by(tumbling("20s"))),
    "sliding": (lambda: by(tumbling("10s")), lambda: by(sliding("10s", "5s"))),
    "another offset": (lambda: by(tumbling("10s")), lambda: by(tumbling("10s", offset="1s"))),
    "windows to bounds": (lambda: by(tumbling("10s")), lambda: within(0, 0)),
    "bounds to windows": (lambda: within(-5, 5), lambda: by(tumbling("10s"))),
    "without bounds to bounds": (unbounded, lambda: within(-5, 5)),
    "bounds to without bounds": (lambda: within(-5, 5), unbounded),
    "outer joins": (lambda: within(-5, 5, How.LEFT), lambda: within(-6, 5, How.LEFT)),
    "rows alone": (lambda: within(-5, 5), lambda: within(-5, 5, How.FULL)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_state_of_a_join_of_another_kind_is_refused(name: str) -> None:
    """The moments of its rows mean something else: pairs would be lost."""
    before, now = (make().layout() for make in REFUSED[name])
    with pytest.raises(IncompatibleStateError, match=r"(?s)state .*(input|partner)"):
        match_state(before, now).check("join", 1)
    assert not match_state(now, now).is_other_form


@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
def test_the_bounds_of_an_inner_join_may_change(tmp_path: Path, backend: str) -> None:
    """What was over stays away, what was not matches by the new bounds."""
    narrow, wide = within(0, 5), within(0, 50)
    assert not match_state(narrow.layout(), wide.layout()).is_other_form
    cluster = OperatorCluster(tmp_path, narrow.output, backend)

    def batch(spec: JoinSpec, rows: list[Row], watermark: int) -> list[tuple[int | None, int | None]]:
        return sorted(key[:2] for key in shown(spec, cluster.batch(Join(spec), table(rows), watermark)))

    assert batch(narrow, [("left", "a", 1_000, 1), ("left", "a", 1_010, 2)], 1_008) == []
    assert batch(wide, [("right", "a", 1_020, 3)], 1_012) == [(2, 3)]  # 1 has been over since 1,006
    assert batch(wide, [("left", "a", 1_015, 4)], 1_016) == [(4, 3)]
    assert batch(narrow, [("right", "a", 1_020, 5)], 1_016) == [(4, 5)]


def test_a_row_that_came_out_alone_may_be_gone(tmp_path: Path) -> None:
    """At least once: the checkpoint has the watermark of an earlier batch than the state, in which a merge has dropped what was over."""
    spec = within(0, 5 * MS, How.LEFT)
    operator, cluster = Join(spec), OperatorCluster(tmp_path, spec.output, "filesystem")
    many: list[Row] = [("left", f"k{number}", 1_000 * MS + number, number) for number in range(3_000)]
    cluster.batch(operator, table([("left", "a", 1 * MS, -1), *many]), 0)
    cluster.batch(operator, table([("right", "a", 2 * MS, -2)]), 3 * MS)
    barrier = cluster.clock
    cluster.batch(operator, table([("left", "z", 100 * MS, -3)]), 50 * MS)
    cluster.batch(operator, table([]))
    newer = cluster.files[0] - 1
    assert cluster.merge(lambda refs, moment: range(newer)) == 1
    cluster.clock = barrier
    cluster.number_back(2)
    assert cluster.batch(operator, table([("left", "y", 101 * MS, -4)]), 50 * MS) == []
