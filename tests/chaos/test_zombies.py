"""A driver that was thought dead wakes up while another one owns the job."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import driver
import pytest
from chaos_job import build_job
from held_storage import held_path, release_path
from known_truth import Site, Traffic
from moments import Moment, look, newest_checkpoint
from processes import Driver, Drivers, drivers_of
from pyspark.sql import SparkSession
from test_worker_kills import end, finish, wait_for

from penstock.ownership.claim import newest_run
from penstock.ownership.heartbeat import STALE_AFTER_S
from penstock.spark.job_handle import JobHandle

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


@contextmanager
def new_owner(spark: SparkSession, site: Site, *, takeover: bool) -> Iterator[JobHandle]:
    """Another driver, in this process, that owns the job and has completed checkpoints of its own."""
    handle = build_job(site, spark).start(takeover=takeover)
    try:
        before = handle.progress.restored_from
        wait_for("checkpoints of the new owner", handle, lambda: handle.progress.checkpoint > before + 1)
        yield handle
    finally:
        end(handle)


@pytest.fixture(scope="module")
def former_owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """One process for the module, unless a test fails: each would start a Spark."""
    with drivers_of(Site(tmp_path_factory.mktemp("former-owners"))) as drivers:
        yield drivers


def assert_fenced(drivers: Drivers, site: Site, zombie: Driver) -> None:
    """Its job ends by itself, and it does not take the job back."""
    owner = newest_run(site.storage)
    drivers.wait_for(
        "the end of the zombie", lambda: zombie.outcome is not None or newest_run(site.storage) > owner
    )
    assert newest_run(site.storage) == owner, f"the zombie took the job back:\n{zombie.tail()}"
    assert zombie.outcome == driver.FENCED, zombie.tail()


def test_a_stopped_driver_wakes_up_fenced(spark, site, seed):
    """A driver frozen in the middle of anything, whose job went on elsewhere, ends as fenced and changes nothing."""
    rng = random.Random(seed)
    with drivers_of(site) as drivers, Traffic(site, seed) as traffic:
        zombie = drivers.start()
        drivers.wait_for("a checkpoint", lambda: newest_checkpoint(site) >= 1, zombie)
        moment = rng.choice([Moment.ROWS_STAGED, Moment.STATE_STORED, Moment.BATCH_PLANNED, Moment.COMPLETED])
        before = look(site, moment)
        drivers.wait_for(moment.value, lambda: look(site, moment) - before, zombie, poll_s=0.002)
        zombie.signal_family(signal.SIGSTOP)
        print(f"stopped when {moment.value}")
        time.sleep(STALE_AFTER_S)
        with new_owner(spark, site, takeover=False) as owner:
            zombie.signal_family(signal.SIGCONT)
            assert_fenced(drivers, site, zombie)
            finish(site, owner, traffic)


def test_a_driver_held_before_its_metadata_completes_nothing(spark, site, seed, former_owners):
    """A driver that slept between pre-commit and complete, and past the fence's check, writes metadata that counts for nothing."""
    with Traffic(site, seed) as traffic:
        zombie = former_owners.run(site, hold_after=1)
        former_owners.wait_for("the zombie to be held", held_path(site.root).exists, zombie)
        zombie.signal_family(signal.SIGSTOP)
        with new_owner(spark, site, takeover=True) as owner:
            release_path(site.root).touch()
            zombie.signal_family(signal.SIGCONT)
            assert_fenced(former_owners, site, zombie)
            finish(site, owner, traffic)


def test_a_live_driver_is_taken_over(spark, site, seed, former_owners):
    """A job taken from a driver that is alive and goes on reading loses and doubles nothing."""
    with Traffic(site, seed) as traffic:
        former = former_owners.run(site, interval="1s")
        former_owners.wait_for("a checkpoint", lambda: newest_checkpoint(site) >= 0, former)
        with new_owner(spark, site, takeover=True) as owner:
            assert_fenced(former_owners, site, former)
            finish(site, owner, traffic)
