"""Lists of operators and broadcast state equal plain Python, whatever happens to the job; wrong use is refused before it starts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.task_cluster import TaskCluster
from penstock.config import OnBadRecord
from penstock.operators.grouping import PieceLimits
from penstock.operators.process.failed_call import failed_call
from penstock.operators.process.unkeyed import run_unkeyed
from penstock.state.ddl import arrow_schema
from services.tiers import share

NUMBERS = arrow_schema("op string, x long")
SEEN = arrow_schema("seen string")
MOST = 4


# ── lists of operators ─────────────────────────────────────────────────────────────────────────


def do(numbers: Any, op: str, x: int) -> None:
    """The same on a list of Python's and on one that is state."""
    match op:
        case "append":
            numbers.append(x)
        case "twice":
            numbers.extend([x, x])
        case "first":
            numbers.insert(0, x)
        case "drop" if len(numbers):
            del numbers[x % len(numbers)]
        case "set" if len(numbers):
            numbers[x % len(numbers)] = x
        case "clear":
            numbers.clear()


class Keeps(ps.Process):
    """Does the same to a list that is split and to one that everyone gets."""

    split = ps.OperatorListState("long")
    whole = ps.OperatorListState("struct<x:long>", on_rescale="whole")

    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str]]:
        for row in rows:
            do(self.split, row.op, row.x)
            plain = [one["x"] for one in self.whole]
            do(plain, row.op, row.x)
            self.whole[:] = [{"x": x} for x in plain]
        yield (json.dumps([list(self.split), [one["x"] for one in self.whole]]),)


Lists = list[list[int]]


