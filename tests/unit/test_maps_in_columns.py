"""Maps and lists in `process_batch`: the entries and elements of all keys at once, on every backend, whatever happens in between."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from penstock.errors import BadRecordError
from penstock.operators.grouping import PieceLimits
from penstock.operators.process import columns as run_module
from penstock.operators.state import table_rows
from penstock.state.ddl import arrow_schema
from services.tiers import share

BACKENDS = ["filesystem", "memory", "rocksdb"]
OUTPUT = arrow_schema("k string, at long, seen string")
INPUT = arrow_schema("k string, at long, name string, a string, b long")
Step = tuple[str, str, str, int | None]
"""The key, what to do, and two arguments."""
RAW = {"": 0.0, "a": -0.0, "b": -math.nan}


def number(text: str) -> float:
    """As a dictionary of Python's needs it: one NaN, one zero."""
    value = RAW[text]
    return math.nan if math.isnan(value) else value + 0.0


def shown(value: Any) -> str:
    return json.dumps(value)


class Kept(NamedTuple):
    """What a key has: Python's own, or what acts like it."""

    entries: Any
    numbers: Any
    elements: Any

    def without(self, entries: Any, key: Any) -> None:
        entries.pop(key, None)

    def forget(self) -> None:
        for one in self:
            one.clear()


STEPS: dict[str, Callable[[Kept, str, int | None], Any]] = {
    "put": lambda kept, a, b: kept.entries.__setitem__(a, b),
    "get": lambda kept, a, _: shown(kept.entries.get(a)),
    "contains": lambda kept, a, _: shown(a in kept.entries),
    "delete": lambda kept, a, _: kept.without(kept.entries, a),
    "clear": lambda kept, _a, _b: kept.entries.clear(),
    "rows": lambda kept, _a, _b: shown(sorted(kept.entries.items())),
    "number": lambda kept, a, b: kept.numbers.__setitem__(number(a), str(b)),
    "no number": lambda kept, a, _: kept.without(kept.numbers, number(a)),
    "numbers": lambda kept, a, _: shown(
        [kept.numbers.get(number(a)), sorted(map(str, kept.numbers.items()))]
    ),
    "append": lambda kept, _, b: kept.elements.extend([b, b]),
    "all": lambda kept, _a, _b: shown(list(kept.elements)),
    "drop first": lambda kept, _a, _b: kept.elements.__delitem__(slice(1)),
    "clear list": lambda kept, _a, _b: kept.elements.clear(),
    "forget": lambda kept, _a, _b: kept.forget(),
}
"""Each does something for a key, and gives what it saw, as text, or None."""


class Rowwise(ps.KeyedProcess):
    """Key by key."""

    entries = ps.MapState("string", "long")
    numbers = ps.MapState("double", "string")
    elements = ps.ListState("long")
    last = ps.ValueState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, int, str]]:
        for row in sorted(rows, key=lambda row: row.at):
            seen = STEPS[row.name](Kept(self.entries, self.numbers, self.elements), row.a, row.b)
            self.last.value = None if row.name == "forget" else row.at
            if seen is not None:
                yield key, row.at, seen


class InColumns(ps.BatchProcess):
    """The same, where neighbouring steps of one kind are one call for all keys."""

    entries = ps.MapState("string", "long")
    numbers = ps.MapState("double", "string")
    elements = ps.ListState("long")
    last = ps.ValueState("long")

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        rows = batch.to_arrow().append_column("key", pa.array(batch.key_index)).sort_by("at").to_pylist()
        names = keys["k"].to_pylist()
        for name, steps in groupby(rows, key=lambda row: row["name"]):
            group = list(steps)
            saw = COLUMN_STEPS[name](state, Group.of(group))
            for step, seen in zip(group, saw or [], strict=bool(saw)):
                yield {"k": [names[step["key"]]], "at": [step["at"]], "seen": [seen]}
        last = {row["key"]: None if row["name"] == "forget" else row["at"] for row in rows}
        state["last"] = [last[at] for at in range(len(keys))]


class Group(NamedTuple):
    """The same step for several keys, in columns of many kinds."""

    key: np.ndarray
    a: list[str]
    b: list[int | None]

    @classmethod
    def of(cls, steps: list[dict[str, Any]]) -> Group:
        a, b = [step["a"] for step in steps], [step["b"] for step in steps]
        return cls(np.array([step["key"] for step in steps]), a, b)

    @property
    def numbers(self) -> list[float]:
        return [RAW[text] for text in self.a]

    def mask(self, state: ps.types.BatchState) -> np.ndarray:
        return np.isin(np.arange(len(state)), self.key)


def texts_of(values: Any) -> list[str]:
    return [shown(value) for value in values.to_pylist()]


