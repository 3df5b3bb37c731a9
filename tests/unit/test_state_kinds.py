"""Reducing, aggregating and raw state: what user code sees, what is stored, and what is refused before the start."""

from __future__ import annotations

import json
import operator
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import types as T

import penstock as ps
from builders.operator_cluster import OperatorCluster
from penstock.operators.process.failed_call import failed_call
from penstock.operators.state.cells import StateAssignedError
from penstock.operators.state.declarations import column_states, declared_state, value_schema
from penstock.state.ddl import arrow_schema
from services.tiers import share

OUTPUT = pa.schema([("k", pa.string()), ("seen", pa.string())])


def rows(*given: tuple[str, Any]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in given], pa.string()), "x": [x for _, x in given]})


def cluster(root: Path, **settings: Any) -> OperatorCluster:
    return OperatorCluster(root, OUTPUT, **settings)


class Mean(ps.AggregateFunction):
    """Changes its accumulator in place."""

    def create(self) -> Any:
        return {"sum": 0, "n": 0}

    def add(self, accumulator: Any, value: Any) -> Any:
        accumulator["sum"] += value
        accumulator["n"] += 1
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        return {name: accumulator[name] + other[name] for name in accumulator}

    def result(self, accumulator: Any) -> Any:
        return accumulator["sum"] / accumulator["n"]


class Collect(ps.AggregateFunction):
    """One list for all keys, changed in place, and handed out as it is: everything that can be shared is."""

    def __init__(self) -> None:
        self.empty: Any = {"all": []}

    def create(self) -> Any:
        return self.empty

    def add(self, accumulator: Any, value: Any) -> Any:
        accumulator["all"].append(value)
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        accumulator["all"].extend(other["all"])
        return accumulator

    def result(self, accumulator: Any) -> Any:
        return accumulator["all"]


def joined(old: Any, new: Any) -> Any:
    """In place."""
    old.extend(new)
    return old


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# ── every kind equals a plain model, whatever happens ──────────────────────────────────────────


class Reduces(ps.KeyedProcess):
    total = ps.ReducingState("long", operator.add, default=0)
    all = ps.ReducingState("array<long>", joined)

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        given: list[int] = []
        for row in rows:
            match row.op:
                case "add":
                    given[:] = [row.x]  # the same list each time
                    self.total.add(row.x)
                    self.all.add(given)
                case "clear":
                    self.all.clear()
                case "forget":
                    self.total.clear()
                    self.all.clear()
                case "fail":
                    raise ValueError("no")
            seen = [self.total.value, self.all.value]
            yield key, json.dumps(seen)
            if seen[1] is not None:
                seen[1].append(-1)  # a copy


class Aggregates(ps.KeyedProcess):
    mean = ps.AggregatingState("struct<sum:long,n:long>", Mean)
    all = ps.AggregatingState("struct<all:array<long>>", Collect())

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            match row.op:
                case "add":
                    self.mean.add(row.x)
                    self.all.add(row.x)
                case "clear":
                    self.all.clear()
                case "forget":
                    self.mean.clear()
                    self.all.clear()
                case "fail":
                    raise ValueError("no")
                case "merge":
                    self.all.merge({"all": [row.x, row.x]})
            seen = [self.mean.value, self.all.value]
            yield key, json.dumps(seen)
            if seen[1] is not None:
                seen[1].append(-1)
                self.all.accumulator["all"].append(-1)


class Raw(ps.KeyedProcess):
    total = ps.RawState(encode=to_json, decode=json.loads, default=0)
    all = ps.RawState(encode=to_json, decode=json.loads, default=[])

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            match row.op:
                case "add":
                    self.total.value += row.x
                    self.all.value.append(row.x)
                case "clear":
                    self.all.clear()
                case "forget":
                    self.total.value = None
                    self.all.clear()
                case "fail":
                    raise ValueError("no")
                case "merge":
                    self.all.value = [*self.all.value, row.x, row.x]
            yield key, json.dumps([self.total.value, self.all.value])


Model = tuple[tuple[int, int] | None, list[int] | None]
"""Sum and number of what was added, and all of it; each None when nothing is there."""


def after(model: Model, op: str, x: int, *, merges: bool) -> Model:
    total, seen = model
    if op == "add":
        return ((total or (0, 0))[0] + x, (total or (0, 0))[1] + 1), [*(seen or []), x]
    if op == "merge" and merges:
        return total, [*(seen or []), x, x]
    if op == "clear":
        return total, None
    return (None, None) if op == "forget" else model


@dataclass(frozen=True)
class Kind:
    """An operator, what it shows of a model, and what is stored of it."""

    operator: Callable[[], ps.KeyedProcess]
    shows: Callable[[Model], Any]
    stores: Callable[[Model], Any]


