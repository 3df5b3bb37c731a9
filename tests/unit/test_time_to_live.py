"""State with a time to live equals plain Python that knows when each value was touched, on every backend, whatever happens in between."""

from __future__ import annotations

import copy
import json
import operator
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from penstock.errors import ConfigError
from penstock.operators.state import table_cells
from penstock.state.backends import rocksdb, sorted_rows
from penstock.state.ddl import arrow_schema
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
OUTPUT = arrow_schema("k string, seen string")
SECOND = 1_000_000
KINDS = ("value", "box", "total", "mean", "raw", "plain", "entries", "nested", "elements", "carts")
MORTAL = tuple(kind for kind in KINDS if kind != "plain")

# ── the same steps, for state and for the model ────────────────────────────────────────────────


def grow(one: Any, number: int) -> None:
    """Change a list where it stands."""
    one.append(number)


COLUMN_STEPS = {
    "value": {"set": lambda s, _a, b: s.set(b), "get": lambda s, _a, _b: s.get()},
    "plain": {"set": lambda s, _a, b: s.set(b), "get": lambda s, _a, _b: s.get()},
    "box": {
        "set": lambda s, _a, b: s.set([b]),
        "look": lambda s, _a, _b: s.get(),
        "grow": lambda s, _a, b: s.grow(b),
    },
    "raw": {
        "set": lambda s, _a, b: s.set([b]),
        "look": lambda s, _a, _b: s.get(),
        "grow": lambda s, _a, b: s.grow(b),
    },
    "total": {"add": lambda s, _a, b: s.add(b), "get": lambda s, _a, _b: s.get()},
    "mean": {"add": lambda s, _a, b: s.add(b), "get": lambda s, _a, _b: s.get()},
    "entries": {
        "set": lambda s, a, b: s.put(a, b),
        "get": lambda s, a, _b: s.entry(a),
        "in": lambda s, a, _b: s.has(a),
        "delete": lambda s, a, _b: s.drop(a),
        "items": lambda s, _a, _b: s.items(),
        "len": lambda s, _a, _b: s.length(),
    },
    "nested": {
        "set": lambda s, a, b: s.put(a, [b]),
        "look": lambda s, a, _b: s.entry(a),
        "grow": lambda s, a, b: s.grow_entry(a, b),
        "items": lambda s, _a, _b: s.items(),
    },
    "elements": {
        "append": lambda s, _a, b: s.append(b),
        "all": lambda s, _a, _b: s.all(),
        "len": lambda s, _a, _b: s.length(),
        "index": lambda s, _a, b: s.at(b),
        "set": lambda s, _a, b: s.set_last(b),
        "pop": lambda s, _a, _b: s.pop_first(),
        "slice": lambda s, _a, b: s.behind(b),
    },
    "carts": {
        "append": lambda s, _a, b: s.append([b]),
        "look": lambda s, _a, b: s.at(b),
        "grow": lambda s, _a, b: s.grow_at(b),
    },
}
for _steps in COLUMN_STEPS.values():
    _steps["clear"] = lambda s, _a, _b: s.clear()

Step = tuple[str, str, str, str, int]


def done(step: Step, states: Any) -> str:
    """Do a step; the result as text."""
    _, kind, name, a, b = step
    return json.dumps(COLUMN_STEPS[kind][name](states[kind], a, b))


