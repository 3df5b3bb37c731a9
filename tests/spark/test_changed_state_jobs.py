"""A job whose operator keeps something else in each of its versions, from checkpoint to checkpoint and by way of a savepoint."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps
from penstock.ownership.claim import read_descents
from penstock.recovery.history import read_history
from penstock.savepoint.create import create_savepoint
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark


class First(ps.KeyedProcess):
    """The first version."""

    rows = ps.ValueState("int", default=0)
    by_user = ps.MapState("long", "int")
    recent = ps.ListState("struct<user:int>")
    label = ps.ValueState("string")

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.rows.value += 1
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.recent.append({"user": row.user})
        self.label.value = f"label of {key}"
        yield key, self.facts()

    def facts(self) -> str:
        users = sorted(element["user"] for element in self.recent)
        return json.dumps([self.rows.value, sorted(self.by_user.items()), users])


class Second(ps.KeyedProcess):
    """Wider numbers, a field more, a state more, and one less."""

    rows = ps.ValueState("long", default=0)
    by_user = ps.MapState("long", "long")
    recent = ps.ListState("struct<version:string,user:long>")
    since = ps.ValueState("long", default=0)

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.rows.value += 1
            self.since.value += 1
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.recent.append({"user": row.user, "version": "second"})
        facts = First.facts(self)  # type: ignore[arg-type]
        versions = Counter(str(element["version"]) for element in self.recent)
        yield key, json.dumps([json.loads(facts), self.since.value, dict(versions)])


class Third(ps.KeyedProcess):
    """The list is gone, a map is new, and `since` begins anew as something else."""

    rows = ps.ValueState("long", default=0, ttl="1000d")
    by_user = ps.MapState("long", "long")
    since = ps.MapState("string", "long")

    def process(self, key: Any, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.rows.value += 1
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.since["third"] = self.since.get("third", 0) + 1
        yield key, json.dumps([self.rows.value, sorted(self.by_user.items()), dict(self.since.items())])


class Versions:
    """The versions of one job, over one log."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark, self.root, self.ledger = spark, root, Ledger(root)

    def job(self, operator: Any, backend: str, parallelism: int, store: str = "store") -> ps.Job:
        job = ps.Job(
            "pv",
            storage=self.root / store,
            local_dir=self.root / "local",
            checkpoint=ps.Checkpointing(interval="1ms"),
            restart=ps.no_restart(),
            backend=backend,
            parallelism=parallelism,
        )
        clicks = job.read(self.ledger.log.read(self.spark, rows_per_batch=150), uid="clicks")
        facts = clicks.key_by("app").process(operator, schema="app string, facts string", uid="kinds")
        facts.write_to(self.ledger.sqlite(), uid="out")
        return job

    def found(self) -> dict[str, Any]:
        return {app: json.loads(str(facts)) for app, facts in self.ledger.counts().items()}

    def users(self) -> dict[str, list[int]]:
        """The truth: of each app all users, sorted."""
        found: dict[str, list[int]] = {}
        for row in self.ledger.log.table().to_pylist():
            found.setdefault(row["app"], []).append(row["user"])
        return {app: sorted(users) for app, users in found.items()}

    def saved(self) -> Path:
        """A savepoint of the newest checkpoint."""
        storage = LocalStorage(self.root / "store" / "pv")
        newest = read_history(storage, read_descents(storage)).whole[-1]
        create_savepoint(storage, newest, LocalStorage(self.root / "saved"), token="t1")
        return self.root / "saved"


def entries(users: list[int]) -> list[list[int]]:
    return [list(entry) for entry in sorted(Counter(users).items())]


