"""The only place that reads the time; everything that decides gets it handed in. Driver and executors."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from typing_extensions import override


class Clock(Protocol):
    """Time for decisions (`monotonic`), for people (`wall`), and ways to let it pass (`sleep`, `wait`)."""

    def monotonic(self) -> float:
        """Seconds that never go back; comparable only inside one process."""
        ...

    def wall(self) -> float:
        """The time of day, in seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let this much time pass."""
        ...

    def wait(self, until: threading.Event, seconds: float) -> bool:
        """Let this much time pass, or less if the event is set before; whether it is set."""
        ...


class SystemClock(Clock):
    """Reads the clock of this machine."""

    @override
    def monotonic(self) -> float:
        return time.monotonic()

    @override
    def wall(self) -> float:
        return time.time()

    @override
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @override
    def wait(self, until: threading.Event, seconds: float) -> bool:
        return until.wait(seconds)


SYSTEM_CLOCK = SystemClock()


class Stopwatch:
    """How long something has taken since it was made. For measurements that people read; what decides takes a `Clock`."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._started = clock.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the start, as of now."""
        return self._clock.monotonic() - self._started

    @property
    def ms(self) -> float:
        """The same in milliseconds, to the microsecond."""
        return round(self.seconds * 1000, 3)
