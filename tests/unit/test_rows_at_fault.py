"""A row that own code cannot take is bad alone: results, state and timers are those of the other rows, as if it had never come."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from builders.operator_cluster import OperatorCluster
from builders.operator_harness import OperatorHarness
from builders.task_cluster import TaskCluster
from penstock.config import OnBadRecord
from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.bad_records import LETTER, BadRows
from penstock.operators.calls import OUTPUT_ROWS
from penstock.operators.process import run_tolerant
from penstock.operators.process.co import in_one_table
from penstock.operators.process.run_tolerant import run_process_tolerantly
from penstock.operators.state.timers import microseconds
from penstock.run.task_failures import tolerates
from services.tiers import share

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int32())])
Pairs = list[tuple[str, int]]


class TolerantHarness(OperatorHarness):
    """Runs an operator that may fail for rows."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ["k"], OUTPUT)
        self.bad = BadRows("op", 7, kept=True)

    def process(self, operator: ps.KeyedProcess, table: pa.Table) -> list[dict[str, Any]]:
        def run(*given: Any, **named: Any) -> Any:
            return run_process_tolerantly(*given, **named, bad=self.bad, tolerates=tolerates)

        rows: list[dict[str, Any]] = self._run(operator, table, run).to_pylist()
        return rows

    def refused(self) -> Counter[tuple[str, int]]:
        letters = pa.Table.from_batches(self.bad.letters(), LETTER).to_pylist()
        return Counter((row["k"], row["v"]) for row in (json.loads(letter["row"]) for letter in letters))


def everything(harness: OperatorHarness) -> dict[str, list[str]]:
    """All rows of all tables of the state; places in a list follow from how many batches there were."""
    state, layout = harness._open(), harness.layout
    assert layout is not None
    return {
        name: sorted(
            str({column: value for column, value in row.items() if column != "last_position"})
            for batch in state.table(name).scan()
            for row in batch.to_pylist()
        )
        for name in layout.by_name
    }


def table(rows: Pairs) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows]), "v": pa.array([v for _, v in rows], pa.int64())})


class OneByOne(ps.KeyedProcess):
    """Changes all its state before it looks whether it can take a row. To meet 5 it must have seen 4, in this batch or before."""

    total = ps.ValueState("long", default=0)
    seen = ps.ValueState("array<long>", default=[])
    by_value = ps.MapState("long", "long")
    last = ps.ListState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            self.total.value += row.v
            self.seen.value.append(row.v)
            self.by_value[row.v] = self.by_value.get(row.v, 0) + 1
            self.last.append(row.v)
            self.check(row.v)
            yield key, self.total.value

    def check(self, v: int) -> None:
        if v < 0 or (v == 5 and 4 not in self.seen.value):
            raise ValueError(f"{v} is not to be")


class Peeking(OneByOne):
    """Has looked at its first row, and no more, when it fails."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        first = next(iter(rows))
        self.total.value += first.v
        for v in rows.column("v"):
            self.seen.value.append(v)
            self.check(v)
        yield key, len(rows)


class Together(OneByOne):
    """Looks at all its rows at once."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        values = rows.to_arrow().column("v").to_pylist()
        self.total.value += sum(values)
        if min(values) < 0:
            raise ValueError("there is a negative one")
        yield key, self.total.value


class UnfitResults(OneByOne):
    """Gives something that its schema cannot take."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            self.last.append(row.v)
            yield key, row.v if row.v >= 0 else "negative"


class UnfitState(OneByOne):
    """Leaves something in its state that its type cannot take."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            self.by_value[row.v] = 1
            self.total.value = 2**70 if row.v < 0 else self.total.value + 1
            yield key, row.v


class UnfitEntries(OneByOne):
    """The same in a table of its own."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            self.total.value += 1
            self.by_value[row.v] = "negative" if row.v < 0 else 1
            yield key, row.v


class Rejecting(OneByOne):
    """Says by itself which rows are bad, some of them twice, and raises for others."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            if row.v == -1:
                ctx.reject(row, "minus one")
                ctx.reject(row, "once more")
                continue
            self.total.value += row.v
            self.check(row.v)
            yield key, self.total.value


