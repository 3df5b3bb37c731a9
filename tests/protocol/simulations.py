"""What the simulations of these tests share: where their files are, and one small job that is the same at every run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from penstock.config import Checkpointing, Mode
from penstock.testing.simulation import Fate, Workload, World

RAM_DISK = Path("/dev/shm")
SEED = 89


@contextmanager
def world(workload: Workload, seed: int, fates: tuple[Fate, ...] = ()) -> Iterator[World]:
    """A world in a folder of its own; in memory where that is possible, because syncing tells a simulation nothing."""
    on = RAM_DISK if os.access(RAM_DISK, os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="penstock-simulation-", dir=on))
    here = World(workload, seed, root, fates)
    try:
        yield here
    finally:
        here.close()
        shutil.rmtree(root, ignore_errors=True)


def workload(
    mode: Mode = Mode.EXACTLY_ONCE, backend: str = "filesystem", *, savepoints: bool = False
) -> Workload:
    checkpoint = Checkpointing(interval="1s", mode=mode)
    return Workload(
        checkpoint=checkpoint,
        backend=backend,
        records=9,
        keys=2,
        batch_size=3,
        parallelisms=(2, 2, 1),
        upload_pace=12.0,
        message_pace=12.0,
        savepoints=savepoints,
        reorders=1,  # every run has its sources in another order
    )


@cache
def calls_without_a_crash(mode: Mode, backend: str = "filesystem", seed: int = SEED) -> tuple[str, ...]:
    with world(workload(mode, backend), seed) as undisturbed:
        undisturbed.live()
        return tuple(undisturbed.calls[0])


def come_back(
    mode: Mode, *fates: Fate, backend: str = "filesystem", seed: int = SEED, savepoints: bool = False
) -> int:
    """Run with these fates; returns how many runs it took, without the one that checks that nothing changes."""
    with world(workload(mode, backend, savepoints=savepoints), seed, fates) as crashing:
        try:
            crashing.live()
        except BaseException:
            print(f"fates {fates}", *crashing.log, sep="\n  ")
            raise
        return len(crashing.calls) - 1


def dies_behind_a_commit() -> Fate:
    """The first run dies when all that a checkpoint promised is committed, and there is more to do."""
    calls = calls_without_a_crash(Mode.EXACTLY_ONCE)
    return Fate(
        dies_after=1
        + next(at for at, call in enumerate(calls) if call.endswith("/_committed") and call.startswith("put"))
    )


def calls_of_a_start_from_a_savepoint() -> list[str]:
    with world(workload(savepoints=True), SEED, (dies_behind_a_commit(),)) as undisturbed:
        undisturbed.live()
        return undisturbed.calls[1]
