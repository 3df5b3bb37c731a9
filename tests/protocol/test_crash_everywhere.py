"""Crash before and after every single I/O call of a small job, stand still before every one, and come back exact."""

from __future__ import annotations

import random

import pytest
from simulations import (
    SEED,
    calls_of_a_start_from_a_savepoint,
    calls_without_a_crash,
    come_back,
    dies_behind_a_commit,
)

from penstock.checkpoint.metadata import CheckpointName
from penstock.config import Mode
from penstock.ids import CheckpointId, RunId
from penstock.testing.simulation import Fate
from services.tiers import everything

PARTS = 4
"""The calls are dealt out to this many tests, so that a failure names a neighbourhood."""


KINDS = 3
"""A crash before a call, a crash after it, standing still before it. Until `make test-all` each call meets one of them."""


def calls_of(part: int, kind: int) -> list[int]:
    """The calls of one part that meet this kind of trouble."""
    calls = range(1, len(calls_without_a_crash(Mode.EXACTLY_ONCE)) + 1)
    chosen = calls if everything() else calls[kind::KINDS]
    return list(chosen[part::PARTS])


def every(step: int, calls: int) -> range:
    """The first of these calls and each `step` calls after it. Until `make test-all` every other one of them."""
    return range(1, calls + 1, step if everything() else 2 * step)


def test_the_workload_reaches_every_kind_of_call() -> None:
    """The crash-free run claims, uploads, completes, commits, sweeps and discards, so that crashes fall on all of these."""
    calls = calls_without_a_crash(Mode.EXACTLY_ONCE)
    kinds = {call.split()[0] for call in calls}
    assert {
        "create",
        "upload",
        "names",
        "delete",
        "begin",
        "pre_commit",
        "commit",
        "find_transactions",
    } <= kinds
    assert sum(call.endswith("/_metadata") and call.startswith("create") for call in calls) >= 3
    assert any(call.startswith("delete state/") for call in calls)
    assert any(call.startswith("upload") and "-merged" in call for call in calls)
    assert f"delete {CheckpointName(CheckpointId(1), RunId(1)).metadata}" in calls


@pytest.mark.parametrize("part", range(PARTS))
def test_crash_before_every_call(part: int) -> None:
    """Whichever call the driver dies before, the next run comes to the same result."""
    for call in calls_of(part, kind=0):
        assert come_back(Mode.EXACTLY_ONCE, Fate(dies_before=call)) == 2


@pytest.mark.parametrize("part", range(PARTS))
def test_crash_after_every_call(part: int) -> None:
    """Whichever call the driver dies after, the next run comes to the same result."""
    for call in calls_of(part, kind=1):
        assert come_back(Mode.EXACTLY_ONCE, Fate(dies_after=call)) == 2


def test_crash_in_the_recovery_too() -> None:
    """A second crash, at any call of the recovery or soon after it, changes nothing either."""
    rng = random.Random(SEED)
    calls = range(1, len(calls_without_a_crash(Mode.EXACTLY_ONCE)) + 1)
    for second in range(1, 31):
        first = rng.choice(calls)
        come_back(Mode.EXACTLY_ONCE, Fate(dies_before=first), Fate(dies_after=second))


@pytest.mark.parametrize("part", range(PARTS))
def test_stand_still_before_every_call(part: int) -> None:
    """A run that stands still, is replaced, and goes on to its end while its successor works, can do no harm.

    The successor dies soon after, so that whatever the zombie destroyed would be missed.
    """
    rng = random.Random(SEED + part)
    for call in calls_of(part, kind=2):
        wakes_at = rng.randint(2, 30)
        zombie = Fate(pauses_before=call, wakes_at=wakes_at)
        come_back(Mode.EXACTLY_ONCE, zombie, Fate(dies_before=wakes_at + rng.randint(1, 10)))


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE])
def test_crash_at_calls_in_the_other_modes(mode: Mode) -> None:
    """At least once loses nothing, at most once counts nothing twice, wherever the driver dies."""
    for call in every(5, len(calls_without_a_crash(mode))):
        come_back(mode, Fate(dies_after=call))


def test_crash_at_calls_with_state_in_memory() -> None:
    """State that lives in the metadata itself comes back as exactly as state in files."""
    calls = calls_without_a_crash(Mode.EXACTLY_ONCE, "memory")
    for call in every(5, len(calls)):
        come_back(Mode.EXACTLY_ONCE, Fate(dies_before=call), backend="memory")


def test_crash_at_calls_with_state_in_rocksdb() -> None:
    """State in RocksDB comes back from its files as exactly as state in sorted files."""
    calls = calls_without_a_crash(Mode.EXACTLY_ONCE, "rocksdb")
    for call in every(13, len(calls)):
        come_back(Mode.EXACTLY_ONCE, Fate(dies_before=call), backend="rocksdb")


def test_crash_at_every_call_while_a_savepoint_is_made_and_adopted() -> None:
    """Before every call, and standing still before some: the next run makes another one, and nothing is lost or doubled."""
    calls = calls_of_a_start_from_a_savepoint()
    adopted = max(
        at for at, call in enumerate(calls) if call.startswith("create") and call.endswith(".restored")
    )
    made = next(at for at, call in enumerate(calls) if call == "create savepoint.json")
    assert 5 < made < adopted < len(calls)
    for call in range(1, adopted + 12, 1 if everything() else 3):
        come_back(Mode.EXACTLY_ONCE, dies_behind_a_commit(), Fate(dies_before=call), savepoints=True)
    for call in every(4, adopted + 11):
        zombie = Fate(pauses_before=call, wakes_at=25)
        come_back(Mode.EXACTLY_ONCE, dies_behind_a_commit(), zombie, savepoints=True)
