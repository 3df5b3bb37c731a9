"""Windows over any backend against plain Python, whatever happens in between."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.operator_cluster import OperatorCluster
from builders.window_operators import (
    CountAggregates,
    CountCalls,
    CountModel,
    Row,
    SessionAggregates,
    SessionCalls,
    SessionModel,
    TimeWindowModel,
    WindowAggregates,
    WindowCalls,
    in_order,
    plain,
    result,
    rows_table,
)
from penstock.checkpoint.state_columns import columns_of
from penstock.operators.values.python_values import MICROSECONDS
from penstock.operators.window import own_code
from penstock.savepoint.views import views_of
from penstock.windows import CountWindows, SessionWindows, TimeWindows
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]

rows = st.lists(
    st.tuples(st.sampled_from("pqr"), st.none() | st.integers(-30, 60), st.integers(-5, 5)), max_size=10
)
batches = st.tuples(rows, st.integers(-40, 80))
steps = st.lists(batches | st.sampled_from(["checkpoint", "crash", "merge", 1, 2, 3]), min_size=1, max_size=8)
time_windows = st.builds(
    lambda every, more, offset: TimeWindows(every + more, every, offset % every),
    st.integers(1, 20),
    st.integers(0, 25),
    st.integers(0, 19),
) | st.builds(lambda size: TimeWindows(size, size), st.integers(1, 30))


bases = st.sampled_from([0, 0, MICROSECONDS[0] + 30, MICROSECONDS[1] - 60])
"""Times are around 1970, or at the ends of the calendar."""


def shifted(steps: list[Any], by_us: int) -> list[Any]:
    """The same steps at other times."""
    return [
        step
        if isinstance(step, str | int)
        else ([(k, None if t is None else t + by_us, v) for k, t, v in step[0]], step[1] + by_us)
        for step in steps
    ]


def within_calendar(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bounds of windows are moments that Python knows."""
    low, high = MICROSECONDS
    return [row | {name: min(max(row[name], low), high) for name in ("start", "end")} for row in rows]


def play(operator: Any, model: Any, backend: str, steps: list[Any]) -> None:
    """Play the steps on both sides; each batch gives the same, and the same rows are late."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        cluster.skips_idle = True
        saved = cluster.checkpoint()
        since: list[tuple[list[Row], int]] = []
        for step in [*steps, ([], 1 << 62)]:
            match step:
                case "checkpoint":
                    saved, since = cluster.checkpoint(), []
                case "crash":  # what came since the checkpoint comes again, and gives the same again
                    cluster.go_back(saved)
                    for again, watermark_us in since:
                        cluster.batch(operator, rows_table(again), watermark_us)
                case "merge":
                    cluster.merge()
                case int():
                    cluster.rescale(step)  # every subtask takes its part over before the first batch
                    assert cluster.batch(operator, rows_table([])) == []
                case _:
                    operator.late.clear()
                    model.late.clear()
                    expected = model.batch(*step)
                    got = cluster.batch(operator, rows_table(step[0]), step[1])
                    assert in_order(plain(got)) == in_order(within_calendar(expected))
                    assert sorted(operator.late, key=repr) == sorted(model.late, key=repr)
                    since.append(step)
        assert [handle.due.event_us for handle in cluster._handles if handle] == [None] * cluster.parallelism


@pytest.mark.parametrize("kind", [WindowAggregates, WindowCalls])
@pytest.mark.parametrize("backend", BACKENDS)
@given(
    steps=steps,
    windows=time_windows,
    lateness_us=st.sampled_from([0, 0, 7, 40]),
    part_bytes=st.sampled_from([1, 100, 300, 1 << 20]),
    base=bases,
    few_keys=st.sampled_from([0, 1, 64]),
)
@settings(max_examples=share(30))
def test_windows_by_time_equal_lists(
    backend: str,
    kind: Any,
    steps: list[Any],
    windows: TimeWindows,
    *,
    lateness_us: int,
    part_bytes: int,
    base: int,
    few_keys: int,
) -> None:
    """Tumbling and sliding, with late rows, crashes, merges and other parallelisms, give in every batch what plain Python gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_code, "PART_BYTES", part_bytes)
        patch.setattr(own_code, "FEW_KEYS", few_keys)
        play(kind(windows, lateness_us), TimeWindowModel(windows, lateness_us), backend, shifted(steps, base))


@pytest.mark.parametrize("kind", [SessionAggregates, SessionCalls])
@pytest.mark.parametrize("backend", BACKENDS)
@given(steps=steps, gap_us=st.integers(1, 25), lateness_us=st.sampled_from([0, 0, 7, 40]), base=bases)
@settings(max_examples=share(30))
def test_sessions_equal_lists(
    backend: str, kind: Any, steps: list[Any], *, gap_us: int, lateness_us: int, base: int
) -> None:
    """Sessions that grow to both sides, are joined by late rows, and are updated, are in every batch what plain Python says."""
    windows = SessionWindows(gap_us)
    play(kind(windows, lateness_us), SessionModel(windows, lateness_us), backend, shifted(steps, base))