KINDS = [OneByOne, Peeking, Together, UnfitResults, UnfitState, UnfitEntries, Rejecting]
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 6)), max_size=14)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=share(30))
@given(batches=st.lists(ROWS, min_size=1, max_size=3))
def test_it_is_as_if_bad_rows_had_never_come(kind: type[OneByOne], batches: list[Pairs]) -> None:
    """Results and all state are what the rows that are no dead letters give alone, and those are the rows that cannot be taken."""
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        harness, clean = TolerantHarness(Path(one)), OperatorHarness(Path(other), ["k"], OUTPUT)
        for batch in batches:
            harness.bad = BadRows("op", 7, kept=True)
            results = harness.process(kind(), table(batch)) if batch else []
            refused = harness.refused()
            good = list((Counter(batch) - refused).elements())
            assert Counter(batch) >= refused
            in_order, left = [], Counter(good)
            for row in batch:  # equal rows are equal: it does not matter which of them was refused
                if left[row] > 0:
                    in_order.append(row)
                    left[row] -= 1
            if any(v == 5 for _, v in refused):
                return  # which of two equal rows it was does matter then
            assert all(v < 0 for _, v in refused)
            assert not any(v < 0 for _, v in good)
            expected = clean.run(kind(), table(in_order)).to_pylist() if in_order else []
            assert sorted(map(str, results)) == sorted(map(str, expected))
            if clean.handle is not None:
                assert everything(harness) == everything(clean)


def test_the_row_and_its_reason_are_told(tmp_path: Path) -> None:
    """The letter of a row has what the code said of it; a row that needs one before it is good although another one is bad."""
    harness = TolerantHarness(tmp_path)
    results = harness.process(OneByOne(), table([("a", 4), ("a", -2), ("a", 5), ("b", 5), ("a", -1)]))
    assert results == [{"k": "a", "n": 4}, {"k": "a", "n": 9}]
    letters = pa.Table.from_batches(harness.bad.letters(), LETTER).to_pylist()
    said = {json.loads(one["row"])["v"]: one["reason"].partition(" (")[0] for one in letters}
    assert said == {v: f"ValueError: {v} is not to be" for v in (-2, -1, 5)}
    assert harness.state() == {("a",): ([4, 5], 9)}


def test_looking_for_rows_at_fault_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many rows were tried, all rows of a key that fails are bad, and say that it was another one."""
    monkeypatch.setattr(run_tolerant, "TRIED_ROWS", 0)
    monkeypatch.setattr(run_tolerant, "TRIED_TIMES", 0)
    harness = TolerantHarness(tmp_path)
    assert harness.process(OneByOne(), table([("a", 1), ("a", -2), ("b", 1)])) == [{"k": "b", "n": 1}]
    first, second = pa.Table.from_batches(harness.bad.letters(), LETTER).to_pylist()
    assert first["reason"] == f"another row of this key in the batch: {second['reason']}"
    assert harness.bad.first_reason == second["reason"]


@pytest.mark.parametrize("good_first", [True, False])
def test_many_bad_rows_of_one_key_are_found_quickly(tmp_path: Path, *, good_first: bool) -> None:
    """Calls that look for rows at fault are given no more rows than the limit says, and one search beyond it."""

    class Counting(ps.KeyedProcess):
        given = 0

        def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
            for row in rows:
                Counting.given += 1
                if row.v < 0:
                    raise ValueError("negative")
                yield key, row.v

    values = [1] * 3000 + [-1] * 3000
    harness = TolerantHarness(tmp_path)
    results = harness.process(Counting(), table([("a", v) for v in (values if good_first else values[::-1])]))
    limit = run_tolerant.TRIED_ROWS + run_tolerant.TRIED_TIMES * len(values)
    assert Counting.given <= limit + 5 * len(values)
    assert len(results) == (0 if good_first else 3000)
    assert harness.bad.count == (6000 if good_first else 3000)


# ── ctx.reject ─────────────────────────────────────────────────────────────────────────────────


class Strict(ps.KeyedProcess):
    """Rejects negative numbers, and tries to go on whatever happens."""

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            try:
                if row.v < 0:
                    ctx.reject(row, f"{row.v} is negative")
                    continue
            except Exception:  # noqa: BLE001 - as careless code does
                continue
            yield key, row.v


def test_a_rejected_row_ends_the_run_where_bad_rows_do(tmp_path: Path) -> None:
    """Also where the code catches the error: the row would be nowhere."""
    harness = OperatorHarness(tmp_path, ["k"], OUTPUT)
    with pytest.raises(BadRecordError, match="a row was rejected: -3 is negative"):
        harness.run(Strict(), table([("a", 1), ("a", -3), ("a", 2)]))


class Misusing(ps.KeyedProcess):
    def __init__(self, what: str) -> None:
        self.what = what
        self.kept: list[Any] = []

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        wrong = {"tuple": tuple(rows[0]), "key": key, "of another call": [*self.kept, None][0]}
        self.kept.append(rows[0])
        if self.what != "of another call" or len(self.kept) > 1:
            ctx.reject(wrong[self.what], "why")


@pytest.mark.parametrize("what", ["tuple", "key", "of another call"])
def test_only_rows_of_the_call_can_be_rejected(tmp_path: Path, what: str) -> None:
    """Anything else is a mistake in the code, which no other row would make right."""
    with pytest.raises(UserCodeError, match="takes a row out of the rows that process"):
        TolerantHarness(tmp_path).process(Misusing(what), table([("a", 1), ("b", 2)]))


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class WithTimers(ps.KeyedProcess):
    """Sets a timer for each row that it takes, and says what it knows when one fires."""

    count = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:
        for row in rows:
            ctx.set_timer(NOON.replace(minute=row.v % 60))
            self.count.value += 1
            if row.v == 0:
                ctx.reject(row, "zero")
            if row.v < 0:
                raise ValueError("negative")

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        yield key, self.count.value * 100 + timer.at.minute


def test_timers_of_bad_rows_do_not_fire(tmp_path: Path) -> None:
    """Those of the other rows do, at once where they are due, on a state that has seen no bad row."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    task = TaskCluster(tmp_path, WithTimers(), rows=schema, output=OUTPUT, on_bad_record=OnBadRecord.KEEP)
    rows = [{"k": k, "v": v} for k, v in (("a", 1), ("a", -7), ("a", 2), ("b", -1), ("c", 0))]
    given = task.batch(rows, watermark_us=microseconds(NOON.replace(hour=13), ""))
    assert sorted((row["k"], row["n"]) for row in given) == [("a", 201), ("a", 202), ("c", 100)]
    refused = {letter["row"]: letter["reason"] for letter in task.letters}
    assert set(refused) == {f'{{"k":"{k}","v":{v}}}' for k, v in (("a", -7), ("b", -1), ("c", 0))}
    assert refused['{"k":"c","v":0}'] == "zero"
    assert task.timers_stored() == []


