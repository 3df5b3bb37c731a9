"""Exact counts of distinct values, without Spark: what it gives of a batch is made here."""

from __future__ import annotations

import math
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.operator_cluster import BuiltIn, OperatorCluster
from penstock.checkpoint.state_columns import columns_of
from penstock.errors import InternalError
from penstock.operators import columns
from penstock.operators.aggregate import distinct
from penstock.operators.aggregate import operator as run_module
from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial, output_schema, partial_name
from penstock.operators.aggregate.distinct import WHOSE, aggregate_layout, counting_distinct, value_names
from penstock.operators.aggregate.operator import run_aggregate
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import PieceLimits
from penstock.operators.process.user_code import Context
from penstock.operators.state.task_time import TaskTime
from penstock.operators.state.ttl import TimeToLive
from penstock.recovery.state_match import Compatibility, match_state
from penstock.savepoint.views import views_of
from penstock.state.backends.base import OpenState, StateLayout
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
TEXT, NUMBER = pa.string(), pa.float64()


class Click(NamedTuple):
    k: str
    user: str | None
    x: float | None


def counting(name: str, *types: pa.DataType) -> AggregateColumn:
    count = Partial(partial_name(name, Kind.COUNT_DISTINCT), Kind.COUNT, pa.int64())
    return AggregateColumn(name, Kind.COUNT_DISTINCT, (count,), pa.int64(), distinct=types)


ROWS = AggregateColumn(
    "n", Kind.COUNT, (Partial(partial_name("n", Kind.COUNT), Kind.COUNT, pa.int64()),), pa.int64()
)
SPECS = [counting("users", TEXT), ROWS, counting("both", TEXT, NUMBER), counting("numbers", NUMBER)]
VALUES = {
    "users": lambda row: (row.user,),
    "both": lambda row: (row.user, row.x),
    "numbers": lambda row: (row.x,),
}
OUTPUT = pa.schema([("k", TEXT), *output_schema(SPECS)])


class Counts(BuiltIn):
    """The operator."""

    def layout(self, key: pa.Schema) -> StateLayout:
        return aggregate_layout(SPECS, key)

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        return run_aggregate(SPECS, rows, state, key_names=["k"])


def grouped(rows: list[Click]) -> pa.Table:
    """What Spark makes of a batch: a row a key, and a row a distinct value."""
    schema = [("k", TEXT), (WHOSE, pa.int32()), (ROWS.partials[0].name, pa.int64())]
    for spec in counting_distinct(SPECS):
        schema += list(zip(value_names(spec), spec.distinct, strict=True))
    made: list[dict[str, Any]] = [
        {"k": key, WHOSE: 0, ROWS.partials[0].name: sum(row.k == key for row in rows)}
        for key in sorted({row.k for row in rows})
    ]
    for number, spec in enumerate(counting_distinct(SPECS), 1):
        values = {(row.k, known(VALUES[spec.name](row))) for row in rows}
        made += [
            {"k": key, WHOSE: number, **dict(zip(value_names(spec), value, strict=True))}
            for key, value in values
            if value is not None
        ]
    return pa.Table.from_pylist(made, pa.schema(schema))


def known(value: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """As Spark compares it, one zero and one NaN; None where a part is missing."""
    if None in value:
        return None
    return tuple(_number(part) if isinstance(part, float) else part for part in value)


def _number(value: float) -> float:
    return math.nan if math.isnan(value) else value + 0.0


clicks = st.builds(
    Click,
    st.sampled_from("pqr"),
    st.none() | st.sampled_from(["", "ada", "bob", "eve", "x" * 80]),
    st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5, -2.0]),
)
batches = st.lists(clicks, min_size=1, max_size=12)
events = st.lists(batches | batches | st.sampled_from([1, 2, 3]), min_size=2, max_size=7)