@pytest.mark.parametrize("kind", [CountAggregates, CountCalls])
@pytest.mark.parametrize("backend", BACKENDS)
@given(steps=steps, n=st.integers(1, 7))
@settings(max_examples=share(30))
def test_windows_of_so_many_rows_equal_lists(backend: str, kind: Any, steps: list[Any], n: int) -> None:
    """Every n rows of a key are one window, whatever the batches; the rest stays."""
    model = CountModel(n)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        operator = kind(CountWindows(n))
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        for step in steps:
            match step:
                case str():
                    cluster.merge()
                case int():
                    cluster.rescale(step)
                    assert cluster.batch(operator, rows_table([])) == []
                case rows, _:
                    got = cluster.batch(operator, rows_table(rows))
                    assert sorted(map(repr, got)) == sorted(map(repr, model.batch(rows)))


timed_batches = st.lists(st.tuples(rows, st.integers(-40, 80), st.integers(0, 12)), min_size=1, max_size=10)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    steps=timed_batches,
    size_us=st.integers(5, 60),
    early_us=st.integers(1, 20),
    lateness_us=st.sampled_from([0, 9]),
)
@settings(max_examples=share(30))
def test_early_results(backend: str, steps: list[Any], size_us: int, early_us: int, lateness_us: int) -> None:
    """A window that changes gives a result so long after, unless it closes first; never more often, and none for nothing."""
    windows = TimeWindows(size_us, size_us)
    operator, model = WindowAggregates(windows, lateness_us, early_us), TimeWindowModel(windows, lateness_us)
    awaited: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        cluster.skips_idle = True
        now_us = 1_000
        for given_rows, watermark_us, passed_us in [*steps, ([], 0, 50), ([], 0, 50)]:
            now_us += passed_us
            cluster.now_us = now_us
            before = {window: len(values) for window, values in model.open.items()}
            expected = model.batch(given_rows, watermark_us)
            open_ = {
                window: values
                for window, values in model.open.items()
                if window[1] + size_us - 1 > model.watermark_us
            }
            awaited = {window: due for window, due in awaited.items() if window in open_}
            for window in [window for window, due in awaited.items() if due <= now_us]:
                expected.append(result(window[0], window[1], window[1] + size_us, open_[window]))
                del awaited[window]
                before[window] = len(open_[window])  # what came in this batch is in it
            for window, values in open_.items():
                if len(values) > before.get(window, 0) and window not in awaited:
                    awaited[window] = now_us + early_us
            got = cluster.batch(operator, rows_table(given_rows), watermark_us)
            assert in_order(plain(got)) == in_order(expected)
        assert awaited == {}


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    all_rows=st.lists(
        st.tuples(st.sampled_from("pqr"), st.integers(-30, 60), st.integers(-5, 5)), min_size=1, max_size=25
    ),
    cuts=st.lists(st.integers(0, 25), max_size=5),
    length=st.integers(1, 20),
    kind=st.sampled_from([WindowAggregates, WindowCalls, SessionAggregates, SessionCalls]),
)
@settings(max_examples=share(30))
def test_without_late_rows_the_cut_cannot_be_seen(
    backend: str, all_rows: list[Row], cuts: list[int], length: int, kind: Any
) -> None:
    """However the input is cut into batches: as long as no row is late each window has one result, and the same.

    The watermark stays two moments behind what comes: a row exactly a gap behind a session joins it only while that is open, as in Flink.
    """
    windows: Any = (
        SessionWindows(length) if kind in (SessionAggregates, SessionCalls) else TimeWindows(length, length)
    )
    model = SessionModel(windows) if isinstance(windows, SessionWindows) else TimeWindowModel(windows)
    expected = model.batch(all_rows, 1 << 62)
    operator, got = kind(windows), []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        bounds = sorted({0, len(all_rows), *(cut for cut in cuts if cut < len(all_rows))})
        for start, stop in pairwise(bounds):
            ahead = min((int(row[1] or 0) for row in all_rows[stop:]), default=(1 << 62) + 2)
            got += cluster.batch(operator, rows_table(all_rows[start:stop]), ahead - 2)
    assert operator.late == []
    assert in_order(plain(got)) == in_order(expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_late_row_reads_only_its_key(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand keys that share its windows only those with its sort key are read."""
    operator = WindowCalls(TimeWindows(20, 5), 1_000)
    cluster = OperatorCluster(tmp_path, operator.output, backend)
    cluster.batch(operator, rows_table([(f"k{n}", 12, n) for n in range(1_000)]), 100)
    read, real = [], own_code._Run._read

    def counting(run: Any, part: Any) -> Any:
        read.append(part.num_rows)
        return real(run, part)

    monkeypatch.setattr(own_code._Run, "_read", counting)
    got = cluster.batch(operator, rows_table([("k7", 12, 1)]), 100)
    assert [(row["n"], row["total"]) for row in got] == [(2, 8)] * 4
    assert sum(read) < 1_000


@pytest.mark.parametrize(
    ("operator", "kinds"),
    [
        (WindowAggregates(TimeWindows(20, 5)), {"windows": "windows"}),
        (WindowCalls(TimeWindows(20, 5)), {"rows": "rows of windows"}),
        (SessionAggregates(SessionWindows(20)), {"windows": "windows"}),
        (SessionCalls(SessionWindows(20)), {"windows": "windows", "rows": "rows"}),
    ],
    ids=["windows", "windows with own code", "sessions", "sessions with own code"],
)
def test_a_user_sees_windows_and_their_rows(
    operator: WindowAggregates | WindowCalls | SessionAggregates | SessionCalls, kinds: dict[str, str]
) -> None:
    """Tables that only say when a window is due are not among the states of an operator."""
    views = views_of(columns_of(operator.spec.layout()))
    assert {name: view.kind for name, view in views.items()} == kinds
