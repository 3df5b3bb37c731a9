"""Restart strategies: after how long, if at all, a failed job is tried again. Pure; driver.

Every strategy decides from the times of the failures so far, so a decision can be replayed. The defaults are Flink's.
A failure that repeats at the same batch comes from the user's code or data, and another attempt would only repeat it (`would_come_again`).
Failures that may pass, such as a server that does not answer, never count as repeated.
"""

from __future__ import annotations

import builtins
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from typing_extensions import override

from penstock.config import Duration, seconds, whole_number
from penstock.errors import ConfigError, causes_of, refuses_login
from penstock.ids import Randomness
from penstock.wording import duration


class RestartStrategy(ABC):
    """Decides after each failure whether the job restarts, and after which delay."""

    @property
    def counts_attempts(self) -> bool:
        """Whether it ends by a number of attempts, so that it is never cut short; see `would_come_again` for the others."""
        return False

    @property
    def counts_up_to(self) -> int:
        """How many of the newest failures the strategy needs in order to decide; the caller keeps that many."""
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

    @override
    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:
        return None


@dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """A number of restarts in all, with the same pause before each: the failure after the last of them is final."""

    attempts: int
    pause_s: float

    counts_attempts = True

    def __str__(self) -> str:
        return f"fixed_delay(attempts={self.attempts})"

    @property
    @override
    def counts_up_to(self) -> int:
        return self.attempts + 1

    @override
    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:
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
    @override
    def counts_up_to(self) -> int:
        return self.max_failures + 1

    @override
    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:
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
    @override
    def counts_attempts(self) -> bool:
        return self.attempts is not None

    @property
    @override
    def counts_up_to(self) -> int:
        return 1 if self.attempts is None else self.attempts + 1

    @override
    def delay_s(self, failures: Sequence[float], randomness: Randomness) -> float | None:
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

    `attempts`: the largest number of restarts in a row.
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


MOST_IN_A_ROW = 3
MOST_IN_A_ROW_AVAILABLE_NOW = 2
LEAST_TIME_S = 120.0
"""A continuous job keeps restarting at least this long: not every outage can be distinguished from a mistake, and most are over by then."""

_MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Kinds of OSError that point to a wrong name in the configuration."""
_NAMES = frozenset({"OperationalError", "InterfaceError", "KafkaException", "RpcError", "AutoReconnect"})
_ENDS = (
    *("Timeout", "TimeoutError", "TimeoutException", "TimedOut", "Unavailable", "UnavailableError"),
    *("ConnectionError", "ConnectError", "ConnectionFailure", "NetworkError"),
)
"""What clients of servers call it when the server does not answer. DB-API has a name for it; most others follow a habit."""


@dataclass(frozen=True)
class Failure:
    """A failure as far as it can be recognised: its batch, and a cause that reads the same when the same happens again.

    Without a batch or a cause it may pass by itself.
    """

    batch: int | None = None
    cause: str = ""


def times_in_a_row(failures: Sequence[Failure]) -> int:
    """How often the newest failure has come without another in between; 0 for one that may pass."""
    newest = failures[-1]
    if newest.batch is None or not newest.cause:
        return 0
    others = [index for index, failure in enumerate(failures) if failure != newest]
    return len(failures) - 1 - (others[-1] if others else -1)


def would_come_again(failures: Sequence[Failure], times: Sequence[float], *, available_now: bool) -> bool:
    """Whether the newest failure has been repeated so often that another attempt is pointless; sooner with `available_now`.

    `times`: when each failure occurred, in seconds.
    """
    in_a_row = times_in_a_row(failures)
    if available_now:
        return in_a_row >= MOST_IN_A_ROW_AVAILABLE_NOW
    return in_a_row >= MOST_IN_A_ROW and times[-1] - times[-in_a_row] >= LEAST_TIME_S


def may_pass(error: BaseException) -> bool:
    """Whether an exception of user code is about the network or the machine, and not about the code."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and not isinstance(error, _MISTAKES)):
        return True
    return any(
        isinstance(one, ConnectionError | TimeoutError) or _of_a_client(one) for one in causes_of(error)
    )


def may_pass_by_name(name: str) -> bool:
    """The same of an exception of which only the name of its class is known, with or without a module."""
    short = name.rpartition(".")[2]
    kind = getattr(builtins, short, None) if name == short else None
    if isinstance(kind, type):
        return issubclass(kind, MemoryError | OSError) and not issubclass(kind, _MISTAKES)
    return short in _NAMES or short.endswith(_ENDS)


def _of_a_client(error: BaseException) -> bool:
    if refuses_login(error):
        return False  # clients call it an outage; it is a setting
    if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":
        return False  # a mistake in the SQL, for which SQLite has no class of its own
    return any(may_pass_by_name(f"{kind.__module__}.{kind.__name__}") for kind in type(error).__mro__)


def place_of(error: BaseException) -> str:
    """Where an exception was raised. Its text may differ from attempt to attempt: which row is met first is chance."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
        if frames
        else type(error).__name__
    )