def rescaled(split: Lists, whole: Lists, parallelism: int) -> tuple[Lists, Lists]:
    if len(split) == parallelism:
        return [list(one) for one in split], [list(one) for one in whole]
    every = [x for one in split for x in one]
    share = [at * len(every) // parallelism for at in range(parallelism + 1)]
    return (
        [every[first:behind] for first, behind in pairwise(share)],
        [[x for one in whole for x in one] for _ in range(parallelism)],
    )


an_operation = st.tuples(
    st.sampled_from(["append"] * 4 + ["twice", "first", "drop", "set", "clear"]), st.integers(-99, 99)
)
a_batch = st.dictionaries(
    st.integers(0, MOST - 1), st.lists(an_operation, min_size=1, max_size=5), max_size=MOST
)
a_start = st.integers(1, MOST)
LIVES = st.lists(
    st.one_of(a_batch, a_batch, st.just("checkpoint"), st.tuples(st.just("restart"), a_start)),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("backend", ["memory", "filesystem"])
@settings(max_examples=share(40), deadline=None)
@given(first=a_start, life=LIVES)
def test_lists_equal_pythons_own(backend: str, first: int, life: list[Any]) -> None:
    """Through batches, crashes and any number of subtasks, also where some never get a row, every element is where it should be."""
    live_with_lists(backend, first, life)


@settings(max_examples=share(12), deadline=None)
@given(first=a_start, life=LIVES)
def test_lists_equal_pythons_own_on_rocksdb(first: int, life: list[Any]) -> None:
    """The same holds for RocksDB."""
    live_with_lists("rocksdb", first, life)


def live_with_lists(backend: str, first: int, life: list[Any]) -> None:
    split: Lists = [[] for _ in range(first)]
    whole: Lists = [[] for _ in range(first)]
    completed: tuple[Lists, Lists] = [[] for _ in split], [[] for _ in whole]
    with tempfile.TemporaryDirectory() as root:
        running = TaskCluster(
            Path(root), Keeps(), rows=NUMBERS, output=SEEN, backend=backend, parallelism=first
        )
        for event in [*life, "checkpoint", ("restart", 1)]:
            match event:
                case "checkpoint":
                    running.checkpoint()
                    completed = [list(one) for one in split], [list(one) for one in whole]
                case ("restart", parallelism):
                    running.restart(parallelism)
                    split, whole = rescaled(*completed, parallelism)
                case _:
                    rows = {at: ops for at, ops in event.items() if at < running.parallelism}
                    for at, operations in rows.items():
                        for op, x in operations:
                            do(split[at], op, x)
                            do(whole[at], op, x)
                    results = running.batch(
                        {at: [{"op": op, "x": x} for op, x in ops] for at, ops in rows.items()}
                    )
                    assert {row["by"]: json.loads(row["seen"]) for row in results} == {
                        at: [split[at], whole[at]] for at in rows
                    }
            stored = running.stored()
            assert [one["split"].column("split").to_pylist() for one in stored] == split
            assert [[x["x"] for x in one["whole"].column("whole").to_pylist()] for one in stored] == whole


# ── broadcast state ────────────────────────────────────────────────────────────────────────────

RULES = arrow_schema("op string, name string, max long")
PAYMENTS = arrow_schema("k string, name string")
VERDICTS = arrow_schema("k string, n long, rule string")


def apply(rules: Any, op: str, name: str, most: int) -> None:
    match op:
        case "put":
            rules[name] = {"max": most, "seen": [most]}
        case "more" if name in rules:
            rules[name]["seen"].append(most)  # where it is
        case "drop":
            rules.pop(name, None)
        case "clear":
            rules.clear()


class Checks(ps.KeyedProcess):
    """Counts payments of a card, and tells which rule was in force."""

    n = ps.ValueState("long", default=0)
    rules = ps.BroadcastState("string", "struct<max:long,seen:array<long>>")

    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            apply(self.rules, row.op, row.name, row.max)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.n.value += 1
            rule = self.rules.get(row.name)
            if rule is not None:
                yield key, self.n.value, json.dumps(rule)
                rule["seen"].append(-1)  # a copy
            else:
                yield key, self.n.value, None


a_name = st.sampled_from(["a", "b", "c"])
a_rule = st.tuples(
    st.sampled_from(["put"] * 3 + ["more", "more", "drop", "clear"]), a_name, st.integers(0, 99)
)
a_payment = st.tuples(st.sampled_from("pqrstuv"), a_name)
BROADCAST_LIVES = st.lists(
    st.one_of(
        st.tuples(st.lists(a_rule, max_size=4), st.lists(a_payment, max_size=5)),
        st.just("checkpoint"),
        st.tuples(st.just("restart"), a_start),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("backend", ["memory", "filesystem"])
@settings(max_examples=share(40), deadline=None)
@given(first=a_start, life=BROADCAST_LIVES)
def test_every_copy_equals_a_dictionary(backend: str, first: int, life: list[Any]) -> None:
    """Rules of a batch are in force for its payments, in every subtask, through crashes and rescales; all copies are the same."""
    live_with_rules(backend, first, life)


@settings(max_examples=share(12), deadline=None)
@given(first=a_start, life=BROADCAST_LIVES)
def test_every_copy_equals_a_dictionary_on_rocksdb(first: int, life: list[Any]) -> None:
    """The same holds for RocksDB."""
    live_with_rules("rocksdb", first, life)


def live_with_rules(backend: str, first: int, life: list[Any]) -> None:
    rules: dict[str, Any] = {}
    counts: dict[str, int] = {}
    completed: tuple[str, dict[str, int]] = "{}", {}
    with tempfile.TemporaryDirectory() as root:
        running = TaskCluster(
            Path(root),
            Checks(),
            rows=PAYMENTS,
            output=VERDICTS,
            broadcast=RULES,
            backend=backend,
            parallelism=first,
        )
        for event in [*life, "checkpoint", ("restart", 3), ([], [(k, "a") for k in "pqrstuv"])]:
            match event:
                case "checkpoint":
                    running.checkpoint()
                    completed = json.dumps(rules), dict(counts)
                case ("restart", parallelism):
                    running.restart(parallelism)
                    rules, counts = json.loads(completed[0]), dict(completed[1])
                case (told, paid):
                    for rule in told:
                        apply(rules, *rule)
                    expected = []
                    for key, name in paid:
                        counts[key] = counts.get(key, 0) + 1
                        expected.append((key, counts[key], rules.get(name)))
                    results = running.batch(
                        [{"k": key, "name": name} for key, name in paid],
                        [{"op": op, "name": name, "max": most} for op, name, most in told],
                    )
                    found = [(row["k"], row["n"], row["rule"] and json.loads(row["rule"])) for row in results]
                    assert sorted(found, key=str) == sorted(expected, key=str)
            for one in running.stored():
                table = one["rules"]
                copy = dict(zip(table.column(1).to_pylist(), table.column(2).to_pylist(), strict=True))
                assert copy == rules


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_many_rules_and_long_lists(tmp_path: Path, backend: str) -> None:
    """Thousands of entries are read as a whole, and go where they should when the parallelism changes."""

    class Many(ps.Process):
        rules = ps.BroadcastState("long", "long")
        items = ps.OperatorListState("long")

        def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
            self.rules.update((number, row.max + number) for row in rows for number in range(5000))

        def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str]]:
            for row in rows:
                self.items.extend(range(row.x))
            yield (json.dumps([sum(self.rules[number] for number in range(5000)), len(self.items)]),)

    running = TaskCluster(
        tmp_path, Many(), rows=NUMBERS, output=SEEN, broadcast=RULES, backend=backend, parallelism=2
    )
    told = [{"op": "", "name": "", "max": 1}]
    running.batch({0: [{"op": "", "x": 2000}], 1: [{"op": "", "x": 1000}]}, told)
    running.checkpoint()
    running.restart(3)
    results = running.batch({index: [{"op": "", "x": 0}] for index in range(3)})
    assert [json.loads(row["seen"]) for row in results] == [[sum(range(5000)) + 5000, 1000]] * 3


class InColumns(ps.BatchProcess):
    """Reads broadcast state in columns."""

    n = ps.ValueState("long", default=0)
    rules = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            self.rules[row.name] = row.max

    def process_batch(self, keys: Any, batch: Any, state: Any) -> Any:
        state["n"] = [n + 1 for n in state["n"].to_pylist()]
        return {"k": keys["k"], "n": state["n"], "rule": [json.dumps(self.rules.get("a"))] * len(keys)}


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_broadcast_state_beside_columns(tmp_path: Path, backend: str) -> None:
    """A `BatchProcess` reads it as the others do, after a change of parallelism too."""
    running = TaskCluster(
        tmp_path, InColumns(), rows=PAYMENTS, output=VERDICTS, broadcast=RULES, backend=backend, parallelism=3
    )
    paid = [{"k": key, "name": "a"} for key in "pqr"]
    told = [{"op": "", "name": "a", "max": 7}]

    def seen(results: list[Any]) -> list[Any]:
        return sorted((row["k"], row["n"], row["rule"]) for row in results)

    assert seen(running.batch(paid)) == [(key, 1, "null") for key in "pqr"]
    assert seen(running.batch(paid, told)) == [(key, 2, "7") for key in "pqr"]
    running.checkpoint()
    running.restart(4)
    assert seen(running.batch(paid)) == [(key, 3, "7") for key in "pqr"]


@pytest.mark.parametrize("policy", [OnBadRecord.SKIP, OnBadRecord.KEEP])
def test_bad_rows_beside_a_broadcast_side(tmp_path: Path, policy: OnBadRecord) -> None:
    """Rows without a key, and those of a call that fails, are left out; rows of the broadcast side are none of them."""

    class Picky(Checks):
        def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[Any, ...]]:
            yield from super().process(key, rows, ctx)
            if key == "q":
                raise ValueError("not this one")

    running = TaskCluster(
        tmp_path, Picky(), rows=PAYMENTS, output=VERDICTS, broadcast=RULES, on_bad_record=policy
    )
    paid = [{"k": key, "name": "a"} for key in ("p", "q", None, "p")]
    results = running.batch(paid, [{"op": "put", "name": "a", "max": 7}])
    good = [row for row in results if row["k"] is not None]
    assert [(row["k"], row["n"], json.loads(row["rule"])["max"]) for row in good] == [
        ("p", 1, 7),
        ("p", 2, 7),
    ]
    letters = running.letters
    kept = {'{"k":"q","name":"a"}', '{"k":null,"name":"a"}'} if policy is OnBadRecord.KEEP else set()
    assert {letter["row"] for letter in letters} == kept
    assert running.bad == {"op": 2}


class Shares(ps.Process):
    """Goes on changing what it has put into state."""

    rules = ps.BroadcastState("string", "array<long>")
    kept = ps.OperatorListState("array<long>")

    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        self.given = [row.max for row in rows]
        self.rules["a"] = self.given
        self.kept.append(self.given)

    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str]]:
        self.given.append(-1)
        yield (json.dumps([self.rules["a"], list(self.kept)]),)


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_what_is_put_into_state_is_its_own(tmp_path: Path, backend: str) -> None:
    """An object that user code changes after the call is in state as it was when the call ended."""
    running = TaskCluster(
        tmp_path, Shares(), rows=NUMBERS, output=SEEN, broadcast=RULES, backend=backend, parallelism=2
    )
    told = [{"op": "put", "name": "a", "max": 7}]
    assert [json.loads(row["seen"]) for row in running.batch({1: [{"op": "", "x": 0}]}, told)] == [
        [[7], [[7]]]
    ]
    assert [one["rules"].column("rules").to_pylist() for one in running.stored()] == [[[7]], [[7]]]
    assert [one["kept"].column("kept").to_pylist() for one in running.stored()] == [[[7]], [[7]]]