KINDS = {
    "reducing": Kind(
        Reduces,
        lambda m: [m[0][0] if m[0] else 0, m[1]],
        lambda m: {"total": m[0] and m[0][0], "all": m[1]},
    ),
    "aggregating": Kind(
        Aggregates,
        lambda m: [m[0] and m[0][0] / m[0][1], m[1]],
        lambda m: {
            "mean": m[0] and {"sum": m[0][0], "n": m[0][1]},
            "all": None if m[1] is None else {"all": m[1]},
        },
    ),
    "raw": Kind(
        Raw,
        lambda m: [m[0][0] if m[0] else 0, m[1] or []],
        lambda m: {
            "total": None if m[0] is None else to_json(m[0][0]),
            "all": None if m[1] is None else to_json(m[1]),
        },
    ),
}

a_row = st.tuples(
    st.sampled_from("abcdefg"),
    st.sampled_from(["add"] * 6 + ["look", "clear", "forget", "fail", "merge"]),
    st.integers(-(10**9), 10**9),
)
BATCHES = st.lists(st.lists(a_row, min_size=1, max_size=14), min_size=1, max_size=7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["memory", "filesystem"])
@settings(max_examples=share(25))
@given(batches=BATCHES, data=st.data())
def test_a_kind_equals_its_model(kind: str, backend: str, batches: Any, data: st.DataObject) -> None:
    """Through calls that are undone, cleared keys, rescales and lost files, results and state are those of a plain Python model."""
    compare_with_the_model(KINDS[kind], backend, batches, data)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)  # RocksDB syncs a dozen files a batch
@given(batches=BATCHES, data=st.data())
def test_a_kind_equals_its_model_on_rocksdb(kind: str, batches: Any, data: st.DataObject) -> None:
    """The same holds for RocksDB."""
    compare_with_the_model(KINDS[kind], "rocksdb", batches, data)


def compare_with_the_model(kind: Kind, backend: str, batches: Any, data: st.DataObject) -> None:
    rescale_before = data.draw(st.integers(0, len(batches) - 1), label="rescale before batch")
    models: dict[str, Model] = {}
    with tempfile.TemporaryDirectory() as root:
        running = cluster(Path(root), backend=backend, tolerant=True)
        for number, batch in enumerate(batches):
            if number and number == rescale_before:
                running.rescale(data.draw(st.integers(1, 4), label="parallelism"))
            expected = apply(kind, models, batch)
            keys, ops, xs = zip(*batch, strict=True)
            results = running.batch(kind.operator(), pa.table({"k": keys, "op": ops, "x": xs}))
            assert by_key((row["k"], json.loads(row["seen"])) for row in results) == expected
        assert running.stored() == {
            key: kind.stores(model) for key, model in models.items() if model != (None, None)
        }


def apply(kind: Kind, models: dict[str, Model], batch: list[tuple[str, str, int]]) -> dict[str, list[Any]]:
    """What a batch shows; a row that fails counts for nothing."""
    shown: dict[str, list[Any]] = {}
    for key in {key for key, _, _ in batch}:
        mine = [(op, x) for owner, op, x in batch if owner == key and op != "fail"]
        for op, x in mine:
            before = models.get(key, (None, None))
            models[key] = after(before, op, x, merges=kind is not KINDS["reducing"])
            shown.setdefault(key, []).append(kind.shows(models[key]))
    return shown


