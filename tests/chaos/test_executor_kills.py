"""Executors of a cluster die, with the shuffle output they held."""

from __future__ import annotations

import random
import re
from contextlib import suppress

import pytest
from chaos_job import SHUFFLED
from known_truth import Site, Traffic, assert_exact, assert_nothing_left_after_recovery
from moments import KILLS, Moment, hesitate, newest_checkpoint, state_files
from processes import GONE, Driver, Drivers, drivers_of

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(600 + 90 * KILLS)]

CLUSTER = "local-cluster[2,1,512]"
FETCHED_ONCE = {"spark.shuffle.io.maxRetries": "0"}
"""Who fetches from a dead executor asks three times more, five seconds apart, before Spark does what is tested here."""


def kill_an_executor(drivers: Drivers, site: Site, driver: Driver, rng: random.Random) -> None:
    """Kill one of two right after an operator stored its state: its results wait for the next stage then."""
    drivers.wait_for("two executors", lambda: len(driver.executors()) == 2, driver, poll_s=0.5)
    victim = rng.choice(driver.executors())
    before = state_files(site, "links")
    drivers.wait_for(
        "state of the first operator", lambda: state_files(site, "links") - before, driver, poll_s=0.002
    )
    hesitate(rng, Moment.STATE_STORED)
    with suppress(*GONE):
        victim.kill()
    seen = newest_checkpoint(site)
    drivers.wait_for("later checkpoints", lambda: newest_checkpoint(site) > seen + 1, driver)


def test_killed_executors(site, seed):
    """When executors are killed, also between an operator and a shuffle of its results, the job stays exact."""
    rng = random.Random(seed)
    with drivers_of(site) as drivers, Traffic(site, seed, bad_share=0) as traffic:
        driver = drivers.start(master=CLUSTER, config=FETCHED_ONCE, shape=SHUFFLED)
        drivers.wait_for("a checkpoint", lambda: newest_checkpoint(site) >= 0, driver)
        for _ in range(max(1, KILLS // 5)):
            kill_an_executor(drivers, site, driver, rng)
        traffic.stop()
        site.finish_path.touch()
        assert drivers.wait_for_end(driver) == 0, driver.tail()
        text = driver.log_path.read_text(errors="replace")
    back = text.count("goes back to its last checkpoint")
    again = len(re.findall(r"job chaos failed \(UnavailableError: batch \d+ is given up", text))
    print(f"{back} times back to the checkpoint, {again} of them because Spark ran an operator again")
    assert_exact(traffic, shuffled=True)
    assert_nothing_left_after_recovery(traffic, shuffled=True)
