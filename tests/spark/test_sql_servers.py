"""Jobs on Spark that write to a real PostgreSQL and a real MariaDB: they fail and go on, meet bad rows, and lose the server."""

from __future__ import annotations

import logging
import re
from collections import Counter

import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import SparkSession
from sql_target import MariaDBServer, PostgresServer

import penstock as ps

pytestmark = pytest.mark.spark
KINDS = {"postgres": PostgresServer, "mariadb": MariaDBServer}


@pytest.fixture(params=KINDS)
def server(request):
    """One of the servers that all tests share."""
    return KINDS[request.param](request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture(params=KINDS)
def own_server(request):
    """One that may be killed."""
    from services import mariadb_process, postgres_process

    running = {"postgres": postgres_process.running, "mariadb": mariadb_process.running}[request.param]
    with running() as process:
        yield KINDS[request.param](process)


class Increments(Count):
    """Emits how many rows of the key are new, so that a row that is lost or written twice shows in the sum."""

    def process(self, key, rows, ctx):
        yield key, len(rows)


def job_into(spark: SparkSession, ledger: Ledger, server, code: Count, **settings) -> ps.Job:
    """Appends increments by prepared transactions, upserts totals by staged rows."""
    job = ledger.job(restart=ps.fixed_delay(attempts=2, delay="10ms"), **settings)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    increments = clicks.key_by("app").process(code, schema="app string, n long", uid="increments")
    increments.write_to(server.sink("spark_increments", create=True), uid="increments-out")
    totals = clicks.key_by("app").process(Count(), schema="app string, n long", uid="totals")
    totals.write_to(server.sink("spark_totals", mode="upsert", key=["app"], create=True), uid="totals-out")
    return job


def test_every_row_once_over_a_failure_and_a_restart(spark, tmp_path, server):
    """Appended increments sum up to the truth, and upserted totals are it, after a failed batch and in the next run."""
    ledger = Ledger(tmp_path)
    marker = tmp_path / "failed"

    class FailsOnce(Increments):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    ledger.fill(600)
    handle = job_into(spark, ledger, server, FailsOnce()).start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    ledger.fill(300)
    job_into(spark, ledger, server, Increments(), checkpoint=ps.Checkpointing(interval="1h")).run(
        available_now=True
    )
    summed = {app: int(n) for app, n in server.query("SELECT app, sum(n) FROM spark_increments GROUP BY app")}
    assert summed == dict(server.query("SELECT app, n FROM spark_totals")) == ledger.truth()
    assert server.prepared() == []


def rows_into(spark: SparkSession, ledger: Ledger, sink) -> ps.Job:
    """Appends every row of the log, so that the table shows exactly which checkpoint it stands for."""
    job = ledger.job(restart=ps.fixed_delay(attempts=2, delay="10ms"))
    clicks = job.read(ledger.log.read(spark, rows_per_batch=100), uid="clicks")
    clicks.transform(lambda frame: frame.selectExpr("app", "user as number")).write_to(sink, uid="out")
    return job


@pytest.mark.parametrize("transactions", ["prepared", "staged"])
def test_a_row_that_breaks_a_constraint(spark, tmp_path, server, transactions):
    """The job stops with the row, though it might restart; the table has what the last checkpoint promised, and nothing waits."""
    ledger = Ledger(tmp_path, partitions=1)
    table = f"spark_checked_{transactions}"
    server.query(
        f"CREATE TABLE {table} (app varchar(20), number bigint, CONSTRAINT small CHECK (number < 1000))"
    )
    ledger.append(0, "good", 100)
    ledger.append(0, "bad", 100, user=950)
    handle = rows_into(spark, ledger, server.sink(table, transactions=transactions)).start(available_now=True)
    with pytest.raises(ps.PenstockError, match=r"small.*app='bad', number=1000"):
        handle.wait()
    assert handle.progress.restarts == 0
    assert Counter(server.query(f"SELECT app FROM {table}")) == {("good",): 100}
    assert server.prepared() == []
    if transactions == "staged":
        assert server.query("SELECT * FROM _penstock_transactions") == []


def test_the_server_dies_while_a_commit_is_due(spark, tmp_path, own_server, monkeypatch, caplog):
    """Killed right before the commit and started two tries later: tries are logged with growing pauses, and every row is there once."""
    caplog.set_level(logging.WARNING, logger="penstock")
    caplog.set_level(logging.DEBUG, logger="penstock.checkpoint")
    ledger = Ledger(tmp_path)
    ledger.fill(50)
    commit_all = own_server.kind.commit_all
    tries = []

    def commit_without_a_server(sink, transactions) -> None:
        tries.append(transactions)
        if len(tries) == 1:
            own_server.kill()
        if len(tries) == 3:
            own_server.start()
        commit_all(sink, transactions)

    monkeypatch.setattr(own_server.kind, "commit_all", commit_without_a_server)
    handle = rows_into(spark, ledger, own_server.sink("results", create=True)).start(available_now=True)
    handle.wait()
    said = re.findall(r"sink \S+: next try in (\S+) s .*?: UnavailableError", caplog.text)
    assert [float(pause) for pause in said] == [0.1, 0.2]
    assert Counter(app for (app,) in own_server.query("SELECT app FROM results")) == ledger.truth()
    assert own_server.prepared() == []
    assert handle.progress.restarts == 0
