"""Rows that an operator or a sink cannot take, in a whole job: results and dead letters together are the input."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark

ROWS = 300


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path)
    fill(ledger)
    return ledger


def fill(ledger: Ledger) -> None:
    for partition in range(ledger.partitions):
        apps = [None if row % 50 == 7 else f"app{row % 5}" for row in range(ROWS)]
        users = [row % 100 for row in range(ROWS)]
        ledger.log.append(partition, pa.table({"app": apps, "user": pa.array(users, pa.int64())}))


def given(ledger: Ledger) -> list[tuple[str | None, int]]:
    table = ledger.log.table()
    return list(zip(table["app"].to_pylist(), table["user"].to_pylist(), strict=True))


class OneByOne(ps.KeyedProcess):
    """Passes on its rows, with a number that no other attempt gives; raises when it has passed on one with the user 13."""

    count = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        for row in rows:
            self.count.value += 1
            yield row.app, row.user, self.count.value, random.random()
            if row.user == 13:
                raise ValueError("user 13 is bad luck")


def checked_table(ledger: Ledger) -> ps.sinks.SQLite:
    with sqlite3.connect(ledger.root / "out.db") as database:
        database.execute("create table if not exists rows (app, user check (user <> 55), n, r)")
    return ps.sinks.SQLite(ledger.root / "out.db", table="rows")


def job_with_letters(spark, ledger: Ledger) -> ps.Job:
    job = ledger.job(on_bad_record="skip")
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    passed = clicks.key_by("app", "user").process(
        OneByOne(), schema="app string, user long, n long, r double", uid="one-by-one"
    )
    written = passed.write_to(checked_table(ledger), uid="rows-out")
    letters = passed.bad_records().union(written.bad_records())
    letters.transform(lambda df: df.orderBy("reason")).write_to(ledger.files("letters"), uid="letters-out")
    letters.write_to(ledger.files("again"), uid="again-out")
    views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
    views.write_to(ledger.sqlite(), uid="views-out")
    views.bad_records().write_to(ledger.files("no-app"), uid="no-app-out")
    skipping = clicks.key_by("app").aggregate(last=F.max("user"), uid="skipping")
    skipping.write_to(ledger.sqlite("latest"), uid="latest-out")
    return job


def letters_in(ledger: Ledger, name: str) -> list[dict]:
    return [{**letter, "row": json.loads(letter["row"])} for letter in ledger.rows(name)]


def test_every_row_is_a_result_or_a_dead_letter(spark, ledger, caplog):
    """Null keys, a raise and what a sink refuses leave results and state of all other rows exact, are dead letters once, and are counted."""
    handle = job_with_letters(spark, ledger).start(available_now=True)
    handle.wait()
    fill(ledger)
    handle = job_with_letters(spark, ledger).start(available_now=True)
    handle.wait()

    with sqlite3.connect(ledger.root / "out.db") as database:
        results = database.execute("select app, user from rows").fetchall()
    letters = letters_in(ledger, "letters")
    both = Counter(results) + Counter((one["row"]["app"], one["row"]["user"]) for one in letters)
    assert both == Counter(given(ledger))
    assert not [row for row in results if row[0] is None or row[1] in (13, 55)]
    why = Counter(
        (one["operator"], one["reason"].partition(" (")[0].rpartition("batch: ")[2]) for one in letters
    )
    nulls = sum(app is None for app, _ in given(ledger))
    unlucky = sum(user == 13 and app is not None for app, user in given(ledger))
    refused = [one for one in letters if one["operator"] == "rows-out"]
    assert why["one-by-one", "the key column 'app' is null"] == nulls == 24
    assert why["one-by-one", "ValueError: user 13 is bad luck"] == unlucky == 12
    assert {one["row"]["user"] for one in refused} == {55}
    assert {one["key"] for one in refused} == {None}
    assert {one["reason"].rpartition("refuses ")[2] for one in refused} == {
        "the row: CHECK constraint failed: user <> 55"
    }
    assert len(letters) == nulls + unlucky + len(refused)
    assert sorted(map(str, letters_in(ledger, "again"))) == sorted(map(str, letters))

    truth = Counter(app for app, _ in given(ledger) if app is not None)
    assert ledger.counts() == truth
    assert ledger.counts("latest") == {app: 95 + int(app[-1]) for app in truth}
    no_app = letters_in(ledger, "no-app")
    assert Counter(one["row"]["user"] for one in no_app) == Counter(
        user for app, user in given(ledger) if app is None
    )
    assert {(one["operator"], one["key"]) for one in no_app} == {("views", '{"app":null}')}

    counted = {"one-by-one": nulls + unlucky, "rows-out": len(refused), "views": nulls, "skipping": nulls}
    assert handle.progress.bad_records == handle.checkpoints()[-1].bad_records == counted
    assert "rows were bad at 'skipping'" in caplog.text


def test_rows_without_a_key_are_neither_merged_nor_added_up(spark, ledger):
    """Texts that a collation takes for equal are two dead letters; what would overflow is not added up in rows that have no key."""
    large = pa.array([2**62 + number for number in range(6)], pa.int64())
    ledger.log.append(0, pa.table({"app": pa.nulls(6, pa.string()), "user": large}))

    def with_text(clicks):
        text = F.expr("collate(if(user % 2 = 0, 'ABC', 'abc'), 'UTF8_LCASE')")
        return clicks.where("user > 100").select("app", text.alias("text"), F.lit(2**62).alias("n"))

    job = ledger.job(on_bad_record="skip")
    clicks = job.read(ledger.log.read(spark), uid="clicks").transform(with_text)
    kept = clicks.key_by("app").aggregate(n=F.sum("n"), uid="kept")
    kept.write_to(ledger.files("sums"), uid="sums-out")
    kept.bad_records().write_to(ledger.files("letters"), uid="letters-out")
    skipping = clicks.key_by("app").aggregate(n=F.sum("n"), uid="skipping")
    skipping.write_to(ledger.files("more"), uid="more-out")
    handle = job.start(available_now=True)
    handle.wait()
    assert Counter(one["row"]["text"] for one in letters_in(ledger, "letters")) == {"ABC": 3, "abc": 3}
    assert {one["row"]["n"] for one in letters_in(ledger, "letters")} == {2**62}
    assert handle.progress.bad_records == {"kept": 6, "skipping": 6}


def test_bad_records_are_asked_of_operators_and_sinks(spark, ledger):
    """Elsewhere there are none; and letters that nobody writes, or that were said to be skipped, are refused before the job starts."""
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    with pytest.raises(ps.ConfigError, match="ask it of what process, aggregate, top or write_to returned"):
        clicks.bad_records()
    skipping = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views", on_bad_record="skip")
    with pytest.raises(ps.ConfigError, match="'views' has on_bad_record='skip'"):
        skipping.bad_records()
    with pytest.raises(ps.ConfigError, match="on_bad_record='drop' is unknown"):
        clicks.key_by("app").aggregate(pv=F.count("*"), uid="more", on_bad_record="drop")
    with pytest.raises(ps.ConfigError, match="to keep bad rows, call bad_records"):
        ledger.job(on_bad_record="keep")
    skipping.write_to(ledger.sqlite(), uid="out").bad_records()
    with pytest.raises(ps.ConfigError, match="'out' are written nowhere"):
        job.start()
