"""Picked values and distinct counts in windows, over any backend, against plain Python."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.operator_cluster import OperatorCluster
from builders.window_operators import (
    KEY,
    CountAggregates,
    SessionAggregates,
    SessionModel,
    WindowAggregates,
    rows_table,
)
from penstock.operators.aggregate.columns import (
    AggregateColumn,
    Kind,
    Partial,
    partial_name,
    picked_type,
    state_schema,
    stored_aggregates,
)
from penstock.operators.aggregate.distinct import (
    WHOSE,
    in_order,
    set_sizes,
    set_type,
    united,
    value_names,
    with_sets,
)
from penstock.operators.aggregate.merge import finish
from penstock.operators.bad_records import ROWS
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import PieceLimits
from penstock.operators.process.user_code import Context
from penstock.operators.window import aggregates, session
from penstock.operators.window.base import ABSURD, LATE
from penstock.operators.window.count import CountSpec, run_count_windows
from penstock.operators.window.session import FIRST_ROW, LAST_ROW, SessionRun, SessionSpec
from penstock.operators.window.time import PANE, WindowSpec
from penstock.state.backends.base import OpenState
from penstock.state.handle import Due
from penstock.state.keys import SORT_KEY
from penstock.windows import CountWindows, SessionWindows, TimeWindows
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
TIMES = pa.timestamp("us")
BEFORE = -100
"""No row is late."""


def _picking(name: str, kind: Kind, *, by: bool = False) -> AggregateColumn:
    kept = picked_type(pa.int64(), pa.int64() if by else None, timed=True)
    return AggregateColumn(name, kind, (Partial(partial_name(name, kind), kind, kept),), pa.int64())


PICKED = (
    _picking("opened", Kind.FIRST),
    _picking("closed", Kind.LAST),
    _picking("best", Kind.MAX_BY, by=True),
)
_COUNT = Partial(partial_name("different", Kind.COUNT_DISTINCT), Kind.COUNT, pa.int64())
DISTINCT = AggregateColumn("different", Kind.COUNT_DISTINCT, (_COUNT,), pa.int64(), distinct=(pa.int64(),))
_TOTAL = Partial(partial_name("n", Kind.COUNT), Kind.COUNT, pa.int64())
ROWS_SPEC = AggregateColumn("n", Kind.COUNT, (_TOTAL,), pa.int64())
Rows = list[tuple[int, int]]
(SET,) = with_sets([DISTINCT])
"""The same count, of values that are kept as a set."""


def summed(rows: Rows) -> dict[str, Any]:
    """What the aggregates must be for rows (time, value) in the order in which they came; the best is the last with the largest v // 3."""
    in_time = sorted(rows, key=lambda row: row[0])
    best = max(enumerate(in_time), key=lambda pair: (pair[1][1] // 3, pair[0]))[1]
    return {"opened": in_time[0][1], "closed": in_time[-1][1], "best": best[1], "n": len(rows)}


def partials(rows: Rows) -> dict[str, Any]:
    """What Spark makes of rows."""
    found = summed(rows)
    in_time = sorted(rows, key=lambda row: row[0])
    best = max(enumerate(in_time), key=lambda pair: (pair[1][1] // 3, pair[0]))[1]
    kept = {
        "opened": {"value": found["opened"], "at": in_time[0][0]},
        "closed": {"value": found["closed"], "at": in_time[-1][0]},
        "best": {"value": best[1], "by": best[1] // 3, "at": best[0]},
    }
    return {spec.partials[0].name: kept[spec.name] for spec in PICKED} | {_TOTAL.name: len(rows)}


class RichWindows(WindowAggregates):
    """Picked values and a distinct count of tumbling or sliding windows."""

    def __init__(self, windows: TimeWindows, lateness_us: int) -> None:
        super().__init__(windows, lateness_us)
        self.spec = WindowSpec(KEY, windows, lateness_us, (*PICKED, DISTINCT, ROWS_SPEC), TIMES)
        self.output = self.spec.output

    def _reduced(self, rows: pa.Table, clock: OperatorClock) -> tuple[pa.Table, list[Any]]:
        groups: dict[Any, Rows] = defaultdict(list)
        late = []
        for row in rows.to_pylist():
            pane = self._pane(row["t"], clock)
            groups[row[SORT_KEY], row["k"], pane].append((row["t"], row["v"]))
            if pane in (LATE, ABSURD):
                late.append((row["k"], row["t"], row["v"]))
        made: list[dict[str, Any]] = []
        (value,) = value_names(DISTINCT)
        for (number, key, pane), own in groups.items():
            common = {SORT_KEY: number, "k": key, PANE: pane}
            counted = {} if pane in (LATE, ABSURD) else partials(own)
            made.append({**common, **counted, WHOSE: 0, ROWS: len(own)})
            if counted:
                made += [{**common, WHOSE: 1, value: one, ROWS: 1} for one in {v for _, v in own}]
        stored = [field for field in state_schema(self.spec.specs) if field.name != _COUNT.name]
        numbers = [(name, pa.int64()) for name in (SORT_KEY, PANE, WHOSE, ROWS, value)]
        return pa.Table.from_pylist(made, pa.schema([("k", pa.string()), *numbers, *stored])), late


class RichSessions(SessionAggregates):
    """Picked values and a distinct count of sessions."""

    def __init__(self, windows: SessionWindows, lateness_us: int) -> None:
        super().__init__(windows, lateness_us)
        self.spec = SessionSpec(KEY, windows, lateness_us, (*PICKED, SET, ROWS_SPEC), TIMES)
        self.output = self.spec.output

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        made, groups = [], []
        for (number, key, _), own in self._grouped(rows.to_pylist(), clock).items():
            times = [row["t"] for row in own]
            bounds = {SORT_KEY: number, "k": key, FIRST_ROW: min(times), LAST_ROW: max(times)}
            values = list({row["v"] for row in own})
            made.append(
                {**bounds, **partials([(row["t"], row["v"]) for row in own]), SET.partials[0].name: values}
            )
            groups.append(own)
        bounds_schema = [(name, pa.int64()) for name in (SORT_KEY, FIRST_ROW, LAST_ROW)]
        schema = pa.schema([("k", pa.string()), *bounds_schema, *state_schema(self.spec.specs)])
        run = SessionRun(self.spec, state, clock)
        late = run.take_in(pa.Table.from_pylist(made, schema))
        run.close()
        for is_late, own in zip(late.tolist(), groups, strict=True):
            self.late += [(row["k"], row["t"], row["v"]) for row in own if is_late]
        self._due = Due(event_us=run.waits_for)
        return run.results


rows = st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 60), st.integers(0, 8)), max_size=12)
steps = st.lists(
    rows | rows | st.sampled_from(["checkpoint", "crash", "merge", 1, 2, 3]), min_size=1, max_size=8
)


def play(
    operator: Any, backend: str, steps: list[Any], windows_of: Callable[[Rows], list[tuple[int, int]]]
) -> None:
    """All rows come in time; each window gives one result, that of all its rows in the order in which they came."""
    every: dict[str, Rows] = defaultdict(list)
    got: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        saved = cluster.checkpoint()
        since: list[Any] = []
        for step in steps:
            match step:
                case "checkpoint":
                    saved, since = cluster.checkpoint(), []
                case "crash":
                    cluster.go_back(saved)
                    for again in since:
                        cluster.batch(operator, rows_table(again), BEFORE)
                case "merge":
                    cluster.merge()
                case int():
                    cluster.rescale(step)
                    cluster.batch(operator, rows_table([]))
                case _:
                    got += cluster.batch(operator, rows_table(step), BEFORE)
                    since.append(step)
                    for key, time, value in step:
                        every[key].append((time, value))
        got += cluster.batch(operator, rows_table([]), 1 << 40)
        assert not any(cluster.rows_in(table.name) for table in operator.spec.layout().tables)
    expected = [
        {
            "k": key,
            "window_start": pa.scalar(start, TIMES).as_py(),
            "window_end": pa.scalar(end, TIMES).as_py(),
            **summed(own := [row for row in of_key if start <= row[0] < end]),
            "different": len({value for _, value in own}),
        }
        for key, of_key in every.items()
        for start, end in windows_of(of_key)
    ]
    assert sorted(map(_plain, got)) == sorted(map(_plain, expected))


def _plain(row: dict[str, Any]) -> str:
    return str(sorted(row.items(), key=lambda pair: pair[0]))


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    steps=steps,
    every=st.integers(2, 20),
    more=st.sampled_from([0, 0, 7, 25]),
    lateness_us=st.sampled_from([0, 9]),
    at_once=st.sampled_from([1, 1 << 20]),
)
@settings(max_examples=share(25))
def test_windows_pick_values_and_count_distinct_ones(
    backend: str, steps: list[Any], every: int, more: int, *, lateness_us: int, at_once: int
) -> None:
    """However rows are cut into batches, and whatever happens between, windows pick by event time, count each value once, and keep nothing."""
    windows = TimeWindows(every + more, every)

    def windows_of(rows: Rows) -> list[tuple[int, int]]:
        starts = {
            start
            for time, _ in rows
            for start in range(-60, 61)
            if start % every == 0 and start <= time < start + every + more
        }
        return [(start, start + every + more) for start in starts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregates, "VALUES_BYTES", at_once)
        play(RichWindows(windows, lateness_us), backend, steps, windows_of)


@pytest.mark.parametrize("backend", BACKENDS)
@given(steps=steps, gap=st.integers(1, 25))
@settings(max_examples=share(25))
def test_sessions_pick_values_and_count_distinct_ones(backend: str, steps: list[Any], gap: int) -> None:
    """Sessions that grow together pick by event time, count each value once, and keep nothing, however rows are cut into batches."""

    def windows_of(rows: Rows) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for time in sorted(time for time, _ in rows):
            if found and time <= found[-1][1]:
                found[-1] = (found[-1][0], time + gap)
            else:
                found.append((time, time + gap))
        return found

    play(RichSessions(SessionWindows(gap), 0), backend, steps, windows_of)


class _DistinctInSessions(SessionModel):
    """How many different values each session has."""

    @staticmethod
    def result(key: str, start: int, end: int, values: Sequence[int]) -> dict[str, Any]:
        return {"k": key, "start": start, "end": end, "different": len(set(values))}


timed = st.lists(
    st.tuples(rows, st.integers(-20, 80)) | st.sampled_from(["checkpoint", "crash", "merge", 1, 3]),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    steps=timed,
    gap=st.integers(1, 25),
    lateness_us=st.sampled_from([0, 7, 40]),
    keys=st.sampled_from([1, 4096]),
)
@settings(max_examples=share(25))
def test_late_rows_are_counted_in_their_session_or_come_out(
    backend: str, steps: list[Any], gap: int, *, lateness_us: int, keys: int
) -> None:
    """In every batch, with late rows, sessions that are updated and joined, crashes and other parallelisms, the sets are those of a model."""
    operator = RichSessions(SessionWindows(gap), lateness_us)
    model = _DistinctInSessions(SessionWindows(gap), lateness_us)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "SET_LIMITS", PieceLimits(1 << 20, rows=keys))
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        saved = cluster.checkpoint()
        since: list[Any] = []
        for step in [*steps, ([], 1 << 40)]:
            match step:
                case "checkpoint":
                    saved, since = cluster.checkpoint(), []
                case "crash":
                    cluster.go_back(saved)
                    for again, watermark_us in since:
                        cluster.batch(operator, rows_table(again), watermark_us)
                case "merge":
                    cluster.merge()
                case int():
                    cluster.rescale(step)
                    assert cluster.batch(operator, rows_table([])) == []
                case _:
                    operator.late.clear()
                    model.late.clear()
                    expected = model.batch(*step)
                    got = [
                        {
                            "k": row["k"],
                            "start": pa.scalar(row["window_start"], TIMES).value,
                            "end": pa.scalar(row["window_end"], TIMES).value,
                            "different": row["different"],
                        }
                        for row in cluster.batch(operator, rows_table(step[0]), step[1])
                    ]
                    assert sorted(map(_plain, got)) == sorted(map(_plain, expected))
                    assert sorted(operator.late) == sorted(model.late)
                    since.append(step)
        assert not any(cluster.rows_in(table.name) for table in operator.spec.layout().tables)


