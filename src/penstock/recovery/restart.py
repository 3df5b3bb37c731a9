"""Restart strategies: after how long, if at all, a failed job is tried again. Pure; driver.

Every strategy decides from the times of the failures so far, so a decision can be replayed. The defaults are Flink's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.config import Duration, seconds, whole_number
from penstock.errors import ConfigError
from penstock.randomness import Randomness
from penstock.wording import duration


class RestartStrategy(ABC):
    """Decides after each failure."""

    @property
    def counts_attempts(self) -> bool:
        """Whether it ends by a number of attempts, so that it is never cut short; see `recovery.repeated` for the others."""
        return False

    @property
    def counts_up_to(self) -> int:
        """So many of the newest failures it must be told of, to see that there are too many; whoever remembers them keeps that many."""
        return 1

    @abstractmethod
    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:
        """Seconds to wait before the next attempt, or None to give up.

        `failures` are the times (s) of the failures so far, the newest last: all of them, or at least `counts_up_to`; never empty.
        """


@dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """The first failure is final."""

    def __str__(self) -> str:
        return "no_restart()"

    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:  # noqa: ARG002
        """See `RestartStrategy.delay_s`."""
        return None


@dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """A number of restarts in all, with the same pause before each: the failure after the last of them is final."""

    attempts: int
    pause_s: float

    def __str__(self) -> str:
        return f"fixed_delay(attempts={self.attempts})"

    @property
    def counts_attempts(self) -> bool:
        """See `RestartStrategy.counts_attempts`."""
        return True

    @property
    def counts_up_to(self) -> int:
        """See `RestartStrategy.counts_up_to`."""
        return self.attempts + 1

    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:  # noqa: ARG002
        """See `RestartStrategy.delay_s`."""
        return self.pause_s if len(failures) <= self.attempts else None


@dataclass(frozen=True)
class FailureRate(RestartStrategy):
    """Give up when more than `max_failures` fall into one interval."""

    max_failures: int
    interval_s: float
    pause_s: float

    def __str__(self) -> str:
        return f"failure_rate(max_failures={self.max_failures}, interval={duration(self.interval_s)})"

    @property
    def counts_up_to(self) -> int:
        """See `RestartStrategy.counts_up_to`."""
        return self.max_failures + 1

    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:  # noqa: ARG002
        """See `RestartStrategy.delay_s`."""
        recent = [at for at in failures if at > failures[-1] - self.interval_s]
        return self.pause_s if len(recent) <= self.max_failures else None


@dataclass(frozen=True)
class ExponentialDelay(RestartStrategy):
    """A pause that grows with every failure and starts over after a quiet time; by default without a limit on attempts."""

    initial_s: float
    maximum_s: float
    multiplier: float
    jitter: float
    reset_after_s: float
    attempts: int | None = None

    def __str__(self) -> str:
        return (
            "exponential_delay()" if self.attempts is None else f"exponential_delay(attempts={self.attempts})"
        )

    @property
    def counts_attempts(self) -> bool:
        """See `RestartStrategy.counts_attempts`."""
        return self.attempts is not None

    @property
    def counts_up_to(self) -> int:
        """See `RestartStrategy.counts_up_to`."""
        return 1 if self.attempts is None else self.attempts + 1

    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:
        """See `RestartStrategy.delay_s`."""
        streak, pause = self._streak(failures)
        if self.attempts is not None and streak > self.attempts:
            return None
        return pause * (1 + randomness.between(-self.jitter, self.jitter))

    def _streak(self, failures: Sequence[float]) -> tuple[int, float]:
        """How many failures came in a row, and the pause after the last of them."""
        streak, pause = 1, self.initial_s
        for earlier, later in pairwise(failures):
            if later - earlier - pause >= self.reset_after_s:
                streak, pause = 1, self.initial_s
            else:
                streak, pause = streak + 1, min(pause * self.multiplier, self.maximum_s)
        return streak, pause


def no_restart() -> RestartStrategy:
    """Fail for good at the first failure."""
    return NoRestart()


def fixed_delay(*, attempts: int = 1, delay: Duration = "1s") -> RestartStrategy:
    """Restart up to `attempts` times in the life of a start, each time after `delay`. With 1 the second failure is final, as in Flink."""
    return FixedDelay(whole_number("restart.attempts", attempts, minimum=1), seconds("restart.delay", delay))


def failure_rate(
    *, max_failures: int = 1, interval: Duration = "1min", delay: Duration = "1s"
) -> RestartStrategy:
    """Try again after `delay` unless there were more than `max_failures` within `interval`."""
    return FailureRate(
        whole_number("restart.max_failures", max_failures, minimum=1),
        seconds("restart.interval", interval, exclusive=True),
        seconds("restart.delay", delay),
    )


def exponential_delay(
    *,
    initial: Duration = "1s",
    maximum: Duration = "1min",
    multiplier: float = 1.5,
    jitter: float = 0.1,
    reset_after: Duration = "1h",
    attempts: int | None = None,
) -> RestartStrategy:
    """Try again after `initial`, then `multiplier` times as long, up to `maximum`; start over after `reset_after` without a failure.

    `attempts`: restart at most so many times in a row.
    """
    if multiplier < 1:
        raise ConfigError(f"restart.multiplier={multiplier!r} is not allowed: it must be at least 1")
    if not 0 <= jitter < 1:
        raise ConfigError(f"restart.jitter={jitter!r} is not allowed: it must be from 0 to less than 1")
    initial_s = seconds("restart.initial", initial)
    if attempts is not None:
        whole_number("restart.attempts", attempts, minimum=1)
    return ExponentialDelay(
        initial_s=initial_s,
        maximum_s=seconds("restart.maximum", maximum, minimum_s=initial_s),
        multiplier=multiplier,
        jitter=jitter,
        reset_after_s=seconds("restart.reset_after", reset_after),
        attempts=attempts,
    )
