from __future__ import annotations

import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def counting_job(spark: SparkSession, ledger: Ledger, **settings) -> ps.Job:
    """Counts by SQL and by user code, both kept in RocksDB."""
    job = ledger.job(backend="rocksdb", **settings)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=400), uid="clicks")
    clicks.key_by("app").aggregate(pv=F.count("*"), uid="views").write_to(ledger.sqlite(), uid="views-out")
    users = clicks.key_by("user").process(Count(), schema="user long, n long", uid="users")
    users.write_to(ledger.sqlite("seen", "user"), uid="seen-out")
    return job


def check(ledger: Ledger) -> None:
    assert ledger.counts() == ledger.truth()
    assert ledger.counts("seen") == ledger.truth("user")


def test_counts_are_right_over_a_restart_and_a_rescale(spark, ledger):
    """Every record counts once over batches and runs, and counting goes on from two subtasks to three."""
    ledger.fill(600)
    counting_job(spark, ledger, parallelism=2).run(available_now=True)
    check(ledger)
    for parallelism in (2, 3):
        ledger.fill(300)
        job = counting_job(spark, ledger, parallelism=parallelism)
        job.run(available_now=True)
        check(ledger)
        kinds = {name.rpartition("/")[2].partition(".")[2] for name in job.storage.names("state")}
        assert kinds == {"", "sst"}  # manifests and tables


def test_a_failed_batch_goes_back_to_the_checkpoint(spark, ledger, tmp_path):
    """An exception in user code brings the job back to the databases of its checkpoint, and no count is off."""
    ledger.fill(600)
    marker = tmp_path / "failed"

    class FailsOnce(Count):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    job = ledger.job(backend="rocksdb", restart=ps.fixed_delay(attempts=2, delay="10ms"))
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    clicks.key_by("app").process(FailsOnce(), schema="app string, n long", uid="c").write_to(
        ledger.sqlite(), uid="o"
    )
    handle = job.start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    assert ledger.counts() == ledger.truth()