class _DistinctOfSoMany(CountAggregates):
    """A distinct count of every so many rows."""

    def __init__(self, windows: CountWindows) -> None:
        self.spec = CountSpec(KEY, windows, (SET,))
        self.output = self.spec.output

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        del context, clock
        each = pa.array([[value] for value in rows.column("v").to_pylist()], SET.partials[0].type)
        columns = [rows.column(SORT_KEY), rows.column("k"), each]
        names = [SORT_KEY, "k", SET.partials[0].name]
        return run_count_windows(self.spec, pa.table(columns, names=names), state)


@pytest.mark.parametrize("backend", BACKENDS)
@given(batches=st.lists(rows, min_size=1, max_size=5), n=st.integers(1, 7))
@settings(max_examples=share(15))
def test_so_many_rows_have_so_many_values(backend: str, batches: list[Any], n: int) -> None:
    """Every n rows of a key give how many different values they have, whatever the batches."""
    every: dict[str, list[int]] = defaultdict(list)
    got: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        operator = _DistinctOfSoMany(CountWindows(n))
        cluster = OperatorCluster(Path(folder), operator.output, backend)
        for batch in batches:
            got += cluster.batch(operator, rows_table(batch))
            for key, _, value in batch:
                every[key].append(value)
    expected = [
        {"k": key, "different": len(set(values[at : at + n]))}
        for key, values in every.items()
        for at in range(0, len(values) - n + 1, n)
    ]
    assert sorted(map(_plain, got)) == sorted(map(_plain, expected))


