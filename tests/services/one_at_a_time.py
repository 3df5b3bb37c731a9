"""Test processes that fetch the same thing do so one after another; the second finds what the first brought."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the lock beside a folder of the cache; it is let go when the process ends, however it ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
