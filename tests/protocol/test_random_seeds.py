"""Random jobs with random trouble: crashes, zombies, failing storage and sinks, lost workers, changes of parallelism."""

from __future__ import annotations

import os

import pytest
from simulations import world

from penstock.testing.simulation import random_workload

SEED = os.environ.get("PENSTOCK_SEED")
SEEDS = range(200) if SEED is None else [int(SEED)]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_promise_is_kept(seed: int) -> None:
    """Sinks, state and storage end up as the mode promises, whatever the seed does to the job."""
    workload = random_workload(seed)
    with world(workload, seed) as simulated:
        try:
            simulated.live()
        except BaseException:
            print(f"replay with: PENSTOCK_SEED={seed} pytest tests/protocol/test_random_seeds.py")
            print(workload, *simulated.log, sep="\n  ")
            raise