moments = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))  # noqa: DTZ001 - of a type without a zone
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.sampled_from(["", "a", "é", "a\0"])),
    (pa.binary(), st.sampled_from([b"", b"\0", b"\0\0"])),
    (pa.float64(), st.sampled_from([0.0, 1.5, math.nan, math.inf])),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(38, 2), st.sampled_from([Decimal("9" * 36), Decimal("0.01"), Decimal("-0.01")])),
    (pa.timestamp("us"), moments | st.just(dt.datetime(1, 1, 1))),  # noqa: DTZ001
    (pa.date32(), st.sampled_from([dt.date(1, 1, 1), dt.date(9999, 12, 31)])),
]


@given(data=st.data(), columns=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
def test_sets_unite_as_those_of_python(data: st.DataObject, columns: list[Any]) -> None:
    """Values of every type, of one column or several, are in a union once; null is a set without values; what stored sets count is read."""
    value = st.tuples(*(strategy for _, strategy in columns))
    sets = st.none() | st.lists(value, max_size=4)
    pairs = data.draw(st.lists(st.tuples(sets, sets), max_size=5))
    kind = set_type([one for one, _ in columns])
    before, added = (
        pa.array([None if one is None else [_as_value(v) for v in one] for one in side], kind)
        for side in (zip(*pairs, strict=True) if pairs else ([], []))
    )
    expected = [len({repr(v) for v in [*(a or ()), *(b or ())]}) for a, b in pairs]
    both = united(before, added)
    assert both.type == kind
    assert pc.list_value_length(both).to_pylist() == expected == set_sizes(both).to_pylist()
    assert set_sizes(before).to_pylist() == [len({repr(v) for v in a or ()}) for a, _ in pairs]
    assert repr(in_order(both).to_pylist()) == repr(in_order(united(added, before)).to_pylist())
    name = partial_name("users", Kind.COUNT_DISTINCT)
    stored = stored_aggregates([pa.field(name, kind)])
    assert finish(stored, pa.record_batch([both], names=[name])).to_pydict() == {"users": expected}


def _as_value(parts: tuple[Any, ...]) -> Any:
    return parts[0] if len(parts) == 1 else {f"value_{at}": part for at, part in enumerate(parts)}
