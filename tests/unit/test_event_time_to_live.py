"""State that lives by event time equals plain Python that knows the event time of each touch, on every backend."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import BuiltIn, OperatorCluster, task_context
from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial
from penstock.operators.aggregate.distinct import aggregate_layout
from penstock.operators.aggregate.operator import EVENT_TIME_US, AggregateSpec
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS
from penstock.operators.process.co import TIME, in_one_table
from penstock.operators.process.user_code import Context
from penstock.operators.state.timers import microseconds, moment
from penstock.state.backends.base import OpenState, StateLayout
from penstock.state.ddl import arrow_schema
from penstock.state.lifetimes import FAR_AWAY_US
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
ROWS = arrow_schema("k string, at timestamp, what string")
OUTPUT = arrow_schema("k string, seen string")
TTL_US = 10
TTL = ps.TimeToLive(TTL_US / 1_000_000, by="event_time")
READ = ps.TimeToLive(TTL_US / 1_000_000, since="read", by="event_time")
Row = tuple[str, int | None, str]
STATES = ("value", "entry", "element", "read")


class KeyByKey(ps.KeyedProcess):
    """Sets or looks at what its rows say; a timer sets a value of its own."""

    value = ps.ValueState("string", ttl=TTL)
    entries = ps.MapState("string", "string", ttl=TTL)
    elements = ps.ListState("string", ttl=TTL)
    read = ps.ValueState("string", ttl=READ)
    plain = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.plain.value += 1
        for row in rows:
            self.step(row.what)
            if row.what == "timer":
                ctx.set_timer(moment(microseconds(row.at, "") + 3))
        yield key, self.seen(looks="look" in rows.column("what"))

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.step("value")
        yield key, self.seen(looks=False)

    def step(self, what: str) -> None:
        match what:
            case "value":
                self.value.value = "x"
            case "entry":
                self.entries["a"] = "x"
            case "element":
                if not self.elements:
                    self.elements.append("x")
                else:
                    self.elements[0] = "y"
            case "read":
                self.read.value = "x"

    def seen(self, *, looks: bool) -> str:
        found = [self.value.value is not None, "a" in self.entries, bool(self.elements)]
        return json.dumps([*found, *([self.read.value is not None] if looks else [])])


class InColumns(ps.BatchProcess):
    """The same in columns, where an assignment to a value touches all keys of the call that have one: so only the rows of tables."""

    entries = ps.MapState("string", "string", ttl=TTL)
    elements = ps.ListState("string", ttl=TTL)
    plain = ps.ValueState("long", default=0)

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        state["plain"] = [number + 1 for number in state["plain"].to_pylist()]
        columns = batch.key_index.tolist(), batch["what"].to_pylist(), batch["at"].to_pylist()
        for index, what, at in zip(*columns, strict=True):
            if what == "entry":
                state["entries"].put([index], ["a"], ["x"])
            elif what == "element":
                state["elements"].clear([other == index for other in range(len(state))])
                state["elements"].append([index], ["x"])
            elif what == "timer":
                state.set_timers([moment(microseconds(at, "") + 3)], [index])
        return {"k": keys["k"], "seen": self.seen(state)}

    def on_timers(
        self, keys: ps.types.BatchKeys, timers: ps.types.BatchTimers, state: ps.types.BatchState
    ) -> Any:
        state["entries"].put(list(range(len(keys))), ["a"] * len(keys), ["y"] * len(keys))
        return {"k": keys["k"], "seen": self.seen(state)}

    def seen(self, state: ps.types.BatchState) -> list[str]:
        entries = state["entries"].contains(list(range(len(state))), ["a"] * len(state)).to_pylist()
        whose = state["elements"].rows()["key_index"].to_pylist()
        return [json.dumps([False, entries[at], at in whose]) for at in range(len(state))]


class Model:
    """When each state of each key was last touched, in event time."""

    def __init__(self, *, columns: bool) -> None:
        self.columns = columns
        self.touched: dict[str, dict[str, int]] = {}
        self.timers: dict[str, set[int]] = {}
        self.watermark = -FAR_AWAY_US

    def batch(self, rows: list[Row], watermark: int) -> dict[str, list[str]]:
        before, self.watermark = self.watermark, max(watermark, self.watermark)
        self._expire(before)
        given: dict[str, list[str]] = {}
        for key in sorted({row[0] for row in rows} | set(self.timers)):
            mine = [(at, what) for of, at, what in rows if of == key]
            said = self._key(key, mine, max([before, *(at for at, _ in mine if at is not None)]))
            if said:
                given[key] = said
        return given

    def _expire(self, before: int) -> None:
        for states in self.touched.values():
            for name in [name for name, at in states.items() if at + TTL_US <= before]:
                del states[name]

    def _key(self, key: str, mine: list[tuple[int | None, str]], now: int) -> list[str]:
        states, timers = self.touched.setdefault(key, {}), self.timers.setdefault(key, set())
        steps = {what for _, what in mine}
        touched = {what for what in steps if what in STATES}
        timers |= {at + 3 for at, what in mine if what == "timer" and at is not None}
        said: list[str] = []
        if mine:
            touched |= {"read"} if "look" in steps and "read" in states else set()
            self._touch(states, touched, now, anew=touched & {"element"} if self.columns else set())
            said.append(self._seen(states, looks="look" in steps))
        due = sorted(at for at in timers if at <= self.watermark)
        timers.difference_update(due)
        for _ in due[: 1 if self.columns else None]:
            touched.add("entry" if self.columns else "value")
            self._touch(states, touched, now)
            said.append(self._seen(states, looks=False))
        self._touch(states, touched, max([now, *due]))
        return said

    def _touch(
        self,
        states: dict[str, int],
        touched: set[str],
        at: int,
        anew: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        """A touch by an older row shortens no life, but an element that takes the place of another begins one."""
        states |= {name: at if name in anew else max(at, states.get(name, at)) for name in touched}

    def _seen(self, states: dict[str, int], *, looks: bool) -> str:
        found = [name in states for name in STATES[:3]]
        return json.dumps([*found, *(["read" in states] if looks else [])])


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"k": key, "at": None if at is None else moment(at), "what": what} for key, at, what in rows], ROWS
    )


def script(seed: int, *, columns: bool) -> Iterator[tuple[str, Any]]:
    rng = random.Random(seed)
    steps = ["entry", "element", "nothing", "timer", *([] if columns else ["value", "read", "look"])]
    watermark = rng.choice([-1000, 0, 50])
    for _ in range(rng.randint(4, 16)):
        what = rng.choice(["batch"] * 6 + ["merge", "checkpoint", "crash", "rescale"])
        if what != "batch":
            yield what, rng.randint(1, 4)
            continue
        rows: list[Row] = []
        for _ in range(rng.choice([0, 1, 4, 8])):
            step, at = rng.choice(steps), watermark + rng.choice([-20, -5, -1, 0, 1, 2, 5, 9, 10, 11, 15])
            rows.append((rng.choice("abc"), None if step != "timer" and rng.random() < 0.1 else at, step))
        yield "batch", (rows, watermark)
        watermark += rng.choice([0, 1, 4, 9, 10, 11, 30])


class Story:
    def __init__(self, root: Path, backend: str, *, columns: bool) -> None:
        self.cluster = OperatorCluster(root, OUTPUT, backend)
        self.cluster.event_time = "at"
        self.cluster.skips_idle = True
        self.make: Any = InColumns if columns else KeyByKey
        self.model = Model(columns=columns)
        self.since: list[tuple[str, Any]] = []
        self.kept = self.cluster.checkpoint(), copy.deepcopy(self.model)

    def happens(self, what: str, how: Any) -> None:
        if what == "checkpoint":
            self.since, self.kept = [], (self.cluster.checkpoint(), copy.deepcopy(self.model))
        elif what == "crash":
            self.cluster.go_back(self.kept[0])
            self.model = copy.deepcopy(self.kept[1])
            for one, again in self.since:
                getattr(self, f"on_{one}")(again)
        else:
            self.since.append((what, how))
            getattr(self, f"on_{what}")(how)

    def on_batch(self, how: tuple[list[Row], int]) -> None:
        rows, watermark = how
        seen: dict[str, list[str]] = {}
        for row in self.cluster.batch(self.make(), table_of(rows), watermark):
            seen.setdefault(row["k"], []).append(row["seen"])
        assert seen == self.model.batch(rows, watermark)

    def on_rescale(self, parallelism: int) -> None:
        self.cluster.rescale(parallelism)
        assert self.cluster.batch(self.make(), table_of([])) == []
        self.model.batch([], -FAR_AWAY_US)

    def on_merge(self, seed: int) -> None:
        rng = random.Random(seed)

        def anything(refs: Any, _now: Any) -> range | None:
            first, last = sorted(rng.sample(range(len(refs) + 1), 2)) if refs else (0, 0)
            return range(first, last) if last > first else None

        self.cluster.merge(anything)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=share(30), deadline=None)
def test_state_lives_by_event_time(backend: str, columns: bool, seed: int) -> None:
    """From the newest event time of the key in the batch, or the watermark, or the timer that touched it; until the watermark is past it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        told = Story(Path(folder), backend, columns=columns)
        for what, how in script(seed, columns=columns):
            told.happens(what, how)