@pytest.mark.parametrize("backend", BACKENDS)
@given(events=events, rows=st.sampled_from([1, 100]), at_once=st.sampled_from([1, 1 << 20]))
@settings(max_examples=share(30))
def test_counts_equal_sets(backend: str, events: list[Any], rows: int, at_once: int) -> None:
    """Over random batches, lost machines and rescales the counts are those of the sets of all values so far."""
    seen: dict[tuple[str, str], set[Any]] = {}
    number: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "LIMITS", PieceLimits(bytes=1 << 20, rows=rows))
        patch.setattr(distinct, "VALUES_BYTES", at_once)
        patch.setattr(columns, "NARROW_BYTES", 40 if at_once == 1 else 1 << 20)
        cluster = OperatorCluster(Path(folder), OUTPUT, backend)
        for event in events:
            if isinstance(event, int):
                cluster.rescale(event)
                cluster.batch(Counts(), grouped([]))
                continue
            for row in event:
                number[row.k] = number.get(row.k, 0) + 1
                for name, values in VALUES.items():
                    value = known(values(row))
                    if value is not None:
                        seen.setdefault((row.k, name), set()).add(str(value))
            expected = [
                {"k": key, "n": number[key], **{name: len(seen.get((key, name), ())) for name in VALUES}}
                for key in sorted({row.k for row in event})
            ]
            results = cluster.batch(Counts(), grouped(event))
            assert sorted(results, key=lambda row: row["k"]) == [
                {name: row[name] for name in OUTPUT.names} for row in expected
            ]


def test_values_are_cut_before_they_become_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key may have more in a batch than an array holds."""
    sizes: list[int] = []
    as_batch = distinct.as_batch

    def measured(part: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        sizes.append(part.nbytes)
        return as_batch(part, schema)

    monkeypatch.setattr(distinct, "as_batch", measured)
    monkeypatch.setattr(distinct, "VALUES_BYTES", 1000)
    monkeypatch.setattr(columns, "NARROW_BYTES", 2000)
    clicks = [Click("p", f"{at}" + "x" * 80, 1.0) for at in range(100)]
    (result,) = OperatorCluster(tmp_path, OUTPUT).batch(Counts(), grouped(clicks))
    assert (result["users"], result["both"]) == (100, 100)
    assert sum(sizes) > 8000
    assert max(sizes) < 1500


def test_values_without_their_key_are_a_bug(tmp_path: Path) -> None:
    """Each key has one row with its aggregates; values of a key that has none are refused, and nothing is written."""
    rows = grouped([Click("p", "ada", 1.0)])
    with pytest.raises(InternalError, match="0 rows with aggregates for 1 key"):
        OperatorCluster(tmp_path, OUTPUT).batch(Counts(), rows.filter(pa.compute.greater(rows[WHOSE], 0)))


TTL_US = 10
NEWEST = "__newest"


class MortalCounts(Counts):
    """The same with a time to live."""

    def __init__(self, by: str, ttl_us: int = TTL_US) -> None:
        self._ttl = TimeToLive(timedelta(microseconds=ttl_us), by=by)

    def layout(self, key: pa.Schema) -> StateLayout:
        return aggregate_layout(SPECS, key, self._ttl)

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        lifetimes = self.layout(pa.schema([("k", TEXT)])).lifetimes
        time = TaskTime(clock, NEWEST)
        return run_aggregate(SPECS, rows, state, key_names=["k"], lifetimes=lifetimes, time=time)


NOTHING = grouped([]).append_column(NEWEST, pa.array([], pa.int64()))
timed = st.tuples(batches, st.integers(0, 9), st.integers(0, 4))
timed_events = st.lists(
    timed | timed | timed | st.sampled_from([1, 2, 3, "merge", "crash"]), min_size=2, max_size=12
)


@pytest.mark.parametrize("by", ["clock", "event_time"])
@pytest.mark.parametrize("backend", BACKENDS)
@given(events=timed_events)
@settings(max_examples=share(20))
def test_values_live_as_long_as_their_key(backend: str, by: str, events: list[Any]) -> None:
    """A key that is touched often enough forgets no value, however old; one that was forgotten begins with nothing; then all is gone."""
    known_keys: dict[str, tuple[int, int, dict[str, set[str]]]] = {}
    operator, now = MortalCounts(by), 100
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cluster = OperatorCluster(Path(folder), OUTPUT, backend)
        cluster.now_us = now
        for event in events:
            match event:
                case "merge":
                    cluster.merge()
                case "crash":
                    cluster.go_back(cluster.checkpoint())
                case int():
                    cluster.rescale(event)
                    cluster.batch(operator, NOTHING)
                case rows, later, older:
                    now += later
                    cluster.now_us = now
                    before = now if by == "clock" else cluster.clock.watermark_us
                    table = grouped(rows)
                    newest = max(now - older, 0)
                    table = table.append_column(NEWEST, pa.array([newest] * table.num_rows, pa.int64()))
                    results = cluster.batch(operator, table, now)
                    expected = _mortal(
                        known_keys, rows, before, now if by == "clock" else max(newest, before)
                    )
                    assert sorted(results, key=lambda row: row["k"]) == expected
        cluster.now_us = now + 3 * TTL_US
        cluster.batch(operator, NOTHING, now + 3 * TTL_US)
        tables = operator.layout(pa.schema([("k", TEXT)])).tables
        assert not cluster.stored()
        assert not any(cluster.rows_in(table.name) for table in tables)


def _mortal(
    known_keys: dict[str, tuple[int, int, dict[str, set[str]]]], rows: list[Click], now: int, touched: int
) -> list[dict[str, Any]]:
    """The results of a batch, in plain Python: by key when it was last touched, how many rows it had, and its values."""
    for key in {row.k for row in rows}:
        last, _, _ = known_keys.get(key, (None, 0, {}))
        if last is None or last + TTL_US <= now:
            known_keys[key] = (touched, 0, {name: set() for name in VALUES})
    for row in rows:
        last, number, seen = known_keys[row.k]
        for name, values in VALUES.items():
            value = known(values(row))
            if value is not None:
                seen[name].add(str(value))
        known_keys[row.k] = (max(last, touched), number + 1, seen)
    found = [
        {"k": key, "n": known_keys[key][1], **{name: len(known_keys[key][2][name]) for name in VALUES}}
        for key in sorted({row.k for row in rows})
    ]
    return [{name: row[name] for name in OUTPUT.names} for row in found]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ttl_us", [4, 30])
def test_another_time_to_live_counts_no_value_twice(backend: str, ttl_us: int, tmp_path: Path) -> None:
    """Values that were written long before it was made shorter, or longer, are still known while their key is touched."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    click = [Click("p", "ada", 1.0)]
    for now in (100, 108, 109, 112, 115, 118, 121):
        cluster.now_us = now
        operator = MortalCounts("clock", TTL_US if now < 109 else ttl_us)
        (result,) = cluster.batch(
            operator, grouped(click).append_column(NEWEST, pa.array([0] * 4, pa.int64()))
        )
        assert result["users"] == 1


