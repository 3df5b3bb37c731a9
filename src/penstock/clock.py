"""The only place that reads the time; everything that decides gets it handed in. Driver and executors."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time for decisions (`monotonic`), for people (`wall`), and a way to let it pass (`sleep`)."""

    def monotonic(self) -> float:
        """Seconds that never go back; comparable only inside one process."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let this much time pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
