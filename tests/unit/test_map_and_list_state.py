"""`MapState` and `ListState`: a dictionary and a list for every key, on every backend, whatever happens in between."""

from __future__ import annotations

import datetime as dt
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from penstock.errors import BadRecordError, ConfigError
from penstock.operators.state import table_cells
from penstock.operators.state.declarations import state_layout
from penstock.state.ddl import arrow_schema
from services.state_steps import LIST_STEPS, MAP_STEPS, Step, Steps, done
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
OUTPUT = arrow_schema("k string, seen string")


def table_of(steps: list[Step]) -> pa.Table:
    columns = list(zip(*steps, strict=True)) if steps else [()] * 5
    schema = arrow_schema("k string, what string, name string, a string, b long")
    return pa.Table.from_arrays(
        [pa.array(list(column), f.type) for column, f in zip(columns, schema, strict=True)], schema=schema
    )


class Model:
    """The same with Python's own dictionaries and lists."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, int]] = {}
        self.elements: dict[str, list[int]] = {}

    def batch(self, steps: list[Step]) -> dict[str, list[str]]:
        seen: dict[str, list[str]] = {}
        for step in steps:
            if step[2] != "fail":
                entries, elements = (
                    self.entries.setdefault(step[0], {}),
                    self.elements.setdefault(step[0], []),
                )
                seen.setdefault(step[0], []).append(done(step, entries, elements))
        return seen


texts, numbers, keys = st.sampled_from(["", "a", "b", "xyz"]), st.integers(0, 3), st.sampled_from("pqr")
of_map = st.tuples(keys, st.just("map"), st.sampled_from(sorted(MAP_STEPS)), texts, numbers)
of_list = st.tuples(keys, st.just("list"), st.sampled_from(sorted(LIST_STEPS)), texts, numbers)
failing = st.tuples(keys, st.just("map"), st.just("fail"), texts, numbers)
events = st.lists(
    st.lists(of_map | of_list | failing, min_size=1, max_size=12) | st.sampled_from([1, 2, 3]),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(events=events, few=st.sampled_from([0, 2, 64]))
@settings(max_examples=share(40))
def test_they_act_as_pythons_own(backend: str, events: list[Any], few: int) -> None:
    """Random steps in random batches, with calls that fail, lost machines and other parallelisms, see what plain Python sees."""
    model = Model()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_cells.TableCell, "few_rows", few)
        cluster = OperatorCluster(Path(folder), OUTPUT, backend, tolerant=True)
        for event in events:
            if isinstance(event, int):
                cluster.rescale(event)
                cluster.batch(
                    Steps(), table_of([])
                )  # every subtask takes its part over before the first batch
                continue
            expected = model.batch(event)
            seen: dict[str, list[str]] = {}
            for row in cluster.batch(Steps(), table_of(event)):
                seen.setdefault(row["k"], []).append(row["seen"])
            assert seen == expected


class Appends(ps.KeyedProcess):
    elements = ps.ListState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.elements.extend(row.b for row in rows)
        yield key, json.dumps(list(self.elements))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_appended_stays_when_batches_are_done_again(tmp_path: Path, backend: str) -> None:
    """At least once, a batch is done again on state that later batches have made: it appends, and overwrites nothing."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    for number in range(3):
        cluster.batch(Appends(), table_of([("k", "", "", "", number)]))
    cluster.number_back(2)
    cluster.rescale(2)
    seen = [cluster.batch(Appends(), table_of([("k", "", "", "", number)])) for number in (1, 2, 3)]
    assert seen[-1] == [{"k": "k", "seen": "[0, 1, 2, 1, 2, 3]"}]