def of_key(rows: Any, at: int, *names: str) -> list[list[Any]]:
    table = rows.to_arrow()
    return [
        list(row.values()) for row in table.filter(pc.equal(table["key_index"], at)).select(names).to_pylist()
    ]


def numbers_seen(state: ps.types.BatchState, one: Group) -> list[str]:
    every, got = state["numbers"].rows(), state["numbers"].get(one.key, one.numbers).to_pylist()
    pairs = [sorted(str(tuple(pair)) for pair in of_key(every, at, "key", "value")) for at in one.key]
    return [shown([value, pair]) for value, pair in zip(got, pairs, strict=True)]


def drop_first(state: ps.types.BatchState, one: Group) -> None:
    for key in one.key:  # one by one: a key may be there twice
        rows = state["elements"].rows(np.arange(len(state)) == key)
        state["elements"].delete(rows["key_index"].slice(0, 1), rows["position"].slice(0, 1))


COLUMN_STEPS: dict[str, Callable[[ps.types.BatchState, Group], Any]] = {
    "put": lambda state, one: state["entries"].put(one.key, pa.array(one.a), pd.Series(one.b, dtype="Int64")),
    "get": lambda state, one: texts_of(state["entries"].get(one.key.tolist(), one.a)),
    "contains": lambda state, one: texts_of(state["entries"].contains(pl.Series(one.key), pl.Series(one.a))),
    "delete": lambda state, one: state["entries"].delete(one.key, np.array(one.a, dtype=object)),
    "clear": lambda state, one: state["entries"].clear(one.mask(state)),
    "rows": lambda state, one: [
        shown(sorted(of_key(state["entries"].rows(pl.Series(one.mask(state))), at, "key", "value")))
        for at in one.key
    ],
    "number": lambda state, one: state["numbers"].put(one.key, one.numbers, list(map(str, one.b))),
    "no number": lambda state, one: state["numbers"].delete(one.key, np.array(one.numbers)),
    "numbers": numbers_seen,
    "append": lambda state, one: state["elements"].append(
        np.repeat(one.key, 2), pd.Series(one.b, dtype="Int64").repeat(2)
    ),
    "all": lambda state, one: [
        shown([value for (value,) in of_key(state["elements"].rows(), at, "value")]) for at in one.key
    ],
    "drop first": drop_first,
    "clear list": lambda state, one: state["elements"].clear(one.mask(state).tolist()),
    "forget": lambda state, one: state.delete(one.mask(state)),
}
"""The same for many keys; what each saw, or None."""