def test_a_large_batch_is_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows keep their order, and every call goes on with the list of the one before."""

    class Lengths(ps.Process):
        seen = ps.OperatorListState("long")

        def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Any:
            self.seen.extend(rows.column("x"))
            return [(json.dumps([len(rows), list(self.seen)]),)]

    defaults = dict(run_unkeyed.__kwdefaults__ or {}, limits=PieceLimits(rows=3, bytes=1 << 20))
    monkeypatch.setattr(run_unkeyed, "__kwdefaults__", defaults)
    running = TaskCluster(tmp_path, Lengths(), rows=NUMBERS, output=SEEN)
    results = running.batch({0: [{"op": "", "x": x} for x in range(8)]})
    assert [json.loads(row["seen"]) for row in results] == [
        [3, [0, 1, 2]],
        [3, [0, 1, 2, 3, 4, 5]],
        [2, [0, 1, 2, 3, 4, 5, 6, 7]],
    ]


# ── subtasks that are woken ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", list(OnBadRecord))
@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_a_subtask_that_is_woken_does_nothing(tmp_path: Path, backend: str, policy: OnBadRecord) -> None:
    """All run, also without rows; the row that wakes them is in no call, no count, no letter and no state."""
    running = TaskCluster(
        tmp_path,
        Checks(),
        rows=PAYMENTS,
        output=VERDICTS,
        broadcast=RULES,
        backend=backend,
        on_bad_record=policy,
        parallelism=3,
    )
    rule = {"op": "put", "name": "a", "max": 7}
    assert running.batch([], wake=True) == []
    assert running.ran == {0, 1, 2}
    (first,) = running.batch([{"k": "p", "name": "a"}], [rule], wake=True)
    assert running.ran == {0, 1, 2}
    (second,) = running.batch([{"k": "p", "name": "a"}], wake=True)
    assert running.ran == {0, 1, 2}
    (third,) = running.batch([{"k": "p", "name": "a"}])
    assert running.ran == {third["by"]}
    assert [row["n"] for row in (first, second, third)] == [1, 2, 3]
    assert running.bad == {}
    assert [one["rules"].num_rows for one in running.stored()] == [1, 1, 1]


# ── what is refused while the job runs ─────────────────────────────────────────────────────────


def told_by(function: Callable[..., Any], **states: Any) -> ps.KeyedProcess:
    """An operator whose `process_broadcast` is this function."""
    body: dict[str, Any] = {"rules": ps.BroadcastState("string", "long"), **states}
    body["process_broadcast"] = function
    body["process"] = lambda self, key, rows, ctx: [(key, 1, None)]
    return type("Told", (ps.KeyedProcess,), body)()


@pytest.mark.parametrize(
    ("function", "states", "error", "said"),
    [
        (
            lambda self, rows, ctx: [(1,)],
            {},
            ps.UserCodeError,
            r"process_broadcast\(\) returned \[\(1,\)\].*no results",
        ),
        (
            lambda self, rows, ctx: ctx.emit("alerts", ("a",)),
            {"alerts": ps.SideOutput("name string")},
            ps.UserCodeError,
            r"emits \('a',\) to 'alerts'; every subtask would emit the same",
        ),
        (
            lambda self, rows, ctx: self.n.value,
            {"n": ps.ValueState("long")},
            ps.ConfigError,
            r"state 'n' can be used only inside process\(\)",
        ),
        (
            lambda self, rows, ctx: self.seen.append(1),
            {"seen": ps.ListState("long")},
            ps.ConfigError,
            r"state 'seen' can be used only inside process\(\)",
        ),
        (
            lambda self, rows, ctx: self.rules.update(a="x"),
            {},
            ps.BadRecordError,
            r"state 'rules' was set to 'x'",
        ),
    ],
    ids=["results", "emits", "value", "list", "type"],
)
def test_what_process_broadcast_cannot_do(
    tmp_path: Path, function: Any, states: Any, error: type[Exception], said: str
) -> None:
    """It ends the run, with what is wrong; also in the second batch of an object."""
    running = TaskCluster(
        tmp_path, told_by(function, **states), rows=PAYMENTS, output=VERDICTS, broadcast=RULES
    )
    running.batch([{"k": "a", "name": "a"}])
    with pytest.raises(error, match=said):
        running.batch([], [{"op": "put", "name": "a", "max": 1}])


@pytest.mark.parametrize(
    "change",
    [
        lambda rules: rules.update(a=2),
        lambda rules: rules.pop("a"),
        lambda rules: rules.clear(),
        lambda rules: rules.__delitem__("a"),
        lambda rules: rules.setdefault("b", 1),
    ],
)
@pytest.mark.parametrize("policy", list(OnBadRecord))
def test_process_only_reads_broadcast_state(tmp_path: Path, change: Any, policy: OnBadRecord) -> None:
    """A change that only one subtask would have ends the run, whatever is set for bad rows."""

    class Writes(ps.KeyedProcess):
        rules = ps.BroadcastState("string", "long")

        def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
            self.rules["a"] = 1

        def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
            change(self.rules)

    running = TaskCluster(
        tmp_path, Writes(), rows=PAYMENTS, output=VERDICTS, broadcast=RULES, on_bad_record=policy
    )
    with pytest.raises(ps.UserCodeError, match="'rules' is changed outside of process_broadcast"):
        running.batch([{"k": "x", "name": "a"}], [{"op": "put", "name": "a", "max": 1}])


def test_an_error_shows_the_row_and_no_key(tmp_path: Path) -> None:
    """What is said of a failed call of a `Process`: the row that it had in its hands."""

    class Fails(ps.Process):
        def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
            for row in rows:
                print(1 // row.x)

    running = TaskCluster(tmp_path, Fails(), rows=NUMBERS, output=SEEN)
    with pytest.raises(ZeroDivisionError) as caught:
        running.batch({0: [{"op": "a", "x": 1}, {"op": "b", "x": 0}]})
    call = failed_call(caught.value)
    assert (call.key, call.row) == ("", "op='b', x=0")


# ── what is refused before the start ───────────────────────────────────────────────────────────


class Streaming:
    """What `read` asks of a DataFrame."""

    isStreaming = True  # noqa: N815 - Spark's name


@pytest.fixture
def streams(tmp_path: Path) -> tuple[ps.types.Stream, ps.types.Stream]:
    """Payments, and rules."""
    job = ps.Job("job", storage=tmp_path)
    return job.read(Streaming(), uid="payments"), job.read(Streaming(), uid="rules")  # type: ignore[arg-type]


class Plain(ps.Process):
    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


class Told(Plain):
    rules = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


class Forgets(Plain):
    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


class Deaf(Plain):
    rules = ps.BroadcastState("string", "long")


class Yields(Plain):
    rules = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Any:
        yield 1


class WithAKey(Plain):
    n = ps.ValueState("long")


class Short(Told):
    def process_broadcast(self, rows: ps.types.Rows) -> None: ...  # type: ignore[override]


class KeyedList(ps.KeyedProcess):
    seen = ps.OperatorListState("long")

    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


class BatchList(ps.BatchProcess):
    seen = ps.OperatorListState("long")

    def process_batch(self, keys: Any, batch: Any, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda p, r: p.process(Checks()),
            "Checks is a KeyedProcess, which needs a key; write stream.key_by",
        ),
        (lambda p, r: p.process(BatchList()), "BatchList is a BatchProcess, which needs a key"),
        (lambda p, r: p.key_by("k").process(Plain()), "Plain is a Process, which has no key; leave key_by"),
        (lambda p, r: p.process(Plain), "takes an instance of a Process subclass"),
        (lambda p, r: p.process(WithAKey()), "its state 'n' is a ValueState, which every key has for itself"),
        (
            lambda p, r: p.key_by("k").process(KeyedList()),
            "'seen' is an OperatorListState, which belongs to a subtask",
        ),
        (
            lambda p, r: p.key_by("k").process(BatchList()),
            "'seen' is an OperatorListState, which belongs to a subtask",
        ),
        (lambda p, r: p.process(Told()), "a BroadcastState 'rules', but no broadcast side"),
        (lambda p, r: p.process(Forgets()), r"process_broadcast\(\), but no broadcast side"),
        (lambda p, r: p.connect(r.broadcast()).process(Plain()), "does not say what to do with the rows"),
        (lambda p, r: p.connect(r.broadcast()).process(Deaf()), "does not say what to do with the rows"),
        (lambda p, r: p.connect(r.broadcast()).process(Forgets()), "no BroadcastState, so that"),
        (lambda p, r: p.connect(r.broadcast()).process(Yields()), "of Yields yields results; every subtask"),
        (lambda p, r: p.connect(r.broadcast()).process(Short()), "cannot be called with rows, ctx"),
        (lambda p, r: p.connect(None), "it takes a broadcast stream, such as"),
        (lambda p, r: p.connect(r.key_by("k")), "it takes a broadcast stream, such as"),
        (lambda p, r: p.connect(r.broadcast(order_by="a b c")), "order_by='a b c'"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(
    streams: tuple[ps.types.Stream, ps.types.Stream], build: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says what is wrong, and what to write."""
    for kind in (ps.types.Stream, ps.types.KeyedStream, ps.types.BroadcastConnectedStream):
        process = kind.process
        monkeypatch.setattr(
            kind,
            "process",
            lambda self, operator, process=process, **more: process(
                self, operator, **{"schema": "seen string", "uid": "op", **more}
            ),
        )
    with pytest.raises(ps.ConfigError, match=said):
        build(*streams)


