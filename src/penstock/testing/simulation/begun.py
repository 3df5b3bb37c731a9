"""Which batches were ever begun, and where they end: what Spark's progress log is to the real job."""

from __future__ import annotations

import msgspec

from penstock.errors import UnavailableError
from penstock.storage import Storage
from penstock.testing.simulation.source import Positions

FOLDER = "spark/offsets"


def begin(storage: Storage, batch: int, until: Positions) -> None:
    """Record where a batch ends; refused when another run has begun it."""
    if not storage.create(f"{FOLDER}/{batch}", msgspec.json.encode(until)):
        raise UnavailableError(f"batch {batch} was begun by another run")


def last_begun(storage: Storage) -> tuple[int, Positions | None]:
    """The last batch that was begun, -1 if there is none, and where it ends."""
    numbers = [int(name.rpartition("/")[2]) for name in storage.names(FOLDER)]
    if not numbers:
        return -1, None
    return max(numbers), msgspec.json.decode(storage.get(f"{FOLDER}/{max(numbers)}"), type=Positions)
