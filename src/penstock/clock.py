"""The only place that reads the time; everything that decides gets it handed in. Driver and executors."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Time for decisions (`monotonic`), for people (`wall`), and ways to let it pass (`sleep`, `wait`)."""

    def monotonic(self) -> float:
        """Seconds that never go back; comparable only inside one process."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let this much time pass."""
        ...

    def wait(self, until: threading.Event, seconds: float) -> bool:
        """Let this much time pass, or less if the event is set before; whether it is set."""
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

    def wait(self, until: threading.Event, seconds: float) -> bool:
        """See `Clock.wait`."""
        return until.wait(seconds)


SYSTEM_CLOCK = SystemClock()


class Stopwatch:
    """How long something has taken since it was made. For measurements that people read; what decides takes a `Clock`."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._started = clock.monotonic()

    @property
    def seconds(self) -> float:
        """Until now."""
        return self._clock.monotonic() - self._started

    @property
    def ms(self) -> float:
        """The same in milliseconds, to the microsecond."""
        return round(self.seconds * 1000, 3)