def test_streams_of_two_jobs_are_not_connected(
    streams: tuple[ps.types.Stream, ps.types.Stream], tmp_path: Path
) -> None:
    """They have no barrier in common."""
    other = ps.Job("other", storage=tmp_path).read(Streaming(), uid="rules")  # type: ignore[arg-type]
    with pytest.raises(ps.ConfigError, match="same job"):
        streams[0].connect(other.broadcast())


def test_what_a_declaration_refuses() -> None:
    """Types and names are looked at when the class is made."""
    with pytest.raises(ps.ConfigError, match="keys of a BroadcastState cannot be array<long>"):
        ps.BroadcastState("array<long>", "long")
    with pytest.raises(ps.ConfigError, match="wrong"):
        ps.OperatorListState("wrong")
    with pytest.raises(ps.ConfigError, match=r"on_rescale='spilt'.*did you mean"):
        ps.OperatorListState("long", on_rescale="spilt")
    with pytest.raises(ps.ConfigError, match="'rules' twice"):

        class Twice(ps.Process):
            rules = ps.BroadcastState("string", "long")

            def rules(self) -> None: ...  # type: ignore[no-redef]  # noqa: F811 - it is what is refused

            def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


def test_state_is_used_only_while_the_operator_runs() -> None:
    """Outside there is nothing behind a declaration."""
    for use in (
        lambda: Told().rules["a"],
        lambda: Told().rules.get("a"),
        lambda: list(Keeps().split),
        lambda: Keeps().split.append(1),
    ):
        with pytest.raises(ps.ConfigError, match="can be used only while the operator runs"):
            use()
    for operator in (Told(), Checks(), InColumns()):
        with pytest.raises(AttributeError, match=r"rules is state: write self.rules\[...\] = ... instead"):
            operator.rules = {}  # type: ignore[assignment]


class Extends(ps.Process):
    """Adds to its list in place."""

    seen = ps.OperatorListState("long")

    def __init__(self, added: Any) -> None:
        self.added = added

    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        self.seen += self.added


def test_a_list_of_a_subtask_is_extended_in_place() -> None:
    """`+=` takes what a list takes; for anything else the error says what to write."""
    given: dict[str, Any] = {"input_schema": "v long", "schema": "v long"}
    assert ps.testing.run(Extends([1, 2]), [(0,)], **given).state() == {"seen": [1, 2]}
    with pytest.raises(
        AttributeError, match=r"seen is state: write self.seen.append\(...\) instead of self.seen \+="
    ):
        ps.testing.run(Extends(1), [(0,)], **given)