class Real:
    """The steps, done to state."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def set(self, value: Any) -> None:
        self.cell.value = value

    def get(self) -> Any:
        return copy.deepcopy(self.cell.value)

    def grow(self, number: int) -> None:
        grow(self.cell.value, number)

    def add(self, number: int) -> None:
        self.cell.add(number)

    def clear(self) -> None:
        self.cell.clear()

    def put(self, key: str, value: Any) -> None:
        self.cell[key] = value

    def entry(self, key: str) -> Any:
        return copy.deepcopy(self.cell.get(key, "none"))

    def has(self, key: str) -> bool:
        return key in self.cell

    def drop(self, key: str) -> Any:
        return self.cell.pop(key, "none")

    def items(self) -> Any:
        return sorted(self.cell.items(), key=repr)

    def length(self) -> Any:
        return len(self.cell), bool(self.cell)

    def grow_entry(self, key: str, number: int) -> None:
        if key in self.cell:
            grow(self.cell[key], number)

    def append(self, value: Any) -> None:
        self.cell.append(value)

    def all(self) -> Any:
        return list(self.cell)

    def at(self, at: int) -> Any:
        return copy.deepcopy(self.cell[at]) if at < len(self.cell) else "too short"

    def set_last(self, value: Any) -> None:
        if len(self.cell):
            self.cell[-1] = value

    def pop_first(self) -> Any:
        return self.cell.pop(0) if len(self.cell) else "empty"

    def behind(self, at: int) -> Any:
        return self.cell[at:]

    def grow_at(self, at: int) -> None:
        if at < len(self.cell):
            grow(self.cell[at], 7)


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


class Counted(ps.AggregateFunction):
    """How many, and their sum."""

    def create(self) -> Any:
        return {"n": 0, "sum": 0}

    def add(self, accumulator: Any, value: Any) -> Any:
        accumulator["n"] += 1
        accumulator["sum"] += value
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        return {name: accumulator[name] + other[name] for name in accumulator}

    def result(self, accumulator: Any) -> Any:
        return [accumulator["n"], accumulator["sum"]]


class Steps(ps.KeyedProcess):
    """Does what the rows say, and gives what it saw."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        states = {kind: Real(getattr(self, kind)) for kind in KINDS}
        for row in rows:
            if row.name == "fail":
                raise ValueError("asked to")
            yield key, done((key, row.what, row.name, row.a, row.b), states)


Ttls = dict[str, tuple[int, str] | None]
"""For each state with a time to live, seconds, and from when they count."""


def with_ttl(ttls: Ttls) -> Steps:
    """An operator whose states live so long."""
    ttl = {
        kind: None if one is None else ps.TimeToLive(f"{one[0]}s", since=one[1]) for kind, one in ttls.items()
    }
    states = {
        "value": ps.ValueState("long", ttl=ttl["value"]),
        "box": ps.ValueState("array<long>", default=[5], ttl=ttl["box"]),
        "total": ps.ReducingState("long", operator.add, ttl=ttl["total"]),
        "mean": ps.AggregatingState("struct<n:long,sum:long>", Counted, ttl=ttl["mean"]),
        "raw": ps.RawState(encode=_encoded, decode=json.loads, default=[], ttl=ttl["raw"]),
        "plain": ps.ValueState("long"),
        "entries": ps.MapState("string", "long", ttl=ttl["entries"]),
        "nested": ps.MapState("string", "array<long>", ttl=ttl["nested"]),
        "elements": ps.ListState("long", ttl=ttl["elements"]),
        "carts": ps.ListState("array<long>", ttl=ttl["carts"]),
    }
    made: Any = type("Steps", (Steps,), states)()
    return made


# ── the model ──────────────────────────────────────────────────────────────────────────────────

DEFAULTS = {"box": [5], "raw": []}


