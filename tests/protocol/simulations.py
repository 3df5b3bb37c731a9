"""Where the simulations of these tests keep their files, and how a failing one is replayed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.testing.simulation import Fate, Workload, World

RAM_DISK = Path("/dev/shm")


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
