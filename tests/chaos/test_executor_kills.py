"""Executors of a cluster die, with the shuffle output they held."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from chaos_job import SHUFFLED
from known_truth import Traffic, assert_exact
from moments import Moment, hesitate, look
from processes import GONE, drivers_of

from penstock.checkpoint.metadata import checkpoint_ids

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def test_killed_executors(site, seed, kills):
    """When executors are killed, also between an operator and a shuffle of its results, the job stays exact."""
    rng = random.Random(seed)
    with drivers_of(site) as drivers, Traffic(site, seed) as traffic:
        driver = drivers.start(master="local-cluster[2,1,512]", shape=SHUFFLED)

        def completed() -> int:
            return max(checkpoint_ids(site.storage), default=-1)

        drivers.wait_for("a checkpoint", lambda: completed() >= 0, driver)
        for number in range(max(2, kills // 5)):
            drivers.wait_for("two executors", lambda: len(driver.executors()) == 2, driver, poll_s=0.5)
            victim = rng.choice(driver.executors())
            before = look(site, Moment.STATE_STORED)
            drivers.wait_for("a state file", lambda: look(site, Moment.STATE_STORED) - before, driver, poll_s=0.002)
            hesitate(rng, Moment.STATE_STORED)
            with suppress(*GONE):
                victim.kill()
            print(f"kill {number + 1}: executor {victim.pid}")
            seen = completed()
            drivers.wait_for("a later checkpoint", lambda: completed() > seen + 1, driver)
        traffic.stop()
        site.finish_path.touch()
        assert drivers.wait_for_end(driver) == 0, driver.tail()
        text = driver.log_path.read_text(errors="replace")
        print(f"{text.count('goes back to its last checkpoint')} times back to the checkpoint,", end=" ")
        print(f"{text.count('Spark lost results of operator')} of them because Spark ran an operator again")
    assert_exact(traffic, shuffled=True)