class Model:
    """One state of one key: values with the moment at which each was touched. A column has at most one."""

    def __init__(self, kind: str, world: World) -> None:
        self.kind = kind
        self.world = world
        self.held: dict[Any, list[Any]] = {}
        """By 0 in a column, by the key in a map, by a number that grows in a list."""
        self.places = 0

    def expire(self, ttl: int | None) -> None:
        if ttl is not None:
            now = self.world.now_us
            self.held = {at: one for at, one in self.held.items() if one[1] + ttl * SECOND > now}

    def switch_on(self) -> None:
        for one in self.held.values():
            one[1] = self.world.now_us

    def _touch(self, at: Any, value: Any) -> None:
        self.held[at] = [value, self.world.now_us]

    def _look(self, at: Any) -> Any:
        ttl = self.world.ttls.get(self.kind)
        if ttl is not None and ttl[1] == "read":
            self.held[at][1] = self.world.now_us
        return self.held[at][0]

    def set(self, value: Any) -> None:
        self._touch(0, value)

    def get(self) -> Any:
        if self.kind == "box" and not self.held and self.world.ttls["box"] is None:
            self._touch(0, [5])  # where nothing expires, who looks at a container may have changed it
        value: Any = self._look(0) if self.held else copy.copy(DEFAULTS.get(self.kind))
        return [value["n"], value["sum"]] if self.kind == "mean" and value is not None else value

    def grow(self, number: int) -> None:
        before = self.held[0][0] if self.held else DEFAULTS[self.kind]
        self._touch(0, [*before, number])

    def add(self, number: int) -> None:
        before = self.held[0][0] if self.held else None
        if self.kind == "mean":
            before = before or {"n": 0, "sum": 0}
            self._touch(0, {"n": before["n"] + 1, "sum": before["sum"] + number})
        else:
            self._touch(0, number if before is None else before + number)

    def clear(self) -> None:
        self.held = {}

    def put(self, key: str, value: Any) -> None:
        if key in self.held:
            self.held[key][:] = [value, self.world.now_us]
        else:
            self._touch(key, value)

    def entry(self, key: str) -> Any:
        return self._look(key) if key in self.held else "none"

    def has(self, key: str) -> bool:
        return self.entry(key) != "none"

    def drop(self, key: str) -> Any:
        return self.held.pop(key)[0] if key in self.held else "none"

    def items(self) -> Any:
        return sorted([(key, self._look(key)) for key in self.held], key=repr)

    def length(self) -> Any:
        return len(self.held), bool(self.held)

    def grow_entry(self, key: str, number: int) -> None:
        if key in self.held:
            self.put(key, [*self.held[key][0], number])

    def append(self, value: Any) -> None:
        self.places += 1
        self._touch(self.places, value)

    def all(self) -> Any:
        return [self._look(place) for place in self.held]

    def _places(self) -> list[Any]:
        return list(self.held)

    def at(self, at: int) -> Any:
        return self._look(self._places()[at]) if at < len(self.held) else "too short"

    def set_last(self, value: Any) -> None:
        if self.held:
            self.held[self._places()[-1]][:] = [value, self.world.now_us]

    def pop_first(self) -> Any:
        return self.held.pop(self._places()[0])[0] if self.held else "empty"

    def behind(self, at: int) -> Any:
        return [self._look(place) for place in self._places()[at:]]

    def grow_at(self, at: int) -> None:
        if at < len(self.held):
            place = self._places()[at]
            self.held[place][:] = [[*self.held[place][0], 7], self.world.now_us]


class World:
    """All keys of the model, the time, and how long each state lives."""

    def __init__(self, ttls: Ttls, now_us: int) -> None:
        self.ttls: Ttls = dict(ttls)
        self.now_us = now_us
        self.keys: dict[str, dict[str, Model]] = {}

    def batch(self, steps: list[Step]) -> dict[str, list[str]]:
        self.expire()
        seen: dict[str, list[str]] = {}
        for step in steps:
            if step[2] != "fail":
                states = self.keys.setdefault(step[0], {kind: Model(kind, self) for kind in KINDS})
                seen.setdefault(step[0], []).append(done(step, states))
        return seen

    def expire(self) -> None:
        for states in self.keys.values():
            for kind, model in states.items():
                ttl = self.ttls.get(kind)
                model.expire(None if ttl is None else ttl[0])

    def change(self, ttls: Ttls) -> None:
        self.expire()
        for states in self.keys.values():
            for kind in MORTAL:
                if self.ttls[kind] is None and ttls[kind] is not None:
                    states[kind].switch_on()
        self.ttls = dict(ttls)

    def columns(self) -> dict[str, dict[str, Any]]:
        """What the table of values holds."""
        rows: dict[str, dict[str, Any]] = {}
        for key, states in self.keys.items():
            row = {
                kind: states[kind].held[0][0] if states[kind].held else None
                for kind in ("box", "mean", "plain", "raw", "total", "value")
            }
            if any(value is not None for value in row.values()):
                rows[key] = row | {"raw": None if row["raw"] is None else _encoded(row["raw"])}
        return rows

    def entries(self) -> int:
        """How many rows the other tables hold."""
        tables = ("entries", "nested", "elements", "carts")
        return sum(len(states[kind].held) for states in self.keys.values() for kind in tables)


# ── what may happen ────────────────────────────────────────────────────────────────────────────

OTHERS = ("rescale", "merge", "merge", "checkpoint", "crash", "change")


def random_ttls(rng: random.Random, *, may_be_off: bool = False) -> Ttls:
    since = rng.choice(["write", "read"])
    return {
        kind: None if may_be_off and rng.random() < 0.4 else (rng.randint(1, 4), since) for kind in MORTAL
    }


