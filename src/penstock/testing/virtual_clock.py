"""A clock that stands still until it is told otherwise. Runs wherever tests run."""

from __future__ import annotations

import threading

EPOCH_S = 1_700_000_000.0


class VirtualClock:
    """A `Clock` whose time passes only by `sleep`, `wait` and `advance`; `slept` remembers every pause that somebody took."""

    def __init__(self, wall_s: float = EPOCH_S) -> None:
        self._passed_s = 0.0
        self._wall_s = wall_s
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._passed_s

    def wall(self) -> float:
        """See `Clock.wall`."""
        return self._wall_s + self._passed_s

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`; returns at once, later."""
        self.slept.append(seconds)
        self.advance(seconds)

    def wait(self, until: threading.Event, seconds: float) -> bool:
        """See `Clock.wait`; nobody sets the event meanwhile."""
        if not until.is_set():
            self.sleep(seconds)
        return until.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time does not go back, not even by {-seconds} s")
        self._passed_s += seconds
