"""A job with timers, windows and a join, while its driver and its Python workers die: in the end every count is right."""

from __future__ import annotations

import random
import signal
from contextlib import suppress

import pytest
from chaos_job import TIMED
from known_truth import Site, Traffic, assert_nothing_left
from moments import KILLS, Moment, first_batch_done, hesitate, look, newest_checkpoint
from processes import GONE, Driver, Drivers, drivers_of
from timed_job import assert_timed_outputs_exact

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(600 + 90 * KILLS)]

MOMENTS = [Moment.BATCH_PLANNED, Moment.STATE_STORED, Moment.COMPLETED, Moment.BATCH_DONE, Moment.ANY]


def wait_for(drivers: Drivers, site: Site, moment: Moment, driver: Driver) -> None:
    before = look(site, moment)
    if moment is not Moment.ANY:
        drivers.wait_for(moment.value, lambda: look(site, moment) - before, driver, poll_s=0.002)


def kill_workers(driver: Driver) -> None:
    for one in driver.family():
        with suppress(*GONE):
            if (
                "pyspark" in " ".join(one.cmdline())
                and one.name().startswith("python")
                and one.pid != driver.process.pid
            ):
                one.kill()


def test_time_goes_on_over_kills(site, seed):
    """Drained in the end: each alarm, window and pair is there once, whoever died in between, and nothing is left over."""
    rng = random.Random(seed)
    traffic = Traffic(site, seed, bad_share=0)
    with drivers_of(site) as drivers:
        with traffic:
            for number in range(max(1, KILLS - 2)):
                driver = drivers.start(shape=TIMED)
                drivers.wait_for("the first batch", lambda: first_batch_done(site), driver)
                drivers.wait_for("something to go back to", lambda: newest_checkpoint(site) >= 0, driver)
                for victim in ("the workers", "the driver with all its children"):
                    moment = rng.choice(MOMENTS)
                    wait_for(drivers, site, moment, driver)
                    hesitate(rng, moment)
                    if victim == "the workers":
                        kill_workers(driver)
                    else:
                        driver.signal_family(signal.SIGKILL)
                    print(f"kill {number}: {victim}, when {moment.value}")
        last = drivers.start(shape=TIMED, drain=True)
        assert drivers.wait_for_end(last) == 0, last.tail()
    assert_timed_outputs_exact(site)
    assert_nothing_left(traffic)