def random_steps(rng: random.Random, kinds: list[str]) -> list[Step]:
    steps: list[Step] = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.choice(kinds)
        name = rng.choice([name for name in COLUMN_STEPS[kind] if name != "clear" or rng.random() < 0.3])
        steps.append((rng.choice("pq"), kind, name, rng.choice("ab"), rng.randint(0, 2)))
    return [*steps, ("p", "value", "fail", "", 0)] if rng.random() < 0.1 else steps


def random_story(seed: int) -> Iterator[tuple[str, Any]]:
    """What happens to few kinds of state, so that much happens to each."""
    rng = random.Random(seed)
    kinds = rng.sample(KINDS, 2)
    for _ in range(25):
        yield "pass", rng.choice([0, 1, 1, 2, 3])
        yield "batch", random_steps(rng, kinds)
        what = rng.choice(OTHERS) if rng.random() < 0.4 else ""
        if what == "change":
            yield what, random_ttls(rng, may_be_off=True)
        elif what:
            yield what, rng.randint(1, 3) if what == "rescale" else rng.randint(0, 5)


def table_of(steps: list[Step]) -> pa.Table:
    columns = list(zip(*steps, strict=True)) if steps else [()] * 5
    schema = arrow_schema("k string, what string, name string, a string, b long")
    return pa.Table.from_arrays(
        [pa.array(list(column), f.type) for column, f in zip(columns, schema, strict=True)], schema=schema
    )


class Story:
    """A job and its model, to which the same happens."""

    def __init__(self, root: Path, backend: str, ttls: Ttls) -> None:
        self.cluster = OperatorCluster(root, OUTPUT, backend, tolerant=True)
        self.world = World(ttls, 1_000 * SECOND)
        self.cluster.now_us = self.world.now_us
        self.cluster.declare(with_ttl(ttls))
        self.kept = self.checkpoint()

    def checkpoint(self) -> Any:
        return self.cluster.checkpoint(), copy.deepcopy(self.world)

    def happens(self, what: str, how: Any) -> None:
        getattr(self, f"on_{what}")(how)

    def on_batch(self, steps: list[Step]) -> None:
        expected = self.world.batch(steps)
        seen: dict[str, list[str]] = {}
        for row in self.cluster.batch(with_ttl(self.world.ttls), table_of(steps)):
            seen.setdefault(row["k"], []).append(row["seen"])
        assert seen == expected

    def on_pass(self, seconds: int) -> None:
        self.world.now_us += seconds * SECOND
        self.cluster.now_us = self.world.now_us

    def on_rescale(self, parallelism: int) -> None:
        self.cluster.rescale(parallelism)
        self.cluster.batch(with_ttl(self.world.ttls), table_of([]))

    def on_merge(self, seed: int) -> None:
        rng = random.Random(seed)

        def anything(refs: Any, _now: Any) -> range | None:
            first, last = sorted(rng.sample(range(len(refs) + 1), 2)) if refs else (0, 0)
            return range(first, last) if last > first else None

        self.cluster.merge(anything if seed else None)

    def on_checkpoint(self, _: int) -> None:
        self.kept = self.checkpoint()

    def on_crash(self, _: int) -> None:
        now_us = self.world.now_us
        checkpoint, self.world = self.kept[0], copy.deepcopy(self.kept[1])
        self.cluster.go_back(checkpoint)
        self.world.now_us = self.cluster.now_us = now_us

    def on_change(self, ttls: Ttls) -> None:
        self.world.change(ttls)
        self.cluster.declare(with_ttl(ttls))

    def check(self) -> None:
        self.world.expire()
        stored = self.cluster.stored()
        hidden = [name for row in stored.values() for name in row if name.startswith("__touched_")]
        for row in stored.values():
            for name in set(hidden):
                del row[name]
        assert stored == self.world.columns()