class ForTheNewest(ps.KeyedProcess):
    """Sets a timer for the newest of its rows, and cannot take a row that is much newer than the others."""

    total = ps.ValueState("int", default=0)

    def __init__(self, how: str) -> None:
        self.how = how

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        ctx.set_timer(NOON + timedelta(minutes=max(row.v for row in rows)))
        for row in rows:
            if row.v > 1000 and self.how == "call":
                raise ValueError("too new")
            if row.v > 1000 and self.how == "result":
                yield key, "no number"
            self.total.value = 2**40 if row.v > 1000 and self.how == "state" else row.v

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        yield key, self.total.value * 100 + timer.at.minute


@pytest.mark.parametrize("how", ["call", "result", "state"])
def test_timers_that_are_due_without_a_bad_row_fire(tmp_path: Path, how: str) -> None:
    """However it shows that the row is bad: the call without it may set timers for other moments than the first one did."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    task = TaskCluster(
        tmp_path, ForTheNewest(how), rows=schema, output=OUTPUT, on_bad_record=OnBadRecord.KEEP
    )
    rows = [{"k": "a", "v": 5}, {"k": "a", "v": 5000}]
    given = task.batch(rows, watermark_us=microseconds(NOON.replace(hour=13), ""))
    assert [(row["k"], row["n"]) for row in given] == [("a", 505)]
    assert [letter["row"] for letter in task.letters] == ['{"k":"a","v":5000}']
    assert task.timers_stored() == []


class ManyResults(ps.KeyedProcess):
    """Gives as many results as a row says, and something else for a negative one."""

    total = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            self.total.value += 1
            if row.v > 0:
                ctx.set_timer(NOON)
            yield from [(key, "negative")] if row.v < 0 else [(key, 0)] * row.v

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> Iterator[Any]:
        self.total.value += 100
        yield key, self.total.value


def test_a_bad_result_of_one_key_is_not_in_the_way_of_another_keys_timers(tmp_path: Path) -> None:
    """Results are encoded when there are many, which may be between two calls for a key: then the bad one is found."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    task = TaskCluster(
        tmp_path, ManyResults(), rows=schema, output=OUTPUT, on_bad_record=OnBadRecord.KEEP, parallelism=1
    )
    rows = [{"k": k, "v": v} for k in "abcd" for v in (0, -1)] + [{"k": k, "v": OUTPUT_ROWS} for k in "efgh"]
    given = task.batch(rows, watermark_us=microseconds(NOON.replace(hour=13), ""))
    assert sorted((row["k"], row["n"]) for row in given if row["n"]) == [(k, 101) for k in "efgh"]
    assert len(task.letters) == 4
    assert {row["k"]: row["total"] for row in task.values_stored()} == {
        **dict.fromkeys("abcd", 1),
        **dict.fromkeys("efgh", 101),
    }


