"""Side outputs in a whole job: they reach sinks and operators exactly once, with the results of the same calls."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from ledger import Count, Ledger
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark

ROWS = 300
START = datetime(2026, 1, 1, tzinfo=UTC)
EACH = "app string, user long, n long, name string"
ALERT = "app string, at timestamp, amount decimal(12,2), tags map<string,long>, name string"


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path)
    fill(ledger)
    return ledger


def fill(ledger: Ledger) -> None:
    for partition in range(ledger.partitions):
        apps = [None if row % 50 == 7 else f"app{row % 5}" for row in range(ROWS)]
        users = pa.array([row % 100 for row in range(ROWS)], pa.int64())
        ledger.log.append(partition, pa.table({"app": apps, "user": users}))


def given(ledger: Ledger) -> list[tuple[str, int]]:
    """The rows that have a key."""
    table = ledger.log.table()
    rows = zip(table["app"].to_pylist(), table["user"].to_pylist(), strict=True)
    return [(app, user) for app, user in rows if app is not None]


class Watching(ps.KeyedProcess):
    """Counts rows. Emits large users as alerts, under a name that no other attempt gives and that is in the result too."""

    count = ps.ValueState("long", default=0)
    alerts = ps.SideOutput(ALERT)
    small = ps.SideOutput("user long")
    unread = ps.SideOutput("user long")

    def process(self, key, rows, ctx):
        for row in rows:
            self.count.value += 1
            name = secrets.token_hex(8)
            if row.user >= 90:
                at, amount = START + timedelta(seconds=row.user), Decimal(row.user) / 4
                ctx.emit("alerts", (key[0], at, amount, {"user": row.user}, name))
            elif row.user < 3:
                ctx.emit("small", {"user": row.user})
            ctx.emit("unread", (row.user,))
            yield row.app, row.user, self.count.value, name
            if row.user == 13:
                raise ValueError("user 13 is bad luck")


def watched_job(spark, ledger: Ledger, parallelism: int) -> ps.Job:
    """One operator with results, dead letters and two side outputs that are read, one of them by three."""
    job = ledger.job(parallelism=parallelism)
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    watched = clicks.key_by("app", "user").process(Watching(), schema=EACH, uid="watching")
    watched.write_to(ledger.files("each"), uid="each-out")
    watched.bad_records().write_to(ledger.files("letters"), uid="letters-out")
    alerts = watched.side("alerts")
    alerts.write_to(ledger.files("alerts"), uid="alerts-out")
    by_app = watched.side("alerts").key_by("app").process(Count(), schema="app string, n long", uid="by-app")
    by_app.write_to(ledger.sqlite("by_app"), uid="by-app-out")
    users = alerts.transform(lambda df: df.select(F.col("tags")["user"].alias("user")).orderBy("user"))
    users.union(watched.side("small")).write_to(ledger.files("users"), uid="users-out")
    return job


def test_main_and_side_outputs_are_the_input(spark, ledger):
    """Results, dead letters and side outputs of the same attempts, each once, over two runs with another parallelism."""
    watched_job(spark, ledger, 2).start(available_now=True).wait()
    fill(ledger)
    watched_job(spark, ledger, 3).start(available_now=True).wait()

    rows = given(ledger)
    each, alerts = ledger.rows("each"), ledger.rows("alerts")
    assert Counter((row["app"], row["user"]) for row in each) == Counter(row for row in rows if row[1] != 13)
    assert {row["app"]: row["n"] for row in each if row["user"] == 95} == {"app0": 12}
    large = [row for row in rows if row[1] >= 90]
    assert Counter((row["app"], row["tags"][0][1]) for row in alerts) == Counter(large)
    assert all(
        (row["at"], row["amount"]) == (START + timedelta(seconds=user), Decimal(user) / 4)
        for row in alerts
        for user in [row["tags"][0][1]]
    )
    assert Counter(row["name"] for row in alerts) == Counter(row["name"] for row in each if row["user"] >= 90)
    assert ledger.counts("by_app") == Counter(app for app, _ in large)
    assert Counter(row["user"] for row in ledger.rows("users")) == Counter(
        user for _, user in rows if user < 3 or user >= 90
    )
    letters = Counter(json.loads(row["row"])["user"] for row in ledger.rows("letters"))
    assert letters[13] == sum(user == 13 for _, user in rows)
    assert letters.total() == ledger.log.table().num_rows - len(each)


class InColumns(ps.BatchProcess):
    """Emits the large users; has no result of its own."""

    seen = ps.ValueState("long", default=0)
    large = ps.SideOutput("app string, user long")
    counts = ps.SideOutput(["app string", ("n", "long")])

    def process_batch(self, keys, batch, state):
        state["seen"] = pc.add(state["seen"], pa.array(np.bincount(batch.key_index)))
        table = batch.to_arrow().select(["app", "user"])
        state.context.emit("large", table.filter(pc.greater_equal(table["user"], 90)))
        state.context.emit("counts", {"app": keys["app"], "n": state["seen"]})


@pytest.mark.parametrize("mode", [ps.AT_LEAST_ONCE, ps.AT_MOST_ONCE])
def test_only_side_outputs_are_written(spark, ledger, mode):
    """Of an operator in columns, without results, in the weaker modes; rows without a key are skipped, another side is not read."""
    job = ledger.job(checkpoint=ps.Checkpointing(interval="1ms", mode=mode), on_bad_record="skip")
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    columns = clicks.key_by("app").process(InColumns(), schema="nothing int", uid="columns")
    columns.side("counts").write_to(ledger.sqlite("counts"), uid="counts-out")
    if mode is ps.AT_LEAST_ONCE:
        columns.side("large").write_to(ledger.files("large"), uid="large-out")
    job.start(available_now=True).wait()
    rows = given(ledger)
    assert ledger.counts("counts") == Counter(app for app, _ in rows)
    large = [(row["app"], row["user"]) for row in ledger.rows("large")]
    wanted = [row for row in rows if row[1] >= 90] if mode is ps.AT_LEAST_ONCE else []
    assert Counter(large) == Counter(wanted)


class Misspelled(ps.KeyedProcess):
    alerts = ps.SideOutput("user long")

    def process(self, key, rows, ctx):
        ctx.emit("alert", (1,))


def test_a_wrong_name_ends_the_job_at_once(spark, ledger):
    """In user code it is an error with its line, after one attempt, also where bad rows are skipped; asked for, before Spark starts."""
    job = ledger.job(on_bad_record="skip", restart=ps.fixed_delay(attempts=5))
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
    for other in (clicks, views, views.transform(lambda df: df)):
        with pytest.raises(ps.ConfigError, match="ask it of what process returned"):
            other.side("alerts")
    wrong = clicks.key_by("app").process(Misspelled(), schema="user long", uid="wrong")
    with pytest.raises(ps.ConfigError, match="there are: alerts; did you mean 'alerts'"):
        wrong.side("alert")
    wrong.side("alerts").write_to(ledger.files("alerts"), uid="alerts-out")
    with pytest.raises(ps.UserCodeError, match=r"emit\('alert', ...\).*did you mean 'alerts'\?") as ended:
        job.start(available_now=True).wait()
    assert 'ctx.emit("alert", (1,))' in "".join(ended.value.__notes__)
    assert ledger.rows("alerts") == []