@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 1 << 32), few=st.sampled_from([0, 1, 64]))
@example(seed=256, few=1)  # a value that was listed, changed in place, and undone with its call
@settings(max_examples=share(25), deadline=None)
def test_state_that_expires_equals_its_model(backend: str, seed: int, few: int) -> None:
    """Random steps, with time that passes to the moment and beyond, failed calls, merges, crashes, rescales and other times to live."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_cells.TableCell, "few_rows", few)
        patch.setattr(sorted_rows, "PIECE_BYTES", 100)
        told = Story(Path(folder), backend, random_ttls(random.Random(seed)))
        for what, how in random_story(seed):
            told.happens(what, how)
        told.check()


@pytest.mark.parametrize(
    "ttl", ["0s", 0, -1, "soon", True, "-5s", float("nan"), float("inf"), 1e-9, "300000000d"]
)
def test_what_is_no_duration_is_refused(ttl: Any) -> None:
    """A time to live is a duration that is longer than nothing."""
    with pytest.raises(ConfigError, match="ttl="):
        ps.ValueState("long", ttl=ttl)


def test_since_is_write_or_read() -> None:
    """Anything else is refused by name."""
    with pytest.raises(ConfigError, match="since='event'"):
        ps.TimeToLive("1h", since="event")


# ── one thing at a time ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ttl", [None, "1h", ps.TimeToLive("1h", since="read")])
def test_what_is_set_looks_at_once_as_it_comes_back(tmp_path: Path, ttl: Any) -> None:
    """A tuple for a struct is a dictionary in the batch that sets it, as in the next one, with a time to live and without."""

    class Sets(ps.KeyedProcess):
        box = ps.ValueState("struct<a:long,b:string>", ttl=ttl)

        def process(self, key: str, rows: Any, ctx: Any) -> Iterator[tuple[str, str]]:
            self.box.value = self.box.value or (1, "x")
            yield key, str(self.box.value)

    cluster = OperatorCluster(tmp_path, OUTPUT)
    seen = [cluster.batch(Sets(), pa.table({"k": ["p"]}))[0]["seen"] for _ in range(2)]
    assert seen == ["{'a': 1, 'b': 'x'}"] * 2


LOOKS = {
    "value": lambda op: op.value.value,
    "box": lambda op: op.box.value,
    "total": lambda op: op.total.value,
    "mean": lambda op: op.mean.value,
    "accumulator": lambda op: op.mean.accumulator,
    "raw": lambda op: op.raw.value,
    "entries": lambda op: op.entries.get("a"),
    "entries in": lambda op: "a" in op.entries,
    "entries all": lambda op: list(op.entries.values()),
    "nested": lambda op: op.nested.get("a"),
    "elements": lambda op: op.elements[0],
    "elements all": lambda op: list(op.elements),
    "elements slice": lambda op: op.elements[:1],
    "carts": lambda op: op.carts[0],
}


class Looking(ps.KeyedProcess):
    """Sets all state of a key when it is told to, looks at one afterwards, and says what there is."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        op: Any = self
        for row in rows:
            if row.what == "set":
                op.value.value, op.box.value, op.raw.value = 1, [1], [1]
                op.total.add(1)
                op.mean.add(1)
                op.entries["a"], op.nested["a"] = 1, [1]
                op.elements.append(1)
                op.carts.append([1])
            elif row.what == "count":
                held = (op.value, op.total, op.mean)
                found = [one.value is not None for one in held]
                found += [op.box.value != [5], op.raw.value != []]
                found += [bool(op.entries), bool(op.nested), bool(op.elements), bool(op.carts)]
                yield key, json.dumps(found)
            else:
                LOOKS[row.what](self)


def looking(since: str) -> Looking:
    states = {
        name: state
        for name, state in vars(type(with_ttl(dict.fromkeys(MORTAL, (10, since))))).items()
        if name in KINDS
    }
    made: Any = type("Looking", (Looking,), states)()
    return made


def told(what: str) -> pa.Table:
    return table_of([("k", what, "", "", 0)])


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("since", ["write", "read"])
def test_a_look_renews_only_where_it_should(tmp_path: Path, look: str, since: str) -> None:
    """With `since="read"` what was looked at lives on, and nothing else; with `since="write"` a look changes nothing."""
    cluster = OperatorCluster(tmp_path, OUTPUT, "memory")
    cluster.now_us = 100 * SECOND
    cluster.batch(looking(since), told("set"))
    cluster.now_us += 9 * SECOND
    cluster.batch(looking(since), told(look))
    cluster.now_us += SECOND - 1
    (row,) = cluster.batch(looking("write"), told("count"))
    assert all(json.loads(row["seen"]))
    cluster.now_us += 1
    (row,) = cluster.batch(looking("write"), told("count"))
    order = ["value", "total", "mean", "box", "raw", "entries", "nested", "elements", "carts"]
    kind = "mean" if look == "accumulator" else look.partition(" ")[0]
    assert json.loads(row["seen"]) == [name == kind and since == "read" for name in order]


