"""What somebody does to a simulated job between two of its runs, see `Intervention`."""

from __future__ import annotations

import random

from penstock.errors import FencedError
from penstock.ids import CheckpointId, RunId
from penstock.ownership.claim import Claimant, newest_run, read_descents, read_run
from penstock.recovery.cleanup import forget_everything
from penstock.recovery.history import read_history
from penstock.storage import Storage
from penstock.testing.faulty_storage import SimulatedCrash
from penstock.testing.simulation.lifeline import Fate, Lifeline, Violation, WatchedStorage
from penstock.testing.simulation.site import Site

CALLS_OF_A_CANCEL = 9
"""In about: so that a crash falls on all of them, and behind them."""


def far_back(site: Site) -> CheckpointId | None:
    """The oldest checkpoint that a person can choose, when there is a choice."""
    whole = read_history(site.storage, read_descents(site.storage)).whole
    return whole[0].id if len(whole) > 1 else None


def belongs_to(storage: Storage, claimant: Claimant) -> bool:
    """Whether the newest run of the job is one of this start."""
    owner = newest_run(storage)
    return bool(owner) and read_run(storage, owner).claimant == claimant.token


def forget(site: Site, claimant: Claimant, rng: random.Random) -> bool:
    """The driver that ran last is cancelled and forgets what is kept; it may die in the middle. Whether all is forgotten."""
    if not belongs_to(site.storage, claimant):
        _forget_in_vain(site, claimant)
        return False
    owner = newest_run(site.storage)
    dies_after = rng.choice([None, rng.randint(1, CALLS_OF_A_CANCEL)])
    storage = WatchedStorage(site.storage, Lifeline(Fate(dies_after=dies_after)), rng, flakiness=0.0)
    try:
        run = forget_everything(storage, site.clock.wall(), claimant)
    except SimulatedCrash:
        run = None
    if any(descent.run > owner for descent in read_descents(site.storage)):
        site.source.forget()  # one that died before goes on from its checkpoint, where no source is asked again
    if run is not None:
        _nothing_is_kept(site, run)
    return run is not None


def _forget_in_vain(site: Site, claimant: Claimant) -> None:
    """A zombie that stood still before its first claim has taken the job since: its driver keeps it, with all that there is."""
    before = site.storage.names()
    try:
        forget_everything(site.storage, site.clock.wall(), claimant)
    except FencedError:
        if site.storage.names() == before:
            return
    raise Violation("a driver that had lost the job was cancelled, and did not leave alone what is kept")


def _nothing_is_kept(site: Site, run: RunId) -> None:
    kept = [name for name in site.storage.names() if name.startswith(("chk-", "state/", "spark/"))]
    if kept:
        raise Violation(f"run {run} has forgotten everything, and there are {kept}")
