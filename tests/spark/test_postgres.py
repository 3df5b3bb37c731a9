"""A job on Spark that writes to a real PostgreSQL, fails, and goes on in a second run."""

from __future__ import annotations

import psycopg
import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import SparkSession

import penstock as ps

pytestmark = pytest.mark.spark


class Increments(Count):
    """Emits how many rows of the key are new, so that a row that is lost or written twice shows in the sum."""

    def process(self, key, rows, ctx):
        yield key, len(rows)


def job_into(spark: SparkSession, ledger: Ledger, dsn: str, code: Count, **settings) -> ps.Job:
    """Appends increments by prepared transactions, upserts totals by staged rows."""
    job = ledger.job(restart=ps.fixed_delay(attempts=2, delay="10ms"), **settings)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    increments = clicks.key_by("app").process(code, schema="app string, n long", uid="increments")
    increments.write_to(ps.sinks.Postgres(dsn, "spark_increments", create=True), uid="increments-out")
    totals = clicks.key_by("app").process(Count(), schema="app string, n long", uid="totals")
    totals.write_to(
        ps.sinks.Postgres(dsn, "spark_totals", mode="upsert", key=["app"], create=True), uid="totals-out"
    )
    return job


def test_every_row_once_over_a_failure_and_a_restart(spark, tmp_path, postgres_server):
    """Appended increments sum up to the truth, and upserted totals are it, after a failed batch and in the next run."""
    ledger = Ledger(tmp_path)
    marker = tmp_path / "failed"
    dsn = postgres_server.dsn()

    class FailsOnce(Increments):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    ledger.fill(600)
    handle = job_into(spark, ledger, dsn, FailsOnce()).start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    ledger.fill(300)
    job_into(spark, ledger, dsn, Increments(), checkpoint=ps.Checkpointing(interval="1h")).run(
        available_now=True
    )
    with psycopg.connect(dsn) as connection:
        summed = dict(
            connection.execute("SELECT app, sum(n)::bigint FROM spark_increments GROUP BY app").fetchall()
        )
        totals = dict(connection.execute("SELECT app, n FROM spark_totals").fetchall())
        prepared = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'penstock:pv:%'"
        ).fetchall()
    assert summed == totals == ledger.truth()
    assert prepared == []