def by_key(results: Iterator[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, seen in results:
        found.setdefault(key, []).append(seen)
    return found


# ── reducing ───────────────────────────────────────────────────────────────────────────────────


def process_with(**states: Any) -> Callable[[Callable[..., Any]], ps.KeyedProcess]:
    """An operator with these states; the function is its `process`."""

    def make(process: Callable[..., Any]) -> ps.KeyedProcess:
        body = {**states, "process": lambda self, key, rows, ctx: process(self, key, rows)}
        made: Any = type("Made", (ps.KeyedProcess,), body)
        return made()  # type: ignore[no-any-return]

    return make


def test_a_default_is_only_read(tmp_path: Path) -> None:
    """Where nothing was added, `value` is the default, and the function never sees it."""
    op = process_with(total=ps.ReducingState("long", operator.add, default=100))(
        lambda self, key, rows: [
            (key, str(self.total.value)),
            self.total.add(rows[0].x) or (key, str(self.total.value)),
        ]
    )
    running = cluster(tmp_path)
    assert [row["seen"] for row in running.batch(op, rows(("a", 5)))] == ["100", "5"]
    assert [row["seen"] for row in running.batch(op, rows(("a", 2)))] == ["5", "7"]


@pytest.mark.parametrize(
    ("ddl", "function", "values", "wrong"),
    [
        ("long", lambda old, new: old / new, (3, 2), "1.5"),
        ("long", operator.mul, (2**40, 2**40), str(2**80)),
        ("long", lambda old, new: str(new), (1, 2), "'2'"),
        ("string", lambda old, new: 7, ("a", "b"), "7"),
        ("decimal(4,2)", operator.add, (Decimal("99.99"), Decimal("0.01")), "100.00"),
        ("boolean", lambda old, new: 1, (True, True), "1"),
        ("array<long>", lambda old, new: [*old, "x"], ([1], [2]), "'x'"),
        ("struct<a:long>", lambda old, new: {"b": 1}, ({"a": 1}, {"a": 2}), "'b'"),
        ("struct<a:long>", lambda old, new: (1, 2), ({"a": 1}, {"a": 2}), "(1, 2)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tolerant", [False, True])
def test_what_a_function_gives_must_fit(
    tmp_path: Path, ddl: str, function: Any, values: Any, wrong: str, *, tolerant: bool
) -> None:
    """A result that is not of the type is refused, with state, function, value and type; where bad rows may be, only its key is undone."""

    def adds(self: Any, key: Any, rows: Any) -> None:
        for value in values if key == "bad" else values[:1]:
            self.total.add(value)

    op = process_with(total=ps.ReducingState(ddl, function))(adds)
    running = cluster(tmp_path, tolerant=tolerant)
    if tolerant:
        running.batch(op, rows(("good", 1), ("bad", 1)))
        assert list(running.stored()) == ["good"]
        reason = running.bad.first_reason
    else:
        with pytest.raises(ps.BadRecordError) as raised:
            running.batch(op, rows(("good", 1), ("bad", 1)))
        reason = str(raised.value)
    name = getattr(function, "__qualname__", "")
    assert f"operator op: add() with the function {name} gave" in reason
    assert f" for 'total', which is not of type {ddl}: " in reason
    assert wrong in reason.split(" for 'total'")[0]


def test_a_value_is_judged_when_it_is_added(tmp_path: Path) -> None:
    """Two halves make a whole number, but neither is one: where a batch ends decides nothing."""

    def adds(self: Any, key: Any, rows: Any) -> None:
        self.total.add(0.5)
        self.total.add(0.5)

    op = process_with(total=ps.ReducingState("long", operator.add))(adds)
    with pytest.raises(ps.BadRecordError, match=r"gave 0\.5 for 'total', which is not of type long"):
        cluster(tmp_path).batch(op, rows(("a", 1)))


@pytest.mark.parametrize(
    ("ddl", "value", "read"),
    [
        ("long", 2.0, 2),
        ("double", 3, 3.0),
        ("float", 0.1, 0.10000000149011612),
        ("decimal(5,2)", 7, Decimal(7)),
        ("timestamp", datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),  # noqa: DTZ001 - that is the point
        ("struct<a:long,b:string>", (1, "x"), {"a": 1, "b": "x"}),
        ("map<string,long>", [("a", 1)], {"a": 1}),
        ("array<long>", (1, 2), [1, 2]),
    ],
)
def test_a_value_looks_the_same_in_every_batch(tmp_path: Path, ddl: str, value: Any, read: Any) -> None:
    """The function is given what it would be given one batch later, however the value was written in the code."""
    given: list[Any] = []

    def last(old: Any, new: Any) -> Any:
        given.append(old)
        return new

    def adds(self: Any, key: Any, rows: Any) -> None:
        for _ in rows:
            self.v.add(value)

    op = process_with(v=ps.ReducingState(ddl, last))(adds)
    running = cluster(tmp_path)
    running.batch(op, rows(("a", 1), ("a", 2)))
    running.batch(op, rows(("a", 1)))
    assert given == [read, read]
    assert list(map(type, given)) == [type(read)] * 2


def test_nothing_cannot_be_added(tmp_path: Path) -> None:
    """None means that there is no value: adding it, or a function that returns nothing, is an error that says so."""
    adds_none = process_with(t=ps.ReducingState("long", operator.add))(
        lambda self, key, rows: self.t.add(None)
    )
    with pytest.raises(ps.BadRecordError, match=r"op: add\(None\) for 't'.*leave it out") as refused:
        cluster(tmp_path).batch(adds_none, rows(("a", 1)))
    assert (refused.value.key, refused.value.operator) == ("a", "op")

    def adds(self: Any, key: Any, rows: Any) -> None:
        self.t.add([1])
        self.t.add([2])

    forgets = process_with(t=ps.ReducingState("array<long>", lambda old, new: old.extend(new)))(adds)
    with pytest.raises(ps.BadRecordError, match="gave None for 't'; the function must return"):
        cluster(tmp_path).batch(forgets, rows(("a", 1)))


def test_what_is_added_stays_the_users(tmp_path: Path) -> None:
    """A list of a row that is added first is not the list that the function changes in place."""

    def adds(self: Any, key: Any, rows: Any) -> Any:
        for row in rows:
            self.tags.add(row.x)
        return [(key, json.dumps([row.x for row in rows]))]

    op = process_with(tags=ps.ReducingState("array<long>", joined))(adds)
    table = pa.table({"k": ["a", "a"], "x": pa.array([[1], [2]], pa.list_(pa.int64()))})
    running = cluster(tmp_path)
    assert running.batch(op, table) == [{"k": "a", "seen": "[[1], [2]]"}]
    assert running.stored() == {"a": {"tags": [1, 2]}}


def test_the_user_may_hold_on_to_what_a_function_made(tmp_path: Path) -> None:
    """What the code of one key keeps and changes in the call of the next does not reach the state of the first."""
    kept: list[Any] = []

    def keeping(old: Any, new: Any) -> Any:
        kept.append(new)
        return new

    def adds(self: Any, key: Any, rows: Any) -> None:
        for one in kept:
            one.append(99)
        self.last.add([1])
        self.last.add([rows[0].x])

    op = process_with(last=ps.ReducingState("array<long>", keeping))(adds)
    running = cluster(tmp_path)
    running.batch(op, rows(("a", 1), ("b", 2), ("c", 3)))
    assert running.stored() == {key: {"last": [x]} for key, x in (("a", 1), ("b", 2), ("c", 3))}


def test_a_value_is_not_assigned(tmp_path: Path) -> None:
    """Neither a reducing nor an aggregating state takes `value = ...`; the error says what to write."""
    for state in (ps.ReducingState("long", max), ps.AggregatingState("struct<sum:long,n:long>", Mean)):
        op = process_with(t=state)(lambda self, key, rows: setattr(self.t, "value", 3))
        with pytest.raises(
            AttributeError, match=r"self\.t\.add\(\.\.\.\) and self\.t\.clear\(\), not by an assignment"
        ):
            cluster(tmp_path).batch(op, rows(("a", 1)))


# ── aggregating ────────────────────────────────────────────────────────────────────────────────


class Pairs(Mean):
    """Writes its accumulator as a tuple."""

    def create(self) -> Any:
        return (0, 0)

    def add(self, accumulator: Any, value: Any) -> Any:
        return (accumulator["sum"] + value, accumulator["n"] + 1)


def test_an_accumulator_is_read_as_state_is(tmp_path: Path) -> None:
    """Written as a tuple, it is a dictionary the next time, in the same call as in the next batch."""
    op = process_with(m=ps.AggregatingState("struct<sum:long,n:long>", Pairs))(
        lambda self, key, rows: [(self.m.add(row.x), (key, str(self.m.value)))[1] for row in rows]
    )
    running = cluster(tmp_path)
    assert [row["seen"] for row in running.batch(op, rows(("a", 4), ("a", 8)))] == ["4.0", "6.0"]
    assert [row["seen"] for row in running.batch(op, rows(("a", 0)))] == ["4.0"]


def test_accumulators_are_merged(tmp_path: Path) -> None:
    """`merge` adds all that another accumulator has; where there is none it becomes the key's own; None adds nothing."""

    def merges(self: Any, key: Any, rows: Any) -> Any:
        self.m.merge(None)
        yield key, str(self.m.value)
        other = {"sum": 10, "n": 2}
        self.m.merge(other)
        other["n"] = 1000
        self.m.merge((1, 2))
        yield key, str(self.m.accumulator)

    running = cluster(tmp_path)
    op = process_with(m=ps.AggregatingState("struct<sum:long,n:long>", Mean()))(merges)
    assert [row["seen"] for row in running.batch(op, rows(("a", 4)))] == ["None", "{'sum': 11, 'n': 4}"]


def test_an_accumulator_must_fit(tmp_path: Path) -> None:
    """What `add` gives and does not fit, or None, is refused with the function's name; only the key at fault is undone."""

    class Breaks(Mean):
        def add(self, accumulator: Any, value: Any) -> Any:
            return {1: accumulator, 2: {"sum": "much", "n": 1}, 3: None}[value]

    op = process_with(m=ps.AggregatingState("struct<sum:long,n:long>", Breaks))(
        lambda self, key, rows: self.m.add(rows[0].x)
    )
    running = cluster(tmp_path, tolerant=True)
    running.batch(op, rows(("a", 1), ("b", 2), ("c", 3)))
    assert list(running.stored()) == ["a"]
    reasons = [one["reason"] for batch in running.bad.letters() for one in batch.to_pylist()]
    assert len(reasons) == 2
    assert all("operator op: the function " in one and "Breaks" in one and "'m'" in one for one in reasons)
    assert any("'much'" in one and f"which is not of type {STRUCT}" in one for one in reasons)
    assert any("gave None" in one for one in reasons)


def test_a_flat_accumulator(tmp_path: Path) -> None:
    """An accumulator may be of any type, and a result of any other."""

    class Counts(Mean):
        def create(self) -> Any:
            return 0

        def add(self, accumulator: Any, value: Any) -> Any:
            return accumulator + 1

        def result(self, accumulator: Any) -> Any:
            return f"{accumulator} rows"

    op = process_with(n=ps.AggregatingState(T.LongType(), Counts))(
        lambda self, key, rows: [(self.n.add(row), (key, self.n.value))[1] for row in rows]
    )
    assert cluster(tmp_path).batch(op, rows(("a", 4), ("a", 1)))[1] == {"k": "a", "seen": "2 rows"}


# ── raw ────────────────────────────────────────────────────────────────────────────────────────


class Codec:
    """Counts its calls."""

    def __init__(self) -> None:
        self.encoded = 0
        self.decoded = 0

    def encode(self, value: Any) -> bytes:
        self.encoded += 1
        return to_json(value)

    def decode(self, data: bytes) -> Any:
        self.decoded += 1
        return json.loads(data)


def test_an_object_is_decoded_when_it_is_looked_at(tmp_path: Path) -> None:
    """Once in a call, however often it is read; never in a call that does not look."""
    codec = Codec()

    def looks(self: Any, key: Any, rows: Any) -> None:
        if rows[0].x == 0:
            self.o.value = {"n": 1}
        for _ in range(rows[0].x):
            assert self.o.value == {"n": 1}

    op = process_with(o=ps.RawState(encode=codec.encode, decode=codec.decode))(looks)
    running = cluster(tmp_path)
    running.batch(op, rows(("a", 0), ("b", 0), ("c", 0)))
    assert (codec.encoded, codec.decoded) == (3, 0)
    running.batch(op, rows(("a", 3), ("b", 1), ("c", -1)))
    assert (codec.encoded, codec.decoded) == (5, 2)


def test_only_other_bytes_are_written(tmp_path: Path) -> None:
    """An object that was looked at and not changed writes nothing, neither has a default; one that was changed in place does."""

    def looks(self: Any, key: Any, rows: Any) -> None:
        for row in rows:
            if row.x is None:
                _ = self.o.value
            else:
                self.o.value.append(row.x)

    op = process_with(o=ps.RawState(encode=to_json, decode=json.loads, default=[]))(looks)
    table = pa.table({"k": ["a", "b"], "x": pa.array([None, None], pa.int64())})
    running = cluster(tmp_path)
    running.batch(op, table)
    assert (running.files, running.stored()) == ([0], {})
    running.batch(op, rows(("a", 1)))
    assert running.stored() == {"a": {"o": b"[1]"}}
    files = running.files
    running.batch(op, table)
    assert running.files == files


def test_a_default_that_is_set_is_stored(tmp_path: Path) -> None:
    """Set by the code, the default is a value like any other, and stays when the code has another default."""
    op = process_with(o=ps.RawState(default=b"x"))(lambda self, key, rows: setattr(self.o, "value", b"x"))
    running = cluster(tmp_path)
    running.batch(op, rows(("a", 1)))
    assert running.stored() == {"a": {"o": b"x"}}


def test_plain_bytes(tmp_path: Path) -> None:
    """Without encode and decode the value is bytes; a bytearray may be changed until the call ends, and not after it."""
    buffer = bytearray()

    def fills(self: Any, key: Any, rows: Any) -> Any:
        buffer.clear()
        self.o.value = buffer
        buffer.extend(key.encode())
        yield key, str(type(self.o.value))

    running = cluster(tmp_path)
    running.batch(process_with(o=ps.RawState())(fills), rows(("a", 1), ("bb", 1)))
    assert running.stored() == {"a": {"o": b"a"}, "bb": {"o": b"bb"}}
    reads = process_with(o=ps.RawState())(lambda self, key, rows: [(key, str(self.o.value))])
    assert running.batch(reads, rows(("a", 1))) == [{"k": "a", "seen": "b'a'"}]
    assert running.batch(reads, rows(("c", 1))) == [{"k": "c", "seen": "None"}]


def test_encode_must_give_bytes(tmp_path: Path) -> None:
    """Anything else is an error with operator, key and state; so is an encode that raises."""
    sets = lambda self, key, rows: setattr(self.o, "value", [rows[0].x])  # noqa: E731
    for encode, text in (
        (cast("Any", str), r"operator op, key 'a': the state 'o' has an encode that gave '\[1\]'; .*bytes"),
        (
            lambda value: b"" + value,
            r"operator op, key 'a': encode failed on \[1\] for the state 'o': TypeError: ",
        ),
    ):
        op = process_with(o=ps.RawState(encode=encode, decode=bytes))(sets)
        with pytest.raises(ps.BadRecordError, match=text) as refused:
            cluster(tmp_path).batch(op, rows(("a", 1)))
        assert failed_call(refused.value).key == "'a'"
    with pytest.raises(
        ps.BadRecordError, match=r"the state 'o' was set to \[1\]; a raw state is stored as bytes"
    ):
        cluster(tmp_path).batch(process_with(o=ps.RawState())(sets), rows(("a", 1)))


def test_an_object_that_cannot_be_encoded_undoes_its_key(tmp_path: Path) -> None:
    """Where bad rows may be, only that key is bad, its results too, and the next key has nothing of its object."""

    def sets(self: Any, key: Any, rows: Any) -> Any:
        self.o.value = [rows[0].x] if key != "b" else {1, 2}
        yield key, "seen"

    op = process_with(o=ps.RawState(encode=to_json, decode=json.loads, default=[]))(sets)
    running = cluster(tmp_path, tolerant=True)
    assert sorted(row["k"] for row in running.batch(op, rows(("a", 1), ("b", 2), ("c", 3)))) == ["a", "c"]
    assert running.stored() == {"a": {"o": b"[1]"}, "c": {"o": b"[3]"}}
    assert "the state 'o': TypeError" in running.bad.first_reason


@pytest.mark.parametrize("tolerant", [False, True])
def test_bytes_that_cannot_be_decoded_end_the_run(tmp_path: Path, tolerant: bool) -> None:
    """The error names operator, key, state and cause; it is not about the rows of the batch, so none of them is left out."""
    running = cluster(tmp_path, tolerant=tolerant)
    op = process_with(o=ps.RawState())(lambda self, key, rows: setattr(self.o, "value", b"{"))
    running.batch(op, rows(("a", 1)))
    op = process_with(o=ps.RawState(encode=to_json, decode=json.loads))(lambda self, key, rows: self.o.value)
    with pytest.raises(
        ps.errors.IncompatibleStateError,
        match=r"operator op, key 'a': decode failed on 1 bytes of the state 'o': JSONDecodeError: .*drop_state=\('op',\)",
    ) as raised:
        running.batch(op, rows(("a", 1)))
    assert raised.value.facts == {"operator": "op", "key": "a", "state": "o"}


# ── declared wrongly ───────────────────────────────────────────────────────────────────────────


class LacksTwo:
    def create(self) -> Any: ...
    def add(self, accumulator: Any, value: Any) -> Any: ...


class Nothing(Mean):
    def create(self) -> Any:
        return None


class Fails(Mean):
    def create(self) -> Any:
        raise OSError("no file")


class Abstract(ps.AggregateFunction):
    def create(self) -> Any:
        return 0


STRUCT = "struct<sum:long,n:long>"
reducing: Any = ps.ReducingState
raw: Any = ps.RawState
"""Without their types, which would refuse the same."""


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: reducing("lung", operator.add), "cannot read the type 'lung'"),
        (lambda: reducing("long", 5), "function=5 is not a function: give one that takes the value so far and"),
        (lambda: reducing("long", lambda x: x), r"lambda>\(x\) cannot be called with 2 arguments \(the value so far"),
        (lambda: reducing("long", operator.add, default="x"), "default='x' is not a long"),
        (lambda: ps.AggregatingState("struct<", Mean), "cannot read the type"),
        (lambda: ps.AggregatingState("long", max), "lacks create, add, merge, result; an aggregate function has create"),
        (lambda: ps.AggregatingState("long", LacksTwo()), "lacks merge, result"),
        (lambda: ps.AggregatingState("long", Abstract), "function=Abstract cannot be made without arguments"),
        (lambda: ps.AggregatingState("struct<sum:string>", Mean()), r"create\(\) of Mean gave .*not of type struct<sum:string>"),
        (lambda: ps.AggregatingState("struct<sum:long>", Mean()), "create.*Mean gave .*has no field 'n'"),
        (lambda: ps.AggregatingState(STRUCT, Nothing()), r"create\(\) of Nothing gave None"),
        (lambda: ps.AggregatingState(STRUCT, Fails()), r"create\(\) of Fails raised OSError: no file"),
        (lambda: raw(encode=to_json), "has encode, but no decode"),
        (lambda: raw(decode=json.loads), "has decode, but no encode"),
        (lambda: raw(encode=b"", decode=json.loads), "encode=b'' is not a function"),
        (lambda: raw(encode=to_json, decode=lambda: 1), "cannot be called with 1 argument "),
        (lambda: raw(default="text"), "default='text' is not bytes; give encode and decode"),
        (lambda: raw(encode=str, decode=str, default=1), "of default=1 encode makes '1', which is not bytes"),
        (lambda: raw(encode=to_json, decode=json.loads, default={1}), r"default=\{1\} cannot be encoded and decoded: TypeError"),
        (lambda: raw(encode=to_json, decode=json.load, default=1), "cannot be encoded and decoded: AttributeError"),
    ],
)  # fmt: skip
def test_what_is_declared_wrongly_is_refused_at_once(declare: Callable[[], Any], text: str) -> None:
    """When the class is made, before there is a job or a Spark."""
    with pytest.raises(ps.ConfigError, match=text):
        declare()


def test_two_states_of_one_name() -> None:
    """The second would replace the first and nobody would be told, so it is refused; a subclass may replace one."""
    with pytest.raises(ps.ConfigError, match="'total' twice"):

        class Twice(ps.KeyedProcess):
            total = ps.ValueState("long")
            total = ps.ReducingState("long", operator.add)  # type: ignore[assignment]  # noqa: PIE794

    with pytest.raises(ps.ConfigError, match="'total' twice"):

        class Method(ps.BatchProcess):
            def total(self) -> None: ...

            total = ps.RawState()  # type: ignore[assignment]  # noqa: F811

    with pytest.raises(ps.ConfigError, match="'total' twice"):

        class Hidden(ps.KeyedProcess):
            total = ps.RawState()

            def total(self) -> None: ...  # type: ignore[no-redef]  # noqa: F811

    class Other(Reduces):
        total = ps.ReducingState("double", max)

    assert value_schema(Other.__new__(Other)).field("total").type == pa.float64()


@pytest.mark.parametrize(
    "use",
    [
        lambda op: op.total.add(1),
        lambda op: op.total.value,
        lambda op: op.total.clear(),
        lambda op: op.mean.add(1),
        lambda op: op.mean.merge(None),
        lambda op: op.mean.value,
        lambda op: op.mean.accumulator,
        lambda op: op.raw.value,
        lambda op: op.raw.clear(),
        lambda op: setattr(op.raw, "value", b""),
    ],
)
def test_state_is_used_inside_process(use: Callable[[Any], Any]) -> None:
    """Everywhere else there is no key, and the error names the state and the place."""
    with pytest.raises(ps.ConfigError, match=r"state '(total|mean|raw)' can be used only inside process\(\)"):
        use(Columns())


def test_assignments_to_states_are_refused() -> None:
    """`self.total = 3` would hide the state; the error says what to write instead, in either form."""
    keyed = process_with(
        total=ps.ReducingState("long", max), mean=ps.AggregatingState(STRUCT, Mean), raw=ps.RawState()
    )(lambda self, key, rows: None)
    for name, instead in (("total", "add(...)"), ("mean", "add(...)"), ("raw", "value = ...")):
        with pytest.raises(AttributeError) as keyed_error:
            setattr(keyed, name, 3)
        assert (
            str(keyed_error.value)
            == f"{name} is state: write self.{name}.{instead} instead of self.{name} = ..."
        )
        with pytest.raises(AttributeError) as batch_error:
            setattr(Columns(), name, 3)
        assert f'write state["{name}"] = ... instead' in str(batch_error.value)


@pytest.mark.parametrize(
    ("state", "uses", "says"),
    [
        (ps.ValueState("long", default=0), "self.n += 1", "self.n.value += ... instead of self.n += ..."),
        (ps.ValueState("long", default=0), "self.n -= 1", "self.n.value instead of self.n"),
        (ps.ValueState("long", default=0), "self.n < 1", "self.n.value instead of self.n"),
        (ps.RawState(), "self.n += b'1'", "self.n.value += ... instead of self.n += ..."),
        (ps.ReducingState("long", max), "self.n += 1", "self.n.add(...) instead of self.n += ..."),
        (ps.MapState("string", "long"), "self.n += 1", "self.n[...] += ... instead of self.n += ..."),
        (ps.ListState("long"), "self.n += 1", "self.n.append(...) instead of self.n += ..."),
    ],
)
@pytest.mark.parametrize("on_bad_record", ["fail", "skip"])
def test_calculating_with_a_state_itself_says_what_to_write(
    state: Any, uses: str, says: str, on_bad_record: str
) -> None:
    """`self.n += 1` ends the run with what to write, also where bad rows are skipped: no other row would do better."""
    operator = process_with(n=state)(lambda self, key, rows: exec(uses))
    with pytest.raises(StateAssignedError) as raised:
        ps.testing.run(
            operator,
            [("a", 1)],
            key="k",
            input_schema="k string, v long",
            schema="v long",
            on_bad_record=on_bad_record,
        )
    assert str(raised.value) == f"n is state: write {says}"


@pytest.mark.parametrize(
    ("state", "members"),
    [
        (ps.ReducingState("long", max), "a reducing state has .add(), .value and .clear()"),
        (
            ps.AggregatingState(STRUCT, Mean),
            "an aggregating state has .add(), .merge(), .value, .accumulator and .clear()",
        ),
        (ps.RawState(), "a raw state has .value and .clear()"),
    ],
)
def test_a_misspelt_member_is_told_what_there_is(tmp_path: Path, state: Any, members: str) -> None:
    """An error about a name that a state has not says which it has, and they are there."""
    with pytest.raises(AttributeError) as raised:
        cluster(tmp_path).batch(process_with(s=state)(lambda self, key, rows: self.s.ad(1)), rows(("a", 1)))
    assert failed_call(raised.value).names == members
    for name in ("add", "merge", "value", "accumulator", "clear"):
        assert (
            (f".{name}" in members) == hasattr(type(state.make_cell("s")), name) == hasattr(type(state), name)
        )


def test_states_with_a_column_are_told_from_others() -> None:
    """All three are columns in the row of the key, under their names, in the types that were declared."""
    assert list(declared_state(Columns())) == list(column_states(Columns())) == ["mean", "raw", "total"]
    mean = pa.struct([("sum", pa.int64()), ("n", pa.int64())])
    assert value_schema(Columns()) == pa.schema([("mean", mean), ("raw", pa.binary()), ("total", pa.int64())])


# ── in columns, and from one form to the other ─────────────────────────────────────────────────


class Columns(ps.BatchProcess):
    total = ps.ReducingState("long", operator.add, default=0)
    mean = ps.AggregatingState(STRUCT, Mean)
    raw = ps.RawState(encode=to_json, decode=json.loads, default=0)

    def process_batch(self, keys: Any, batch: Any, state: ps.types.BatchState) -> Any:
        state["total"] = pc.add(state["total"], 100)
        state["mean"] = [{"sum": (old or {"sum": 0})["sum"] + 100, "n": (old or {"n": 0})["n"] + 1} for old in state["mean"].to_pylist()]  # fmt: skip
        state["raw"] = [to_json(json.loads(data) + 100) for data in state["raw"].to_pylist()]
        return {"k": keys["k"], "seen": [str(row) for row in zip(*(state[name].to_pylist() for name in ("total", "raw")), strict=True)]}  # fmt: skip


class Keyed(ps.KeyedProcess):
    total = Columns.total
    mean = Columns.mean
    raw = Columns.raw

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.total.add(row.x)
            self.mean.add(row.x)
            self.raw.value += row.x
        yield key, str((self.total.value, self.raw.value, self.mean.value))


def test_from_keys_to_columns_and_back(tmp_path: Path) -> None:
    """In columns a state is its values, its accumulators or its bytes, and either form goes on with what the other stored."""
    running = cluster(tmp_path, backend="filesystem")
    assert running.batch(Columns(), rows(("a", 1))) == [{"k": "a", "seen": "(100, b'100')"}]
    assert running.batch(Keyed(), rows(("a", 2), ("b", 4))) == [
        {"k": "a", "seen": "(102, 102, 51.0)"},
        {"k": "b", "seen": "(4, 4, 4.0)"},
    ]
    running.rescale(3)
    running.batch(Columns(), rows(("b", 0)))
    assert running.stored() == {
        "a": {"total": 102, "mean": {"sum": 102, "n": 2}, "raw": b"102"},
        "b": {"total": 104, "mean": {"sum": 104, "n": 2}, "raw": b"104"},
    }


def test_another_function_goes_on_with_the_value(tmp_path: Path) -> None:
    """What is stored does not depend on the function, nor on the kind of state."""
    running = cluster(tmp_path)
    add = lambda self, key, rows: [(self.n.add(row.x), (key, str(self.n.value)))[1] for row in rows]  # noqa: E731
    running.batch(
        process_with(n=ps.ValueState("long"))(lambda self, key, rows: setattr(self.n, "value", 5)),
        rows(("a", 0)),
    )
    assert running.batch(process_with(n=ps.ReducingState("long", max))(add), rows(("a", 3)))[0]["seen"] == "5"
    assert (
        running.batch(process_with(n=ps.ReducingState("long", operator.sub))(add), rows(("a", 3)))[0]["seen"]
        == "2"
    )


def test_the_programs_on_the_page_run(tmp_path: Path) -> None:
    """The examples of docs/own-code/state.md run and give the results that the page promises."""
    page = (Path(__file__).parents[2] / "docs" / "own-code" / "state.md").read_text(encoding="utf-8")
    shown: dict[str, Any] = {"ps": ps, "operator": operator, "Decimal": Decimal, "json": json}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, shown)
    table = pa.table(
        {
            "k": ["a", "a"],
            "amount": pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(12, 2)),
            "ms": [1.0, 4.0],
            "page": ["x", "x"],
        }
    )
    for name, columns, result in (
        (
            "Spending",
            "k string, total decimal(12,2), largest decimal(12,2)",
            (Decimal("3.75"), Decimal("2.25")),
        ),
        ("Response", "k string, mean double", (2.5,)),
        ("Pages", "k string, n long", (1,)),
    ):
        running = OperatorCluster(tmp_path / name, arrow_schema(columns))
        assert [tuple(row.values()) for row in running.batch(shown[name](), table)] == [("a", *result)]