def test_the_same_value_set_again_is_a_write(tmp_path: Path) -> None:
    """What counts is that it was written, not that it became another one."""
    cluster = OperatorCluster(tmp_path, OUTPUT, "memory", tolerant=True)
    ttls: Ttls = dict.fromkeys(MORTAL, (10, "write"))
    steps: list[Step] = [("k", "value", "set", "", 1), ("k", "raw", "set", "", 1), ("k", "box", "set", "", 1)]
    for _ in range(3):
        cluster.now_us += 9 * SECOND
        cluster.batch(with_ttl(ttls), table_of(steps))
    looks: list[Step] = [
        ("k", "value", "get", "", 0),
        ("k", "raw", "look", "", 0),
        ("k", "box", "look", "", 0),
    ]
    cluster.now_us += 9 * SECOND
    seen = [row["seen"] for row in cluster.batch(with_ttl(ttls), table_of(looks))]
    assert seen == ["1", "[1]", "[1]"]


class Fleeting(ps.KeyedProcess):
    """One state of each place where rows can be, all of which expire."""

    last = ps.ValueState("string", ttl="10s")
    entries = ps.MapState("string", "long", ttl="10s")
    elements = ps.ListState("string", ttl="10s")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            self.last.value = row.a
            self.entries[row.a] = 1
            self.elements.append(row.a)


class Lasting(Fleeting):
    """The same beside a state that never expires."""

    ever = ps.ValueState("string")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        self.ever.value = "kept"
        super().process(key, rows, ctx)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operator_class", [Fleeting, Lasting])