def test_what_a_time_to_live_goes_by_is_named() -> None:
    """Anything else is refused by name."""
    with pytest.raises(ConfigError, match="by='watermark' is unknown"):
        ps.TimeToLive("1h", by="watermark")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["value", "entry", "element", "read"])
def test_an_older_row_shortens_no_life(tmp_path: Path, backend: str, what: str) -> None:
    """State touched at 100 lives to the watermark 110, also if a row at 5 touches it later."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    cluster.event_time = "at"
    cluster.batch(KeyByKey(), table_of([("a", 100, what)]), 0)
    cluster.batch(KeyByKey(), table_of([("a", 5, "look" if what == "read" else what)]), 50)
    expected = [what == "value", what == "entry", what == "element", what == "read"]
    for watermark, there in ((109, expected), (110, expected), (111, [False] * 4)):
        (row,) = cluster.batch(KeyByKey(), table_of([("a", None, "look")]), watermark)
        if what != "read":
            assert json.loads(row["seen"]) == there
    assert what != "read" or json.loads(row["seen"]) == [False, False, False, True]  # the looks renewed it


def test_a_timer_shortens_no_life(tmp_path: Path) -> None:
    """A timer at 8 touches a value that a row at 100 touched before."""
    cluster = OperatorCluster(tmp_path, OUTPUT)
    cluster.event_time = "at"
    cluster.batch(KeyByKey(), table_of([("a", 5, "timer")]), 6)
    cluster.batch(KeyByKey(), table_of([("a", 100, "value")]), 7)
    assert len(cluster.batch(KeyByKey(), table_of([]), 60)) == 1
    (row,) = cluster.batch(KeyByKey(), table_of([("a", 61, "nothing")]), 61)
    assert json.loads(row["seen"])[0]


class Counting(BuiltIn):
    """The task of `aggregate`, with rows as Spark hands them over."""

    def layout(self, key: pa.Schema) -> StateLayout:
        return aggregate_layout(COUNT, key, TTL)

    def run(self, rows: pa.Table, state: OpenState, context: Context) -> list[pa.RecordBatch]:
        raise NotImplementedError

    def run_in_time(
        self, rows: pa.Table, state: OpenState, context: Context, clock: OperatorClock
    ) -> list[pa.RecordBatch]:
        spec = AggregateSpec(COUNT, KEY, TTL)
        given = spec.task(task_context(replace(clock, latest_us=1000))).apply(TaskRows(rows), state)
        return list(given[RESULTS])


KEY = arrow_schema("k string")
COUNT = (AggregateColumn("n", Kind.COUNT, (Partial("n", Kind.COUNT, pa.int64()),), pa.int64()),)
COUNTED = arrow_schema(f"k string, n long, {EVENT_TIME_US} long")


def counted(cluster: OperatorCluster, at: int, watermark: int) -> int:
    rows = pa.Table.from_pylist([{"k": "a", "n": 1, EVENT_TIME_US: at}], COUNTED)
    (row,) = cluster.batch(Counting(), rows, watermark)
    return int(row["n"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_older_row_shortens_no_life_of_aggregates(tmp_path: Path, backend: str) -> None:
    """Rows at 100, 5 and 102 are counted together, however they are cut."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, n long"), backend)
    assert [counted(cluster, *row) for row in ((100, 0), (5, 50), (102, 60))] == [1, 2, 3]


def test_aggregates_of_results_live_from_times_ahead_of_the_clock(tmp_path: Path) -> None:
    """A window that ends next month touches what counts it at its end: the limit ahead of the clock is for rows of a source."""
    cluster = OperatorCluster(tmp_path, arrow_schema("k string, n long"))
    assert [counted(cluster, *row) for row in ((5000, 0), (5001, 100), (5002, 5001))] == [1, 2, 3]


def test_each_of_two_inputs_is_believed_by_its_own_rule() -> None:
    """Of a source a time ahead of the clock is none; of an operator it is believed."""
    rows = pa.table({"k": ["a"], "at": pa.array([5000], pa.timestamp("us"))})
    times = TimeColumn("at", ahead_us=1000), TimeColumn("at", earlier_us=1, of_results=True)
    table = in_one_table(rows, rows, ["k"], ["k"], times, clock=OperatorClock())
    assert table.column(TIME).cast(pa.int64()).to_pylist() == [None, 4999]