# ── into tasks ─────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
import json, operator, sys
import penstock as ps
from pyspark import cloudpickle

def longest(old, new):
    return max(old, new, key=len)

class Sum(ps.AggregateFunction):
    def create(self): return 0
    def add(self, acc, x): return acc + x
    def merge(self, acc, other): return acc + other
    def result(self, acc): return acc

class All(ps.KeyedProcess):
    a = ps.ReducingState("long", operator.add)
    b = ps.ReducingState("long", lambda old, new: old * new)
    c = ps.ReducingState("string", longest)
    d = ps.AggregatingState("long", Sum)
    e = ps.RawState(encode=lambda value: json.dumps(value).encode(), decode=json.loads, default=[])
    def process(self, key, rows, ctx):
        for row in rows:
            self.a.add(row.x)
            self.b.add(row.x)
            self.c.add("x" * row.x)
            self.d.add(row.x)
            self.e.value.append(row.x)
        yield key, str((self.a.value, self.b.value, self.c.value, self.d.value, self.e.value))

sys.stdout.buffer.write(cloudpickle.dumps(All()))
"""


def test_functions_of_a_script_travel_into_tasks(tmp_path: Path) -> None:
    """Lambdas, functions and classes of the program itself, those of modules and those of the operator module are there in another process."""
    pickled = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True).stdout
    running = cluster(tmp_path)
    running.batch(pickle.loads(pickled), rows(("a", 2)))
    (result,) = running.batch(pickle.loads(pickled), rows(("a", 3), ("a", 4)))
    assert result["seen"] == "(9, 24, 'xxxx', 9, [2, 3, 4])"


def test_functions_of_a_module_travel_into_tasks(tmp_path: Path) -> None:
    """An operator of a module is pickled by its name, with the settings of the instance."""
    again = pickle.loads(cloudpickle.dumps(Keyed()))
    assert type(again) is Keyed
    assert cluster(tmp_path).batch(again, rows(("a", 3))) == [{"k": "a", "seen": "(3, 3, 3.0)"}]
