"""What somebody does to a simulated job between two of its runs, see `Intervention`."""

from __future__ import annotations

import random

from penstock.ids import CheckpointId
from penstock.ownership.claim import Claimant
from penstock.ownership.descent import read_descents
from penstock.recovery.forget import forget_everything
from penstock.recovery.history import read_history
from penstock.testing.faulty_storage import SimulatedCrash
from penstock.testing.simulation.lifeline import Fate, Lifeline
from penstock.testing.simulation.site import Site
from penstock.testing.simulation.violation import Violation
from penstock.testing.simulation.watched_storage import WatchedStorage

CALLS_OF_A_CANCEL = 9
"""In about: so that a crash falls on all of them, and behind them."""


def far_back(site: Site) -> CheckpointId | None:
    """The oldest checkpoint that a person can choose, when there is a choice."""
    whole = read_history(site.storage, read_descents(site.storage)).whole
    return whole[0].id if len(whole) > 1 else None


def forget(site: Site, claimant: Claimant, rng: random.Random) -> bool:
    """A living driver is cancelled and forgets what it has kept; it may die in the middle. Whether it lived."""
    site.source.forget()
    dies_after = rng.choice([None, rng.randint(1, CALLS_OF_A_CANCEL)])
    storage = WatchedStorage(site.storage, Lifeline(Fate(dies_after=dies_after)), rng, flakiness=0.0)
    try:
        run = forget_everything(storage, site.clock.wall(), claimant)
    except SimulatedCrash:
        return False
    kept = [name for name in site.storage.names() if name.startswith(("chk-", "state/", "spark/"))]
    if kept:
        raise Violation(f"run {run} has forgotten everything, and there are {kept}")
    return True
