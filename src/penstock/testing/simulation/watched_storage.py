"""Storage as a simulated process sees it: every call is counted, may be its last, and may fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import UnavailableError
from penstock.storage import Storage
from penstock.storage.forwarding import Operation
from penstock.testing.faulty_storage import FaultyStorage
from penstock.testing.simulation.lifeline import Lifeline

T = TypeVar("T")


class WatchedStorage(FaultyStorage):
    """Fails with probability `flakiness`, half of the time after the work was done."""

    def __init__(
        self, inner: Storage, lifeline: Lifeline, rng: random.Random, *, flakiness: float = 0.0
    ) -> None:
        super().__init__(inner)
        self._lifeline = lifeline
        self._rng = rng
        self._flakiness = flakiness

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        self._lifeline.enter(f"{operation} {name}")
        # nothing is drawn where nothing can fail: one call more then leaves the rest of a seed as it was
        fails = self._flakiness > 0 and self._rng.random() < self._flakiness
        if fails and self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            raise UnavailableError(f"simulated: {operation} {name!r} failed, nothing was done")
        result = super()._perform(operation, name, work)
        self._lifeline.leave()
        if fails:
            raise UnavailableError(f"simulated: {operation} {name!r} was performed, the answer is lost")
        return result