class Model:
    """Python's own dictionaries and lists."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}

    def batch(self, steps: list[Step]) -> list[tuple[str, int, str]]:
        seen = []
        for at, (key, name, a, b) in enumerate(steps):
            saw = STEPS[name](self.kept.setdefault(key, Kept({}, {}, [])), a, b)
            if saw is not None:
                seen.append((key, at, saw))
        return sorted(seen)


def table_of(steps: list[Step]) -> pa.Table:
    rows = [(key, at, name, a, b) for at, (key, name, a, b) in enumerate(steps)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    return pa.Table.from_arrays(
        [pa.array(list(column), f.type) for column, f in zip(columns, INPUT, strict=True)], schema=INPUT
    )


texts, values, keys = (
    st.sampled_from(["", "a", "b"]),
    st.none() | st.integers(0, 3),
    st.sampled_from("pqr"),
)
EVERYTHING: list[Step] = [(key, name, "b", 0) for name in ("rows", "numbers", "all") for key in "pqr"]
names = st.sampled_from(sorted(STEPS))
runs = st.lists(
    names.flatmap(
        lambda name: st.lists(st.tuples(keys, st.just(name), texts, values), min_size=2, max_size=6)
    ),
    min_size=3,
    max_size=10,
).map(lambda parts: [step for part in parts for step in part])
batches = st.tuples(st.booleans(), runs)
events = st.lists(batches | batches | st.sampled_from([1, 2, 3]), min_size=3, max_size=6)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    events=events,
    few=st.sampled_from([0, 2, 64]),
    layers=st.sampled_from([1, 8]),
    rows=st.sampled_from([1, 100]),
)
@settings(max_examples=share(25))
def test_columns_and_keys_see_the_same(
    backend: str, events: list[Any], few: int, layers: int, rows: int
) -> None:
    """Random calls in random batches, key by key or in columns by turns, with lost machines and rescales, see what plain Python sees."""
    model = Model()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rows, "FEW_ROWS", few)
        patch.setattr(table_rows, "_MANY_LAYERS", layers)
        patch.setattr(run_module, "LIMITS", PieceLimits(bytes=1 << 20, rows=rows))
        cluster = OperatorCluster(Path(folder), OUTPUT, backend)
        for event in events:
            if isinstance(event, int):
                cluster.rescale(event)
                cluster.batch(Rowwise(), table_of([]))
                continue
            columns, asked = event
            steps = [*asked, *EVERYTHING]
            results = cluster.batch(InColumns() if columns else Rowwise(), table_of(steps))
            assert sorted(tuple(row.values()) for row in results) == model.batch(steps)


class Calls(ps.BatchProcess):
    """Calls what a test says."""

    by_shop = ps.MapState("string", "long")
    small = ps.MapState("byte", "decimal(4,2)")
    recent = ps.ListState("timestamp")
    total = ps.ValueState("long", default=0)

    def __init__(self, call: Any) -> None:
        self.call = call

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        self.call(state)


def calling(tmp_path: Path, call: Any) -> None:
    OperatorCluster(tmp_path, OUTPUT).batch(Calls(call), table_of([(k, "", "", 0) for k in "pqrs"]))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda s: s["by_shop"].put([0, 9], ["a", "b"], [1, 2]),
            r"put\(\) of the state 'by_shop'.*key_index\[1\] is 9",
        ),
        (lambda s: s["by_shop"].put([0, -1], ["a", "b"], [1, 2]), r"key_index\[1\] is -1"),
        (lambda s: s["by_shop"].get([0, None], ["a", "b"]), r"key_index\[1\] is None"),
        (lambda s: s["by_shop"].get([0.5], ["a"]), r"'key_index' to.*0\.5"),
        (lambda s: s["by_shop"].put([0, 1], ["a", None], [1, 2]), r"'by_shop'.*keys\[1\] is null"),
        (lambda s: s["by_shop"].delete([0, 1], [None, "a"]), r"delete\(\).*keys\[0\] is null"),
        (lambda s: s["by_shop"].put([0, 1], ["a"], [1, 2]), r"'keys' to 1 value for 2 rows"),
        (lambda s: s["by_shop"].put([0, 1], ["a", "b"], [1]), r"'values' to 1 value for 2 rows"),
        (lambda s: s["by_shop"].put([0], [7], [1]), r"'by_shop'.*'keys' to.*7"),
        (lambda s: s["by_shop"].put([0], ["a"], ["x"]), r"'values' to.*'x'"),
        (lambda s: s["by_shop"].get([0], np.array([7])), r"'keys' to values of type .*7"),
        (lambda s: s["small"].put([0], [300], ["1"]), r"'small'.*'keys' to.*300"),
        (lambda s: s["small"].put([0], [3], [0.125]), r"'small'.*'values' to.*0\.125"),
        (lambda s: s["recent"].append([0], [5]), r"append\(\) of the state 'recent'.*'values' to.*5"),
        (lambda s: s["recent"].append(["a"], [None]), r"'key_index' to.*'a'"),
        (lambda s: s["recent"].clear([True]), r"clear\(\).*'mask' to 1 value for [1-4] key"),
        (lambda s: s["recent"].rows("all"), r"rows\(\).*'mask' to 'all'"),
        (
            lambda s: s.__setitem__("by_shop", [1]),
            r"the state 'by_shop', which is a map, with get\(\), contains\(\), put\(\)",
        ),
        (lambda s: s["others"], r"declared are: by_shop, recent, small, total"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, call: Any, says: str) -> None:
    """The error names the state, the call, and the value."""
    with pytest.raises(BadRecordError, match=says):
        calling(tmp_path, call)


def test_a_key_that_is_null_is_not_there(tmp_path: Path) -> None:
    """Asked for, a null is no entry, as in a map key by key."""

    def call(state: ps.types.BatchState) -> None:
        state["by_shop"].put([0], ["a"], [1])
        assert state["by_shop"].get([0, 0], [None, "a"]).to_pylist() == [None, 1]
        assert state["by_shop"].contains([0], [None]).to_pylist() == [False]
        assert state["by_shop"].get([], []).to_pylist() == []
        assert state["by_shop"].rows().column_names == ["key_index", "key", "value"]

    calling(tmp_path, call)


def test_what_was_not_changed_is_not_written(tmp_path: Path) -> None:
    """A call that only reads adds no file."""
    cluster = OperatorCluster(tmp_path, OUTPUT, "filesystem")
    rows = table_of([(k, "", "", 0) for k in "pqrs"])
    cluster.batch(Calls(lambda s: s["by_shop"].put([0], ["a"], [1])), rows)
    before = cluster.files
    cluster.batch(Calls(lambda s: (s["by_shop"].rows(), s["by_shop"].get([0], ["a"]))), rows)
    assert cluster.files == before
