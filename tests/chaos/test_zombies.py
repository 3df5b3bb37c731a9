"""A driver that was thought dead wakes up while another one owns the job."""

from __future__ import annotations

import random
import signal
import time

import driver
import pytest
from held_storage import held_path, release_path
from known_truth import Site, Traffic, assert_exact, assert_nothing_left_after_recovery
from moments import Moment, look, newest_checkpoint
from processes import Driver, Drivers, drivers_of

from penstock.recovery.fencing import STALE_AFTER_S, newest_run

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def take_over(drivers: Drivers, site: Site, *, takeover: bool) -> None:
    """Start another driver and let it complete checkpoints of its own."""
    before, run = newest_checkpoint(site), newest_run(site.storage)
    owner = drivers.start(takeover=takeover)
    drivers.wait_for(
        "checkpoints of the new owner",
        lambda: newest_checkpoint(site) > before and newest_run(site.storage) > run,
        owner,
    )
    seen = newest_checkpoint(site)
    drivers.wait_for("more checkpoints of the new owner", lambda: newest_checkpoint(site) > seen, owner)


def assert_fenced(drivers: Drivers, site: Site, zombie: Driver) -> None:
    """It ends by itself, and does not take the job back."""
    owner = newest_run(site.storage)
    drivers.wait_for("the end of the zombie", lambda: zombie.ended or newest_run(site.storage) > owner)
    assert newest_run(site.storage) == owner, f"the zombie took the job back:\n{zombie.tail()}"
    assert zombie.process.returncode == driver.FENCED, zombie.tail()


def finish(drivers: Drivers, site: Site, traffic: Traffic) -> None:
    traffic.stop()
    site.finish_path.touch()
    owner = drivers.all[-1]
    assert drivers.wait_for_end(owner) == 0, owner.tail()
    assert_exact(traffic)
    assert_nothing_left_after_recovery(traffic)


@pytest.mark.chaos_long
def test_a_stopped_driver_wakes_up_fenced(site, seed):
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
        take_over(drivers, site, takeover=False)
        zombie.signal_family(signal.SIGCONT)
        assert_fenced(drivers, site, zombie)
        finish(drivers, site, traffic)


def test_a_driver_held_before_its_metadata_completes_nothing(site, seed):
    """A driver that slept between pre-commit and complete, and past the fence's check, writes metadata that counts for nothing."""
    with drivers_of(site) as drivers, Traffic(site, seed) as traffic:
        zombie = drivers.start(hold_after=1)
        drivers.wait_for("the zombie to be held", held_path(site.root).exists, zombie)
        zombie.signal_family(signal.SIGSTOP)
        take_over(drivers, site, takeover=True)
        release_path(site.root).touch()
        zombie.signal_family(signal.SIGCONT)
        assert_fenced(drivers, site, zombie)
        finish(drivers, site, traffic)


def test_a_live_driver_is_taken_over(site, seed):
    """A job taken from a driver that is alive and goes on reading loses and doubles nothing."""
    with drivers_of(site) as drivers, Traffic(site, seed) as traffic:
        former = drivers.start(interval="3s")
        drivers.wait_for("a checkpoint", lambda: newest_checkpoint(site) >= 0, former)
        take_over(drivers, site, takeover=True)
        assert_fenced(drivers, site, former)
        finish(drivers, site, traffic)
