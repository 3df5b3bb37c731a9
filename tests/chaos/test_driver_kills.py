"""The driver dies with `kill -9`, again and again, at every phase of the protocol."""

from __future__ import annotations

import random
import signal

import pytest
from known_truth import Site, Traffic, assert_exact, assert_nothing_left
from moments import KILLS, Moment, first_batch_done, hesitate, look
from processes import Driver, Drivers, drivers_of

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(600 + 90 * KILLS)]


def plan(rng: random.Random, kills: int) -> list[Moment]:
    """Every moment once before any comes again, in random order."""
    moments: list[Moment] = []
    while len(moments) < kills:
        moments += rng.sample(list(Moment), len(Moment))
    return moments[:kills]


def kill_at(drivers: Drivers, site: Site, moment: Moment, rng: random.Random, number: int) -> str:
    """Start a driver, kill it at the moment; returns what was done."""
    before = look(site, moment)
    driver = drivers.start()
    if not moment.before_first_batch:
        drivers.wait_for("the first batch", lambda: first_batch_done(site), driver)
        before = look(site, moment)
    if moment is not Moment.ANY:
        drivers.wait_for(moment.value, lambda: look(site, moment) - before, driver, poll_s=0.002)
    hesitate(rng, moment)
    victim = rng.choice(
        ["the driver", "the driver", "the JVM of the driver", "the driver with all its children"]
    )
    _kill(drivers, driver, victim)
    return f"kill {number}: {victim}, when {moment.value}"


def _kill(drivers: Drivers, driver: Driver, victim: str) -> None:
    if victim == "the driver":
        driver.kill()
    elif victim == "the driver with all its children":
        driver.signal_family(signal.SIGKILL)
    else:
        drivers.wait_for("its Java", driver.jvm, driver)
        java = driver.jvm()
        assert java is not None
        java.kill()
        assert drivers.wait_for_end(driver) == 1, driver.tail()  # so that whoever watches it starts it again


def test_killed_drivers_leave_no_trace(site, seed):
    """Whenever the driver is killed, every input row is in an output or a dead letter, once; state is exact, and nothing is left over."""
    rng = random.Random(seed)
    traffic = Traffic(site, seed)
    with drivers_of(site) as drivers:
        with traffic:
            for number, moment in enumerate(plan(rng, KILLS), 1):
                print(kill_at(drivers, site, moment, rng, number))
        last = drivers.start()
        site.finish_path.touch()
        assert drivers.wait_for_end(last) == 0, last.tail()
        for dead in drivers.all:
            lingering = dead.wait_until_gone()
            assert not lingering, f"a JVM or worker outlives its driver: {lingering}"
    assert_exact(traffic)
    assert_nothing_left(traffic)
