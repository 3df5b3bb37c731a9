"""Random jobs with random trouble: crashes, zombies, failing storage and sinks, lost workers, changes of parallelism."""

from __future__ import annotations

import os

import pytest
from simulations import SEED as SMALL_SEED
from simulations import workload, world

from penstock.testing.simulation import Fate, random_workload

SEED = os.environ.get("PENSTOCK_SEED")
SEEDS = range(200) if SEED is None else [int(SEED)]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_promise_is_kept(seed: int) -> None:
    """Sinks, state and storage end up as the mode promises, whatever the seed does to the job."""
    job = random_workload(seed)
    with world(job, seed) as simulated:
        try:
            simulated.live()
        except BaseException:
            print(f"replay with: PENSTOCK_SEED={seed} pytest tests/protocol/test_random_seeds.py")
            print(job, *simulated.log, sep="\n  ")
            raise


def test_a_seed_replays_everything() -> None:
    """The same seed gives the same I/O calls in the same order, under the same names and by the same claimants."""

    def told() -> tuple[list[list[str]], list[bytes]]:
        with world(workload(), SMALL_SEED, (Fate(dies_after=60), Fate(pauses_before=30))) as simulated:
            simulated.live()
            storage = simulated.site.storage
            claims = [storage.get(name) for name in storage.names("runs") if name.endswith(".json")]
            return simulated.calls, claims

    assert told() == told()