def test_values_change_to_another_measure_of_time(tmp_path: Path) -> None:
    """A time to live that goes by event time, after one by the clock, counts no value twice, wherever the two stand."""
    for offset in (-1000, 0, 1000):
        cluster = OperatorCluster(tmp_path / str(offset), OUTPUT, "memory")
        for now in range(100, 190, 6):
            cluster.now_us = now
            operator = MortalCounts("clock" if now < 130 else "event_time")
            users = ["ada", "bob"] if now in (136, 184) else ["ada"]
            table = grouped([Click("p", user, 1.0) for user in users])
            table = table.append_column(NEWEST, pa.array([now + offset] * table.num_rows, pa.int64()))
            (result,) = cluster.batch(operator, table, now + offset)
            assert result["users"] == (1 if now < 136 else 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_of_an_earlier_life_do_not_count_while_the_clock_stands(backend: str, tmp_path: Path) -> None:
    """It does when it was set back, or the job has come from a machine whose clock was ahead; event time goes on."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    cluster.now_us, found = 1000, []
    for key, user, at in (("p", "ada", 100), ("p", "bob", 101), ("q", "eve", 112), ("p", "ada", 113)):
        table = grouped([Click(key, user, 1.0)])
        table = table.append_column(NEWEST, pa.array([at] * table.num_rows, pa.int64()))
        (result,) = cluster.batch(MortalCounts("event_time"), table, at)
        found.append((key, result["users"], result["n"]))
    assert found == [("p", 1, 1), ("p", 2, 2), ("q", 1, 1), ("p", 1, 1)]


def test_a_time_to_live_is_a_form_of_its_own() -> None:
    """Counts without one would know values that have no life: they begin anew, allowed by their name; other lengths go along, unseen."""
    key = pa.schema([("k", TEXT)])
    plain, mortal, longer = (
        aggregate_layout(SPECS, key, ttl) for ttl in (None, TimeToLive("1h"), TimeToLive("2h"))
    )
    names = {"users", "both", "numbers"}
    lost = {one.name for one in match_state(plain, mortal).differences if one.verdict is Compatibility.LOSES}
    assert lost == names
    assert match_state(plain, mortal, names).fits
    assert match_state(mortal, longer).fits
    assert not match_state(mortal, longer).is_other_form
    views = views_of(columns_of(mortal))
    assert [one for one in views if one] == [
        "users",
        "n",
        "both",
        "numbers",
        "users_values",
        "both_values",
        "numbers_values",
    ]
    assert views["users_values"].schema.names == ["k", "users"]