class Containers(ps.KeyedProcess):
    """Changes lists where they stand."""

    by_day = ps.MapState("date", "array<long>")
    carts = ps.ListState("struct<items:array<string>,n:long>")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        for row in rows:
            day = dt.date(2026, 1, row.b + 1)
            self.by_day.setdefault(day, []).append(row.b)
            if row.a == "new":
                self.carts.append({"items": [], "n": 0})
            self.carts[-1]["items"].append(row.a)
            for cart in self.carts:
                cart["items"].append("must not be seen")
            for numbers in self.by_day.values():
                numbers.append(99)
            if row.a == "fail":
                raise ValueError("asked to")
        yield (
            key,
            json.dumps(
                [[[str(day), n] for day, n in sorted(self.by_day.items())], [c["items"] for c in self.carts]]
            ),
        )


@pytest.mark.parametrize("few", [0, 64])
def test_what_stands_in_them_is_changed_in_place(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that was looked up may be changed where it is; what iteration gives is a copy, and a failed call leaves nothing."""
    monkeypatch.setattr(table_cells.TableCell, "few_rows", few)
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem", tolerant=True)

    def batch(*steps: tuple[str, int]) -> Any:
        rows = cluster.batch(Containers(), table_of([("k", "", "", a, b) for a, b in steps]))
        return json.loads(rows[0]["seen"]) if rows else None

    assert batch(("new", 1), ("x", 1)) == [[["2026-01-02", [1, 1]]], [["new", "x"]]]
    assert batch(("fail", 1)) is None
    assert batch(("y", 2)) == [[["2026-01-02", [1, 1]], ["2026-01-03", [2]]], [["new", "x", "y"]]]
    assert batch(("new", 2)) == [
        [["2026-01-02", [1, 1]], ["2026-01-03", [2, 2]]],
        [["new", "x", "y"], ["new"]],
    ]


class Odd(ps.KeyedProcess):
    """Asks and stores what the rows say."""

    numbers = ps.MapState("double", "string")
    small = ps.MapState("byte", "long")
    texts = ps.ListState("string")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        for row in rows:
            match row.name:
                case "nan":
                    self.numbers[math.nan] = "nan"
                    self.numbers[-0.0] = "zero"
                    self.numbers[2] = "two"
                    yield (
                        key,
                        json.dumps(
                            [
                                self.numbers[float("nan")],
                                self.numbers[0],
                                2.0 in self.numbers,
                                len(self.numbers),
                            ]
                        ),
                    )
                case "order":
                    yield key, json.dumps([str(number) for number in self.numbers])
                case "too large":
                    self.small[300] = 1
                case "no key":
                    self.small[None] = 1
                case "no text":
                    self.texts.append(7)


def odd(cluster: OperatorCluster, name: str) -> Any:
    rows = cluster.batch(Odd(), table_of([("k", "", name, "", 0)]))
    return json.loads(rows[0]["seen"]) if rows else None


def test_keys_are_one_however_they_are_written(tmp_path: Path) -> None:
    """Every NaN is one key, -0.0 is 0.0, 2 is 2.0; entries with numbers come in their order."""
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem")
    assert odd(cluster, "nan") == ["nan", "zero", True, 3]
    assert odd(cluster, "order") == ["0.0", "2.0", "nan"]


def changed_meanwhile(entries: Any, elements: Any) -> list[Any]:
    """Changes a map and a list while walking through them, where Python's own allow that; what it sees."""
    seen: list[Any] = []
    for name, value in entries.items():
        seen.append([name, value])
        entries["b"] += 100
        entries["c"] += value
    for element in elements:
        seen.append(element)
        if element < 3:
            elements.append(element + 10)
    for at, element in enumerate(elements):
        seen.append(element)
        if at + 1 < len(elements):
            elements[at + 1] = element * 2
    for element in elements:
        seen.append(element)
        elements.remove(element)
    return [*seen, sorted(entries.items()), list(elements), elements == [2, 8], elements == [2]]


class Walks(ps.KeyedProcess):
    """Changes what it walks through, in batches after the first."""

    entries = ps.MapState("string", "long")
    elements = ps.ListState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        if not self.entries:
            self.entries.update(a=1, b=2, c=3)
            self.elements.extend([1, 2, 3])
            return
        same = changed_meanwhile(dict(self.entries), list(self.elements))
        yield key, json.dumps([changed_meanwhile(self.entries, self.elements), same])


@pytest.mark.parametrize("few", [0, 64])
def test_they_may_be_changed_while_walking_through(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is changed ahead of the place that was reached is seen, and a list equals a list."""
    monkeypatch.setattr(table_cells.TableCell, "few_rows", few)
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem")
    step = table_of([("k", "", "", "", 0)])
    cluster.batch(Walks(), step)
    seen, same = json.loads(cluster.batch(Walks(), step)[0]["seen"])
    assert seen == same


class Searches(ps.KeyedProcess):
    """Looks through a long list in all ways that Python has."""

    elements = ps.ListState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        if not self.elements:
            self.elements.extend(range(200))
            return
        seen: list[Any] = [self.elements.index(199), self.elements.index(7, 3, 9), 200 in self.elements]
        seen += [list(reversed(self.elements)) == list(range(199, -1, -1)), self.elements.count(5)]
        self.elements.reverse()
        self.elements.remove(0)
        yield key, json.dumps([*seen, self.elements[0], self.elements[198], len(self.elements)])


def test_a_search_does_not_begin_anew_for_every_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list is walked through a few times, not once for each of its elements."""
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem")
    step = table_of([("k", "", "", "", 0)])
    cluster.batch(Searches(), step)
    walks: list[int] = []
    scanned = table_cells.TableCell._scanned

    def counted(cell: table_cells.TableCell) -> Iterator[tuple[Any, Any]]:
        walks.append(cell.at)
        return scanned(cell)

    monkeypatch.setattr(table_cells.TableCell, "_scanned", counted)
    (row,) = cluster.batch(Searches(), step)
    assert json.loads(row["seen"]) == [199, 7, False, True, 1, 199, 1, 199]
    assert len(walks) <= 12


class Holds(ps.KeyedProcess):
    """Uses one list for all keys, as who wants to spare memory does."""

    carts = ps.ListState("array<string>")
    changed = ps.ListState("array<string>")
    by_name = ps.MapState("string", "array<string>")
    last = ps.ValueState("array<string>")

    def __init__(self) -> None:
        self.held: list[str] = []

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        if rows[0].name == "read":
            yield (
                key,
                json.dumps([*self.carts, *self.changed, *self.by_name.values(), self.last.value]),
            )
            return
        self.held.clear()
        if key == "b":
            raise ValueError("asked to")
        self.held.append(key)
        self.carts.append(self.held)
        self.changed.insert(0, self.held)
        self.by_name["x"] = self.last.value = self.held
        self.by_name["gone"] = self.held
        del self.by_name["gone"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_shared_between_keys(tmp_path: Path, backend: str) -> None:
    """What a call has stored stays what it was, whatever calls for other keys do with the same object."""
    cluster = OperatorCluster(tmp_path, OUTPUT, backend, tolerant=True)
    cluster.batch(Holds(), table_of([(key, "", "", "", 0) for key in "abcd"]))
    seen = cluster.batch(Holds(), table_of([(key, "", "read", "", 0) for key in "acd"]))
    assert {row["k"]: json.loads(row["seen"]) for row in seen} == {key: [[key]] * 4 for key in "acd"}


class Gives(ps.KeyedProcess):
    """Gives away its state itself, where it should give what is in it."""

    seen = ps.ListState("string")
    by_name = ps.MapState("string", "long")
    last = ps.ValueState("array<string>")
    within = ps.ValueState("struct<all:array<string>>")
    lists = ps.MapState("string", "array<string>")

    def __init__(self, to: str) -> None:
        self.to = to

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, Any, Any]]:
        self.seen.append(key)
        self.by_name[key] = 1
        match self.to:
            case "state":
                self.last.value = self.seen
            case "struct":
                self.within.value = {"all": self.seen}
            case "map":
                self.lists["x"] = self.seen
        yield key, self.seen if self.to == "array" else [], self.by_name if self.to == "entries" else {}


@pytest.mark.parametrize("to", ["array", "entries", "state", "struct", "map"])
def test_a_state_is_no_value(tmp_path: Path, to: str) -> None:
    """Values are encoded when other keys have had their turn, so that a state among them would be that of another key."""
    output = arrow_schema("k string, seen array<string>, by_name map<string,long>")
    cluster = OperatorCluster(tmp_path, output, "filesystem")
    with pytest.raises(BadRecordError, match=r"is a state, not a value; take a copy of it with (list|dict)"):
        cluster.batch(Gives(to), table_of([(key, "", "", "", 0) for key in "abc"]))


class Asks(ps.KeyedProcess):
    """Asks for keys that no entry can have."""

    numbers = ps.MapState("long", "long")
    texts = ps.MapState("string", "long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.numbers[1] = self.texts["x"] = 1
        seen = [self.numbers.get(key, "no") for key in (None, 2**70)]
        yield key, json.dumps([*seen, *(key in self.texts for key in (None, "\ud800"))])


@pytest.mark.parametrize("few", [0, 64])
def test_what_cannot_be_a_key_is_not_there(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that asks for such a key does not end on the day on which a map has become large."""
    monkeypatch.setattr(table_cells.TableCell, "few_rows", few)
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem")
    step = table_of([("k", "", "", "", 0)])
    cluster.batch(Asks(), step)
    assert json.loads(cluster.batch(Asks(), step)[0]["seen"]) == ["no", "no", False, False]


class Counts(ps.KeyedProcess):
    """Counts under a key that is not equal to itself."""

    numbers = ps.MapState("double", "long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        for row in rows:
            if row.name == "clear":
                self.numbers.clear()
            self.numbers[math.nan] = self.numbers.get(float("nan"), 0) + 1
        yield key, json.dumps(list(self.numbers.values()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("few", [0, 64])
def test_nan_is_found_again_in_a_later_batch(
    tmp_path: Path, backend: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes back from the state is the same key as the one that was set, also where it is set anew after a clear."""
    monkeypatch.setattr(table_cells.TableCell, "few_rows", few)
    cluster = OperatorCluster(tmp_path, OUTPUT, backend)
    names = ["", "", "clear", ""]
    seen = [cluster.batch(Counts(), table_of([("k", "", name, "", 0)]))[0]["seen"] for name in names]
    assert seen == ["[1]", "[2]", "[1]", "[2]"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too large", "state 'small' is asked for the key 300"),
        ("no key", "state 'small' has the key None"),
        ("no text", "state 'texts' was set to 7"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, said: str) -> None:
    """A key or a value that does not fit its type ends the batch, or the call where that is asked for, and says what it was."""
    with pytest.raises(BadRecordError, match=said):
        odd(OperatorCluster(tmp_path / "a", OUTPUT, "filesystem"), name)
    tolerant = OperatorCluster(tmp_path / "b", OUTPUT, "filesystem", tolerant=True)
    assert odd(tolerant, name) is None
    assert tolerant.bad.count == 1


def test_wrong_use_is_refused_before_anything_starts() -> None:
    """A type that cannot be a key, a state outside its operator, and one that is overwritten."""
    with pytest.raises(ConfigError, match="the keys of a MapState cannot be array<string>"):
        ps.MapState("array<string>", "long")
    with pytest.raises(ConfigError):
        ps.ListState("longg")
    with pytest.raises(ConfigError, match="state 'entries' can be used only inside process"):
        Steps().entries["a"]
    with pytest.raises(ConfigError, match="state 'elements' can be used only inside process"):
        Steps().elements.append(1)
    with pytest.raises(AttributeError, match=r"write self.entries\[...\] = ... instead"):
        Steps().entries = {}  # type: ignore[assignment]


def test_a_state_with_the_name_of_a_key_column_is_refused() -> None:
    """Its table would have two columns of one name, of which readers by name see one."""
    with pytest.raises(ConfigError, match="the state 'entries' of Steps has the name of a key column"):
        state_layout(Steps(), pa.schema([("entries", pa.string())]))