def test_what_has_expired_is_gone_from_the_files(
    tmp_path: Path, backend: str, operator_class: type[Fleeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of keys that never come again, when others go on; and a key of which nothing is left is gone itself."""
    monkeypatch.setattr(rocksdb, "LEAST_SEEN", 3)  # so that a round takes many batches
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    cluster.now_us = 100 * SECOND
    for batch in range(8):
        cluster.batch(operator_class(), table_of([(f"old{batch}", "", "", f"secret{batch}", 0)]))
        cluster.merge()
    for batch in range(40):
        cluster.now_us += SECOND
        cluster.batch(operator_class(), table_of([(f"new{batch}", "", "", f"public{batch}", 0)]))
        cluster.merge()
    left = json.dumps(cluster.stored_rows(), default=str)
    assert "secret" not in left
    assert ("old" in left) is (operator_class is Lasting)
    assert "public39" in left
    assert left.count("public0") == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_switched_on_for_state_that_exists(tmp_path: Path, backend: str) -> None:
    """What was there counts as touched when the time to live was switched on, and goes from the files when it has passed."""
    ttls: Ttls = dict.fromkeys(MORTAL)
    cluster = OperatorCluster(tmp_path, OUTPUT, backend, tolerant=True)
    cluster.now_us = 100 * SECOND
    steps: list[Step] = [("k", "value", "set", "", 77), ("k", "entries", "set", "a", 77)]
    cluster.batch(with_ttl(ttls), table_of(steps))
    cluster.now_us += 1000 * SECOND
    mortal: Ttls = dict.fromkeys(MORTAL, (10, "write"))
    looks: list[Step] = [("k", "value", "get", "", 0), ("k", "entries", "get", "a", 0)]

    def seen_after(seconds: int) -> list[str]:
        cluster.now_us += seconds * SECOND
        results = [row["seen"] for row in cluster.batch(with_ttl(mortal), table_of(looks))]
        cluster.batch(with_ttl(mortal), table_of([("other", "plain", "set", "", 1)]))
        cluster.merge()
        return results

    assert seen_after(0) == ["77", "77"]
    assert seen_after(9) == ["77", "77"]
    assert seen_after(1) == ["null", '"none"']
    seen_after(1)
    assert "77" not in json.dumps(cluster.stored_rows(), default=str)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("later", [None, (1000, "write")])
def test_what_has_expired_never_comes_back(
    tmp_path: Path, backend: str, later: tuple[int, str] | None
) -> None:
    """Not when the time to live is switched off, nor when it is made longer, although the files still have it."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend, tolerant=True)
    cluster.now_us = 100 * SECOND
    before: Ttls = dict.fromkeys(MORTAL, (10, "write"))
    steps: list[Step] = [("k", "value", "set", "", 7), ("k", "plain", "set", "", 7)]
    cluster.batch(with_ttl(before), table_of(steps))
    cluster.now_us += 20 * SECOND
    looks: list[Step] = [("k", "value", "get", "", 0), ("k", "plain", "get", "", 0)]
    after: Ttls = dict.fromkeys(MORTAL, later)
    seen = [row["seen"] for row in cluster.batch(with_ttl(after), table_of(looks))]
    assert seen == ["null", "7"]


def a_set_of_names(ttl: str | None) -> Any:
    """A map and a list whose values are None."""

    class Names(ps.KeyedProcess):
        seen = ps.MapState("string", "long", ttl=ttl)
        gaps = ps.ListState("long", ttl=ttl)

        def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
            for row in rows:
                if row.name == "set":
                    self.seen[row.a] = None
                    self.gaps.append(None)
            yield key, json.dumps([list(self.seen), list(self.gaps)])

    return Names()


@pytest.mark.parametrize("backend", BACKENDS)
def test_entries_without_a_value_expire_for_good(tmp_path: Path, backend: str) -> None:
    """Also those that were there before the time to live: they are gone, from the files too, and stay gone when it is switched off."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    cluster.now_us = 100 * SECOND
    cluster.batch(a_set_of_names(None), table_of([("k", "", "set", "x", 0)]))
    for number in range(3):
        cluster.now_us += 20 * SECOND
        cluster.batch(a_set_of_names("10s"), table_of([(f"other{number}", "", "set", "x", 0)]))
        cluster.merge()
    assert [row for row in cluster.stored_rows() if row["k"] == "k"] == []
    (seen,) = cluster.batch(a_set_of_names(None), table_of([("k", "", "get", "", 0)]))
    assert seen["seen"] == "[[], []]"


class AsksOnly(ps.KeyedProcess):
    known = ps.ValueState("long", ttl=ps.TimeToLive("1h", since="read"))

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        yield key, str(self.known.value)


def test_a_look_at_what_is_not_there_writes_nothing(tmp_path: Path) -> None:
    """There is nothing to renew."""
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem")
    cluster.now_us = SECOND
    cluster.batch(AsksOnly(), table_of([("k", "", "", "", 0)]))
    assert cluster.files == [0]


class InColumns(ps.BatchProcess):
    """Sets what it is told, and looks at what it is told."""

    written = ps.ValueState("long", default=0, ttl="10s")
    read = ps.ValueState("array<long>", ttl=ps.TimeToLive("10s", since="read"))
    plain = ps.ValueState("long")

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        what = batch["what"][0].as_py()
        if what == "set":
            state["written"] = [1] * len(keys)
            state["read"] = [[1]] * len(keys)
            state["plain"] = [1] * len(keys)
        if what == "look":
            return {"k": keys["k"], "seen": [str(one) for one in state["read"].to_pylist()]}
        if what == "again":
            state["written"] = state["written"]
        if what == "delete":
            state.delete([True] * len(keys))
        seen = [
            str(one) for one in zip(state["written"].to_pylist(), state["plain"].to_pylist(), strict=True)
        ]
        return {"k": keys["k"], "seen": seen}


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_columns(tmp_path: Path, backend: str) -> None:
    """`state[...]` has no value that has expired; what is assigned is touched, and with `since="read"` what is asked for."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    cluster.now_us = 100 * SECOND

    def seen(what: str, after: int) -> str:
        cluster.now_us += after * SECOND
        (row,) = cluster.batch(InColumns(), told(what))
        return str(row["seen"])

    assert seen("set", 0) == "(1, 1)"
    assert seen("look", 9) == "[1]"
    assert seen("nothing", 1) == "(0, 1)"
    assert seen("look", 8) == "[1]"
    assert seen("look", 10) == "None"
    assert seen("set", 0) == "(1, 1)"
    assert seen("again", 9) == "(1, 1)"
    assert seen("nothing", 9) == "(1, 1)"
    assert seen("look", 0) == "None"
    assert seen("delete", 0) == "(0, None)"
    assert cluster.stored() == {}
