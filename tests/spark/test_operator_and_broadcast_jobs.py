"""Operators without a key and broadcast state in a running job: a change of rules in the middle, a failure, another parallelism."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import functions as F

import penstock as ps
from penstock.ids import SubtaskId
from penstock.run import run as engine_run
from penstock.run.acknowledgements import Acknowledged, acknowledged
from penstock.run.assignment import Assignment
from penstock.spark import query

pytestmark = pytest.mark.spark

PARTITIONS = 3
A_BATCH = 3
"""Rows of each partition in a batch."""
RULES_A_BATCH = 2


class Fraud(ps.KeyedProcess):
    """Says for every payment which rule was in force. Fails once, where the marker is not there yet."""

    count = ps.ValueState("long", default=0)
    rules = ps.BroadcastState("string", "struct<n:long,names:array<string>>")
    odd = ps.SideOutput("partition int, offset long")

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def process_broadcast(self, rows, ctx):
        for rule in rows:
            names = self.rules[rule.name]["names"] if rule.name in self.rules else []
            self.rules[rule.name] = {"n": rule.n, "names": [*names, f"{rule.name}-{rule.n}"]}

    def process(self, key, rows, ctx):
        for row in rows:
            if row.offset == 2 * A_BATCH and not self.marker.exists():
                fail_for_good(self.marker)
            self.count.value += 1
            rule = self.rules["limit"]
            if row.user % 2:
                ctx.emit("odd", (row.partition, row.offset))
            yield key, row.partition, row.offset, self.count.value, rule["n"], len(rule["names"])


class Bundles(ps.Process):
    """Hands rows on in bundles of four, with the number of the rule; keeps the others until there are more."""

    waiting = ps.OperatorListState("struct<partition:int,offset:long>")
    rates = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows, ctx):
        self.rates.update((rule.name, rule.n) for rule in rows)

    def process(self, rows, ctx):
        for row in rows:
            self.waiting.append({"partition": row.partition, "offset": row.offset})
            if len(self.waiting) >= 4 or row.app == "flush":
                for one in self.waiting:
                    yield one["partition"], one["offset"], row.offset, self.rates["limit"]
                self.waiting.clear()


def job(spark: Any, ledger: Ledger, rules: ps.sources.PartitionedLog, parallelism: int) -> ps.Job:
    made = ledger.job(parallelism=parallelism, restart=ps.fixed_delay(attempts=3, delay="1ms"))
    payments = made.read(ledger.log.read(spark, PARTITIONS * A_BATCH), uid="payments")
    changes = made.read(rules.read(spark, RULES_A_BATCH), uid="rules").broadcast(order_by="n")
    fraud = (
        payments.key_by("app")
        .connect(changes)
        .process(
            Fraud(ledger.root / "failed"),
            schema="app string, partition int, offset long, count long, n long, names int",
            uid="fraud",
        )
    )
    fraud.write_to(ledger.files("fraud"), uid="fraud-out")
    fraud.side("odd").write_to(ledger.files("odd"), uid="odd-out")
    bundles = payments.connect(changes).process(
        Bundles(),
        schema="partition int, offset long, last long, n long",
        uid="bundles",
        order_by="offset",
    )
    bundles.write_to(ledger.files("bundles"), uid="bundles-out")
    return made


def fill(ledger: Ledger, rules: ps.sources.PartitionedLog, batches: int) -> None:
    before = rules.end_offsets()[0]
    numbers = [before + at for at in range(RULES_A_BATCH * batches)]
    turned = [
        numbers[at + (1 if at % 2 == 0 else -1)] for at in range(len(numbers))
    ]  # order_by puts them right
    rules.append(0, [{"name": "limit", "n": number} for number in turned])
    for partition in range(PARTITIONS):
        ledger.append(partition, f"card-{partition % 2}", A_BATCH * batches)


def test_rules_change_in_the_middle(spark, tmp_path):
    """Rules of a batch are in force for the rows of that batch, over a failure and a restart with more subtasks than cards."""
    ledger = Ledger(tmp_path, partitions=PARTITIONS)
    rules = ps.sources.PartitionedLog(tmp_path / "rules", "name string, n long", 1)
    fill(ledger, rules, 3)
    job(spark, ledger, rules, 2).start(available_now=True).wait()
    assert (tmp_path / "failed").exists()
    fill(ledger, rules, 1)
    job(spark, ledger, rules, 4).start(available_now=True).wait()
    fill(ledger, rules, 1)
    for partition in range(PARTITIONS):
        ledger.append(partition, "flush", 1)
    job(spark, ledger, rules, 3).start(available_now=True).wait()

    every = [(row["partition"], row["offset"]) for row in ledger.log.table().to_pylist()]
    found = ledger.rows("fraud")
    assert Counter((row["partition"], row["offset"]) for row in found) == Counter(every)
    last = rules.end_offsets()[0] - 1
    for row in found:
        in_force = min(row["offset"] // A_BATCH * RULES_A_BATCH + RULES_A_BATCH - 1, last)
        assert (row["n"], row["names"]) == (in_force, in_force + 1)
    counted = Counter(row["app"] for row in found)
    assert {app: max(row["count"] for row in found if row["app"] == app) for app in counted} == counted
    users = ledger.log.table().to_pylist()
    assert Counter((row["partition"], row["offset"]) for row in ledger.rows("odd")) == Counter(
        (row["partition"], row["offset"]) for row in users if row["user"] % 2
    )

    bundles = ledger.rows("bundles")
    assert Counter((row["partition"], row["offset"]) for row in bundles) == Counter(every)
    for row in bundles:
        assert row["n"] == min(row["last"] // A_BATCH * RULES_A_BATCH + RULES_A_BATCH - 1, last)


def test_a_broadcast_stream_may_come_from_an_operator(spark, tmp_path):
    """Results of an operator are broadcast to another that reads the same source; both run once."""

    class Total(ps.Process):
        seen = ps.OperatorListState("long", on_rescale="whole")

        def process(self, rows, ctx):
            self.seen.extend(rows.column("user"))
            yield (sum(self.seen),)

    class Compare(ps.Process):
        totals = ps.BroadcastState("string", "long")

        def process_broadcast(self, rows, ctx):
            self.totals["all"] = self.totals.get("all", 0) + sum(rows.column("total"))

        def process(self, rows, ctx):
            for row in rows:
                yield row.user, self.totals["all"]

    ledger = Ledger(tmp_path, partitions=1)
    for batch in range(2):
        ledger.append(0, "a", 3, user=10 * batch)
        made = ledger.job(parallelism=2)
        numbers = made.read(ledger.log.read(spark), uid="numbers")
        totals = numbers.process(Total(), schema="total long", uid="totals")
        compared = numbers.connect(totals.broadcast()).process(
            Compare(), schema="user long, total long", uid="compared"
        )
        compared.write_to(ledger.files("compared"), uid="compared-out")
        made.start(available_now=True).wait()
    assert Counter((row["user"], row["total"]) for row in ledger.rows("compared")) == Counter(
        [(user, 3) for user in range(3)] + [(10 + user, 3 + 3 + 33) for user in range(3)]
    )


def test_all_subtasks_of_all_operators_can_be_woken(spark, tmp_path, monkeypatch):
    """In a batch with one row every subtask of each kind of operator runs, and only the row counts."""
    ran: list[frozenset[SubtaskId]] = []

    def watched(plan: Assignment, *given: Any) -> Acknowledged:
        done = acknowledged(plan, *given)
        ran.append(done.with_rows)
        return done

    everyone = frozenset({"by-key", "sums", "kept", "unkeyed"})
    monkeypatch.setattr(engine_run, "acknowledged", watched)
    monkeypatch.setattr(query, "Run", partial(engine_run.Run, wake=lambda _: everyone))

    class Rows(ps.Process):
        seen = ps.OperatorListState("long")

        def process(self, rows, ctx):
            yield "all", len(rows)

    ledger = Ledger(tmp_path, partitions=1)
    ledger.append(0, "a", 1)
    made = ledger.job(parallelism=3)
    rows = made.read(ledger.log.read(spark), uid="rows")
    columns = "app string, n long"
    rows.key_by("app").process(Count(), schema=columns, uid="by-key").write_to(
        ledger.sqlite("by_key"), uid="1"
    )
    rows.key_by("app").aggregate(n=F.count("*"), uid="sums").write_to(ledger.sqlite("sums"), uid="2")
    kept = rows.key_by("app").aggregate(n=F.count("*"), uid="kept")
    kept.write_to(ledger.sqlite("kept"), uid="3")
    kept.bad_records().write_to(ledger.files("letters"), uid="4")
    rows.process(Rows(), schema=columns, uid="unkeyed").write_to(ledger.sqlite("unkeyed"), uid="5")
    made.start(available_now=True).wait()
    assert ran == [frozenset(SubtaskId(uid, index) for uid in everyone for index in range(3))]
    assert [ledger.counts(name) for name in ("by_key", "sums", "kept", "unkeyed")] == [
        {"a": 1},
        {"a": 1},
        {"a": 1},
        {"all": 1},
    ]
    assert ledger.rows("letters") == []