def test_three_versions_of_a_job(spark, tmp_path, caplog):
    """What goes along is right to the row, what was dropped or is new begins empty, on every backend in turn and by a savepoint."""
    versions = Versions(spark, tmp_path)
    versions.ledger.fill(120)
    versions.job(First(), "filesystem", 2).run(available_now=True)
    first = versions.users()

    versions.ledger.fill(70)
    second = versions.job(Second(), "rocksdb", 3)
    with pytest.raises(ps.errors.IncompatibleStateError) as refusal:
        second.run(available_now=True)
    for text in (
        "rows: int -> long (goes along)",
        "recent: list<struct<user:int>> -> list<struct<version:string,user:long>> (goes along)",
        "since: long (new, begins empty)",
        "label: string (gone)",
        "drop_state=('kinds.label',)",
    ):
        assert text in str(refusal.value)
    with caplog.at_level(logging.INFO, "penstock"):
        second.run(available_now=True, drop_state=("kinds.label", "kinds.nothing"))
    assert "drop_state names 'kinds.nothing', which neither" in caplog.text
    assert "label: string (dropped)" in caplog.text
    for app, users in versions.users().items():
        old, new = len(first[app]), len(users) - len(first[app])
        facts = [len(users), entries(users), users]
        assert versions.found()[app] == [facts, new, {"None": old, "second": new}]
    before = versions.users()

    versions.ledger.fill(50)
    saved = versions.saved()
    third = versions.job(Third(), "memory", 1, store="elsewhere")
    with pytest.raises(
        ps.errors.IncompatibleStateError, match=r"since: long -> map<string,long> \(its values"
    ):
        third.run(available_now=True, savepoint=saved, drop_state=("kinds.recent",))
    assert list((tmp_path / "elsewhere" / "pv").glob("chk-*")) == []
    for rows in (0, 30):  # the same command again goes on
        versions.ledger.fill(rows)
        third.run(available_now=True, savepoint=saved, drop_state=("kinds.recent", "kinds.since"))
        for app, users in versions.users().items():
            since = {"third": len(users) - len(before[app])}
            assert versions.found()[app] == [len(users), entries(users), since]


def test_an_aggregate_may_be_added_by_name(spark, tmp_path):
    """It has what comes from then on, which has to be allowed; those that were there go on, also where their numbers get wider."""
    ledger = Ledger(tmp_path)
    ledger.fill(60)
    counted = ledger.truth()

    def job(backend: str = "filesystem", **columns: Any) -> ps.Job:
        made = ledger.job(backend=backend)
        clicks = made.read(ledger.log.read(spark), uid="clicks")
        facts = clicks.key_by("app").aggregate(**columns, uid="views")
        listed = facts.transform(lambda df: df.select("app", F.to_json(F.struct(*columns)).alias("facts")))
        listed.write_to(ledger.sqlite(), uid="out")
        return made

    top = F.max(F.col("user").cast("int"))
    job(pv=F.count("*"), top=top).run(available_now=True)
    ledger.append(0, "app1", 3, user=500)
    wider: dict[str, Any] = {
        "users": F.count_distinct("user"),
        "top": F.max("user"),
        "mean": F.avg("user"),
        "pv": F.count("*"),
    }
    with pytest.raises(ps.errors.IncompatibleStateError) as refusal:
        job(**wider).run(available_now=True)
    for text in (
        "top: int -> long (goes along)",
        "mean: sum double, count long (new, it would have nothing",
        "users: ",
    ):
        assert text in str(refusal.value)
    assert "drop_state=('views.mean', 'views.users')" in str(refusal.value)
    job("rocksdb", **wider).run(available_now=True, drop_state=("views.mean", "views.users"))
    facts = json.loads(str(ledger.counts()["app1"]))
    assert facts == {"users": 3, "top": 502, "mean": 501.0, "pv": counted["app1"] + 3}
    ledger.append(1, "app1", 2, user=500)
    job(**wider).run(available_now=True, drop_state=("views.mean", "views.users"))  # loses nothing more
    facts = json.loads(str(ledger.counts()["app1"]))
    assert facts == {"users": 3, "top": 502, "mean": 2504 / 5, "pv": counted["app1"] + 5}
