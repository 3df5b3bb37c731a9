"""All kinds of state in a running job, over a restart with another parallelism."""

from __future__ import annotations

import json
import operator
from collections import Counter, defaultdict
from typing import Any

import pytest
from ledger import Ledger

import penstock as ps

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

    def process(self, key: Any, rows: Any, ctx: ps.Context) -> Any:
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
