"""Rows of sessions under own code: how long they are kept, and that none of a session that is over comes into another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from builders.window_operators import SessionCalls, rows_table
from penstock.operators.event_time import OperatorClock
from penstock.operators.process.user_code import Context
from penstock.operators.window.session_rows import kept_until
from penstock.state.backends.base import OpenState
from penstock.state.keys import SORT_KEY, KeyBatch
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
S = 1_000_000


def sessions(lateness_us: int = 0) -> SessionCalls:
    return SessionCalls(ps.windows.session("5s"), lateness_us)


def started(folder: Path, backend: str) -> OperatorCluster:
    return OperatorCluster(folder, sessions().output, backend)


def shown(rows: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    at = {
        name: [row[f"window_{name}"].minute * 60 + row[f"window_{name}"].second for row in rows]
        for name in ("start", "end")
    }
    return [(row["k"], *times, row["n"]) for row, *times in zip(rows, at["start"], at["end"], strict=True)]


def seconds_in(cluster: OperatorCluster) -> list[tuple[str, int]]:
    return sorted((row["k"], row["__penstock_time"] // S) for row in cluster.rows_in("rows of sessions"))


@given(st.integers(1, 50), st.integers(0, 10_000), st.integers(0, 10_000))
@settings(max_examples=share(200), deadline=None)
def test_rows_are_kept_for_at_most_twice_the_length_of_their_session(
    gap_us: int, start: int, more: int
) -> None:
    """And never shorter than it lasts."""
    last = start + gap_us - 1 + more
    until = int(kept_until(np.array([start]), np.array([last]), gap_us)[0])
    assert last <= until < start + 2 * (last - start + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_session_that_grows_are_written_a_few_times(tmp_path: Path, backend: str) -> None:
    """They are all there when it closes at last, and gone when as much time has passed again; nothing is deleted for it."""
    cluster, operator = started(tmp_path, backend), sessions()
    for second in range(0, 120, 3):
        assert cluster.batch(operator, rows_table([("a", second * S, 1)]), second * S) == []
    assert len(cluster.stored_rows()) < 40 * 12
    assert shown(cluster.batch(operator, rows_table([]), 200 * S)) == [("a", 0, 122, 40)]
    cluster.batch(operator, rows_table([]), 244 * S)
    assert seconds_in(cluster) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_lateness_brings_no_row_back(tmp_path: Path, backend: str) -> None:
    """Made shorter, rows go with their sessions; made longer again, they do not come back."""
    cluster = started(tmp_path, backend)
    long, short = sessions(60 * S), sessions()
    cluster.batch(long, rows_table([("a", 10 * S, 1), ("c", 2 * S, 1), ("c", 6 * S, 1), ("c", 10 * S, 1)]), 0)
    assert len(cluster.batch(long, rows_table([]), 20 * S)) == 2
    cluster.batch(short, rows_table([("b", 1000 * S, 1)]), 20 * S)
    assert seconds_in(cluster) == [("b", 1000), *(("c", second) for second in (2, 6, 10))]  # kept until 22
    late = [("a", 8 * S, 1), ("a", 12 * S, 1), ("c", 8 * S, 1), ("c", 12 * S, 1)]
    again = cluster.batch(sessions(60 * S), rows_table(late), 21 * S)
    assert sorted(shown(again)) == [("a", 8, 17, 2), ("c", 8, 17, 2)]
    more = cluster.batch(sessions(60 * S), rows_table([("c", 5 * S, 1)]), 21 * S)
    assert shown(more) == [("c", 5, 17, 3)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_go_also_after_a_lost_batch(tmp_path: Path, backend: str) -> None:
    """At most once: the watermark is that of a batch that was lost, and closed the session."""
    cluster, operator = started(tmp_path, backend), sessions()
    cluster.batch(operator, rows_table([("a", 10 * S, 1)]), 0)
    cluster.clock = OperatorClock(0, 20 * S, 0, 0)
    cluster.batch(operator, rows_table([]), 30 * S)
    assert seconds_in(cluster) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_over_the_place_of_another(tmp_path: Path, backend: str) -> None:
    """Rows of one that is over are still stored, and late rows that reach into the present come to lie among them."""
    cluster, operator = started(tmp_path, backend), sessions()
    cluster.batch(operator, rows_table([("a", second * S, 1) for second in (0, 4, 8)]), 0)
    assert shown(cluster.batch(operator, rows_table([]), 14 * S)) == [("a", 0, 13, 3)]
    assert len(seconds_in(cluster)) == 3  # kept until 20
    chain = [("a", second * S, 1) for second in (3, 7, 11)]
    assert cluster.batch(operator, rows_table(chain), 14 * S) == []
    assert seconds_in(cluster) == [("a", second) for second in (0, 3, 7, 11)]
    assert shown(cluster.batch(operator, rows_table([("a", 12 * S, 1)]), 16 * S)) == []
    assert shown(cluster.batch(operator, rows_table([]), 17 * S)) == [("a", 3, 17, 4)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_that_is_newer_than_the_watermark(tmp_path: Path, backend: str) -> None:
    """At least once, a batch that closed a session is done again over its own state: with all rows of the session, or not at all."""
    cluster, operator = started(tmp_path, backend), sessions()
    cluster.batch(operator, rows_table([("a", 1 * S, 1)]), 0)
    barrier = cluster.clock
    closed = cluster.batch(operator, rows_table([]), 50 * S)
    assert shown(closed) == [("a", 1, 6, 1)]
    cluster.clock = barrier
    cluster.number_back(1)
    assert cluster.batch(operator, rows_table([]), 50 * S) in (closed, [])


class Emptied(SessionCalls):
    """Drops the rows of all sessions, as a merge may have done that knew of a later watermark."""

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        del rows, context, clock
        table, layout = state.table(self.spec.table.name), self.spec.table
        for batch in list(table.scan()):
            own = KeyBatch(
                batch.column(SORT_KEY).to_numpy(),
                batch.select(layout.identity.names),
                batch.column("__penstock_time").to_numpy(),
            )
            table.write(own, batch.select(layout.value.names), np.ones(len(own), dtype=np.bool_))
        return []


def test_own_code_is_not_called_without_rows(tmp_path: Path) -> None:
    """There may be sessions whose rows are gone; the others are not touched by it."""
    cluster = started(tmp_path, "memory")
    cluster.batch(sessions(), rows_table([("a", 1 * S, 1)]), 0)
    cluster.batch(Emptied(ps.windows.session("5s")), rows_table([]), 0)
    cluster.batch(sessions(), rows_table([("b", 2 * S, 1)]), 0)
    assert shown(cluster.batch(sessions(), rows_table([]), 50 * S)) == [("b", 2, 7, 1)]
