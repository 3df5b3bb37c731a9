"""Windows that go on with the state of others: what may change between two starts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from builders.operator_cluster import OperatorCluster
from builders.window_operators import (
    CountAggregates,
    CountCalls,
    SessionAggregates,
    SessionCalls,
    WindowAggregates,
    WindowCalls,
    rows_table,
)
from penstock.errors import IncompatibleStateError
from penstock.recovery.state_match import match_state

MS = 1_000
LONG_US = 1_000 * MS
KINDS: dict[str, Callable[[int], Any]] = {
    "tumbling": lambda lateness_us: WindowAggregates(ps.windows.tumbling("10ms"), lateness_us),
    "sliding": lambda lateness_us: WindowAggregates(ps.windows.sliding("10ms", "5ms"), lateness_us),
    "sessions": lambda lateness_us: SessionAggregates(ps.windows.session("10ms"), lateness_us),
    "rows": lambda lateness_us: WindowCalls(ps.windows.tumbling("10ms"), lateness_us),
    "rows of sliding": lambda lateness_us: WindowCalls(ps.windows.sliding("10ms", "5ms"), lateness_us),
    "rows of sessions": lambda lateness_us: SessionCalls(ps.windows.session("10ms"), lateness_us),
}

TEN, TWENTY = ps.windows.tumbling("10s"), ps.windows.tumbling("20s")
REFUSED: dict[str, tuple[Any, Any]] = {
    "size": (WindowAggregates(TEN), WindowAggregates(TWENTY)),
    "size, own code": (WindowCalls(TEN), WindowCalls(TWENTY)),
    "offset": (WindowAggregates(TEN), WindowAggregates(ps.windows.tumbling("10s", offset="1s"))),
    "step": (
        WindowAggregates(ps.windows.sliding("10s", "5s")),
        WindowAggregates(ps.windows.sliding("10s", "2s")),
    ),
    "kind": (WindowAggregates(TEN), SessionAggregates(ps.windows.session("10s"))),
    "gap": (SessionAggregates(ps.windows.session("10s")), SessionAggregates(ps.windows.session("20s"))),
    "gap, own code": (SessionCalls(ps.windows.session("10s")), SessionCalls(ps.windows.session("20s"))),
    "number of rows": (CountAggregates(ps.windows.count(3)), CountAggregates(ps.windows.count(4))),
    "number of rows, own code": (CountCalls(ps.windows.count(3)), CountCalls(ps.windows.count(4))),
    "early results": (WindowAggregates(TEN), WindowAggregates(TEN, early_us=5)),
    "no early results": (WindowAggregates(TEN, early_us=5), WindowAggregates(TEN)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_windows_of_another_kind_are_refused(name: str) -> None:
    """Those of the checkpoint would be taken for others; with the same windows nothing is refused."""
    before, now = (one.spec.layout() for one in REFUSED[name])
    with pytest.raises(IncompatibleStateError, match=r"(?s)operator 'w'.*drop_state"):
        match_state(before, now).check("w", 1)
    assert not match_state(now, now).is_other_form


def test_how_often_and_how_long_may_change() -> None:
    """The lateness, and how often early results come, are no part of what is stored."""
    before, now = WindowAggregates(TEN, 0, early_us=5), WindowAggregates(TEN, 7, early_us=50)
    assert not match_state(before.spec.layout(), now.spec.layout()).is_other_form


@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_over_stays_over(tmp_path: Path, kind: str, backend: str) -> None:
    """A late row does not open a window anew whose rows are forgotten; windows that close from now on have the longer lateness."""
    operator = KINDS[kind](0)
    cluster = OperatorCluster(tmp_path, operator.output, backend)

    def batch(watermark_ms: int, *times_ms: int) -> set[int]:
        rows = rows_table([("a", time * MS, 1) for time in times_ms])
        return {row["n"] for row in cluster.batch(operator, rows, watermark_ms * MS)}

    assert batch(30, 1, 2) == {2}
    operator = KINDS[kind](LONG_US)
    cluster.over_us = cluster.clock.watermark_us
    assert batch(30, 3, 36) == set()
    assert [time for _, time, _ in operator.late] == [3 * MS]
    assert batch(60) == {1}
    assert batch(60, 4, 37) == {2}
    assert [time for _, time, _ in operator.late] == [3 * MS, 4 * MS]