class Sifting(ps.Process):
    """Without a key."""

    def process(self, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            if row.v < 0:
                ctx.reject(row, "negative")
            else:
                yield "", row.v


def test_a_process_without_a_key_rejects_rows(tmp_path: Path) -> None:
    """They are dead letters without a key, or end the run."""
    schema = pa.schema([("v", pa.int64())])
    task = TaskCluster(tmp_path / "a", Sifting(), rows=schema, output=OUTPUT, on_bad_record=OnBadRecord.KEEP)
    assert [row["n"] for row in task.batch({0: [{"v": 1}, {"v": -2}, {"v": 3}]})] == [1, 3]
    (letter,) = task.letters
    assert (letter["key"], letter["row"], letter["reason"]) == (None, '{"v":-2}', "negative")
    assert task.bad == {"op": 1}
    strict = TaskCluster(tmp_path / "b", Sifting(), rows=schema, output=OUTPUT)
    with pytest.raises(BadRecordError, match="a row was rejected: negative"):
        strict.batch({0: [{"v": 1}, {"v": -2}]})


class BothSides(ps.KeyedCoProcess):
    """Rejects left rows and raises for right ones."""

    seen = ps.ListState("string")

    def process_left(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            if row.n < 0:
                ctx.reject(row, "negative")
                continue
            self.seen.append(f"left {row.n}")
            yield key, row.n

    def process_right(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            self.seen.append(f"right {row.word}")
            if row.word == "bad":
                raise ValueError("a bad word")
            yield key, len(self.seen)


def test_of_two_inputs_the_row_at_fault_is_found(tmp_path: Path) -> None:
    """On either side; its letter has the columns and the key of that side."""
    left = pa.table({"k": ["a", "a", "a"], "n": pa.array([1, -2, 3], pa.int64())})
    right = pa.table({"id": ["a", "a", "a"], "word": ["x", "bad", "y"]})
    cluster = OperatorCluster(tmp_path, OUTPUT, tolerant=True)
    given = cluster.batch(BothSides(), in_one_table(left, right, ["k"], ["id"]))
    assert [row["n"] for row in given] == [1, 3, 3, 4]
    letters = pa.Table.from_batches(cluster.bad.letters(), LETTER).to_pylist()
    assert {(one["key"], one["row"]) for one in letters} == {
        ('{"k":"a"}', '{"k":"a","n":-2}'),
        ('{"id":"a"}', '{"id":"a","word":"bad"}'),
    }


class Living(ps.KeyedProcess):
    """Keeps a number for a minute of event time after the last row."""

    count = ps.ValueState("long", default=0, ttl=ps.TimeToLive("1min", by="event_time"))

    def __init__(self, how: str) -> None:
        self.how = how

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            if row.bad and "reject" in self.how:
                ctx.reject(row, "bad")
                continue
            self.count.value += 1
            if row.bad or (row.at.minute == 7 and "raise" in self.how):
                raise ValueError("bad")
        yield key, self.count.value


class LivingWithTimers(Living):
    """The same where keys may have several calls."""

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> None: ...


@pytest.mark.parametrize("kind", [Living, LivingWithTimers])
@pytest.mark.parametrize("how", ["raise", "reject", "reject and raise"])
def test_a_bad_row_keeps_no_state_alive(tmp_path: Path, how: str, kind: type[Living]) -> None:
    """Its event time counts for nothing: state expires after the last good row."""
    minute = 60_000_000
    cluster = OperatorCluster(tmp_path, OUTPUT, tolerant=True)
    cluster.event_time = "at"

    def batch(*rows: tuple[int, bool], watermark_us: int | None = None) -> list[int]:
        at = pa.array([at for at, _ in rows], pa.timestamp("us", "UTC"))
        given = pa.table(
            {"k": ["a"] * len(rows), "at": at, "bad": pa.array([bad for _, bad in rows], pa.bool_())}
        )
        return [row["n"] for row in cluster.batch(kind(how), given, watermark_us)]

    bad = [(10 * minute, True), *([(7 * minute, False)] if "raise" in how else [])]
    assert batch((minute, False), *bad, watermark_us=3 * minute) == [1]
    assert batch((4 * minute, False)) == [1]
