"""All kinds of state in a running job, over a restart with another parallelism."""

from __future__ import annotations

import json
import operator
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ledger import Ledger, fail_for_good
from pyspark import cloudpickle

import penstock as ps
from services import state_steps
from services.state_steps import LIST_STEPS, MAP_STEPS, Step, done

pytestmark = pytest.mark.spark


def joined(old: list[int], new: list[int]) -> list[int]:
    """In place."""
    old.extend(new)
    return old


class Mean(ps.AggregateFunction):
    def create(self) -> Any:
        return {"sum": 0.0, "n": 0}

    def add(self, accumulator: Any, value: Any) -> Any:
        accumulator["sum"] += value
        accumulator["n"] += 1
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        return {name: accumulator[name] + other[name] for name in accumulator}

    def result(self, accumulator: Any) -> Any:
        return accumulator["sum"] / accumulator["n"]


class AllKinds(ps.KeyedProcess):
    rows = ps.ValueState("long", default=0)
    total = ps.ReducingState("long", operator.add)
    newest = ps.ReducingState("long", lambda old, new: new)
    users = ps.ReducingState("array<long>", joined)
    mean = ps.AggregatingState("struct<sum:double,n:long>", Mean)
    seen = ps.RawState(
        encode=lambda users: json.dumps(sorted(users)).encode(),
        decode=lambda data: set(json.loads(data)),
        default=set(),
    )

    by_user = ps.MapState("long", "long")
    recent = ps.ListState("long")

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.recent.append(row.user)
            self.rows.value += 1
            self.total.add(row.user)
            self.newest.add(row.user)
            self.users.add([row.user])
            self.mean.add(row.user)
            self.seen.value.add(row.user)
        facts = (self.rows.value, self.total.value, self.newest.value, self.mean.value)
        users = sorted(self.users.value)
        assert sorted(self.recent) == users
        assert list(self.by_user.items()) == sorted(Counter(users).items())
        yield key, json.dumps([*facts, users, sorted(self.seen.value)])


def run(spark: Any, ledger: Ledger, parallelism: int) -> None:
    job = ledger.job(parallelism=parallelism)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=120), uid="clicks")
    facts = clicks.key_by("app").process(
        AllKinds(), schema="app string, facts string", uid="kinds", order_by="user"
    )
    facts.write_to(ledger.sqlite(), uid="out")
    job.run(available_now=True)


def truth(ledger: Ledger) -> dict[str, Any]:
    """All but the newest, which depends on the order."""
    users: dict[str, list[int]] = defaultdict(list)
    for row in ledger.log.table().to_pylist():
        users[row["app"]].append(row["user"])
    return {
        app: [len(all_), sum(all_), sum(all_) / len(all_), sorted(all_), sorted(set(all_))]
        for app, all_ in users.items()
    }


def test_all_kinds_over_a_restart(spark, tmp_path):
    """Every kind of state goes on after a restart with another parallelism, and ends as a plain loop over the log does."""
    ledger = Ledger(tmp_path)
    for parallelism, newest in ((2, 99), (3, 500)):
        ledger.fill(200)
        for app in range(5):
            ledger.append(0, f"app{app}", 1, user=newest)
        run(spark, ledger, parallelism)
        found: dict[str, Any] = {app: json.loads(str(facts)) for app, facts in ledger.counts().items()}
        assert {app: [one[0], one[1], *one[3:]] for app, one in found.items()} == truth(ledger)
        # they are in the last batch, and in the order of users the last of each key
        assert {one[2] for one in found.values()} == {newest}


class NumberedSteps(ps.KeyedProcess):
    """Does what the rows say, in their order, and gives what it saw; fails in the middle of the work, once."""

    entries = ps.MapState("string", "long")
    elements = ps.ListState("long")
    last = ps.ReducingState("long", max)

    def __init__(self, fails_at: int, marker: Path) -> None:
        self.fails_at = fails_at
        self.marker = marker

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Iterator[tuple[int, str]]:
        for row in rows:
            seen = done((key, row.what, row.name, row.a, row.b), self.entries, self.elements)
            self.last.add(row.number)
            if row.number == self.fails_at and not self.marker.exists():
                fail_for_good(self.marker)
            yield row.number, seen


def random_steps(rng: random.Random, number: int) -> list[Step]:
    steps: list[Step] = []
    for _ in range(number):
        what = rng.choice(["map", "list"])
        name = rng.choice(sorted(MAP_STEPS if what == "map" else LIST_STEPS))
        steps.append((rng.choice("pqrstu"), what, name, rng.choice(["", "a", "xyz"]), rng.randrange(4)))
    return steps


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_random_steps_see_what_plain_python_sees(spark, tmp_path, backend):
    """In random batches, with a failure in the middle and another parallelism behind it, each step sees what one loop sees."""
    cloudpickle.register_pickle_by_value(state_steps)
    rng = random.Random(f"steps on {backend}")
    columns = "number long, k string, what string, name string, a string, b long"
    log = ps.sources.PartitionedLog(tmp_path / "log", columns, partitions=1)
    names = [column.split()[0] for column in columns.split(", ")]
    expected: dict[int, str] = {}
    model: dict[str, tuple[Any, Any]] = defaultdict(lambda: ({}, []))
    for parallelism in (2, 3):
        steps = random_steps(rng, 150)
        rows = [(len(expected) + at, *step) for at, step in enumerate(steps)]
        log.append(0, [dict(zip(names, row, strict=True)) for row in rows])
        expected |= {row[0]: done(step, *model[step[0]]) for row, step in zip(rows, steps, strict=True)}
        job = ps.Job(
            "steps",
            storage=tmp_path / "store",
            local_dir=tmp_path / "local",
            backend=backend,
            parallelism=parallelism,
            checkpoint=ps.Checkpointing(interval="1ms"),
            restart=ps.fixed_delay(attempts=2, delay="0s"),
        )
        read = job.read(log.read(spark, rows_per_batch=rng.randint(20, 60)), uid="steps")
        operator = NumberedSteps(rows[rng.randrange(len(rows))][0], tmp_path / f"failed-{parallelism}")
        seen = read.key_by("k").process(
            operator, schema="number long, seen string", uid="op", order_by="number"
        )
        seen.write_to(ps.sinks.Files(tmp_path / "out", format="parquet"), uid="out")
        job.run(available_now=True)
        assert (tmp_path / f"failed-{parallelism}").exists()
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["number"], row["seen"]) for row in found) == sorted(expected.items())
