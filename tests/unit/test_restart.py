"""Restart strategies decide from the times of failures alone."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from penstock.errors import ConfigError
from penstock.ids import Randomness
from penstock.recovery.restart import (
    ExponentialDelay,
    RestartStrategy,
    exponential_delay,
    failure_rate,
    fixed_delay,
    no_restart,
)

RNG = Randomness(random.Random(1))


def delays(strategy: RestartStrategy, failures: list[float]) -> list[float | None]:
    """The decision after each of these failures."""
    return [strategy.delay_s(failures[: index + 1], RNG) for index in range(len(failures))]


def test_no_restart() -> None:
    """The first failure is final."""
    assert delays(no_restart(), [5.0]) == [None]


def test_fixed_delay() -> None:
    """A number of restarts in all, however far apart, each after the same pause; the failure after the last one is final."""
    assert delays(fixed_delay(attempts=2, delay="3s"), [0, 1e6, 2e6]) == [3.0, 3.0, None]


def test_fixed_delay_by_default() -> None:
    """One restart after a second, as Flink has it."""
    assert delays(fixed_delay(), [0, 1]) == [1.0, None]


def test_failure_rate() -> None:
    """It gives up when more failures than allowed fall into one interval, and only then."""
    strategy = failure_rate(max_failures=2, interval="10s", delay="1s")
    assert delays(strategy, [0, 9, 18, 27]) == [1.0, 1.0, 1.0, 1.0]
    assert delays(strategy, [0, 4, 8]) == [1.0, 1.0, None]


def test_exponential_delay_grows_to_its_maximum() -> None:
    """Each failure in a row makes the pause longer, up to the maximum, without a limit on attempts."""
    strategy = exponential_delay(initial="1s", maximum="5s", multiplier=2, jitter=0)
    assert delays(strategy, [float(at) for at in range(6)]) == [1, 2, 4, 5, 5, 5]


def test_exponential_delay_starts_over_after_a_quiet_time() -> None:
    """The quiet time is how long the job ran, without the pause before it."""
    strategy = exponential_delay(initial="1s", maximum="60s", multiplier=2, jitter=0, reset_after="10s")
    assert delays(strategy, [0.0, 10.9]) == [1, 2]
    assert delays(strategy, [0.0, 11.0]) == [1, 1]
    assert delays(strategy, [0.0, 1.0, 12.9, 13.0 + 14.0]) == [1, 2, 4, 1]


def test_exponential_delay_with_a_limit() -> None:
    """With a limit it gives up after so many failures in a row; a quiet time gives the attempts back."""
    strategy = exponential_delay(jitter=0, attempts=2, reset_after="1h")
    assert delays(strategy, [0, 1, 2])[-1] is None
    assert delays(strategy, [0, 1, 10_000])[-1] == 1.0


def test_jitter_stays_within_its_part() -> None:
    """The pause differs from run to run by the given part, so that jobs that failed together do not come back together."""
    strategy = exponential_delay(initial="10s", jitter=0.1)
    rng = Randomness(random.Random(7))
    found = [strategy.delay_s([0.0], rng) for _ in range(200)]
    assert all(9.0 <= one <= 11.0 for one in found if one is not None)
    assert len(set(found)) > 100


def test_a_decision_can_be_replayed() -> None:
    """The same failures and the same seed give the same pauses."""
    strategy = exponential_delay()
    failures = list(accumulate([1.0] * 9))
    first, second = (
        [strategy.delay_s(failures[:n], Randomness(random.Random(n))) for n in range(1, 9)] for _ in range(2)
    )
    assert first == second


def test_defaults_are_those_of_flink() -> None:
    """1 s to 1 min, times 1.5, jitter 0.1, over again after an hour, no limit."""
    assert exponential_delay() == ExponentialDelay(1.0, 60.0, 1.5, 0.1, 3600.0, None)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: fixed_delay(attempts=0), "restart.attempts=0"),
        (lambda: fixed_delay(delay="never"), "restart.delay='never'"),
        (lambda: failure_rate(max_failures=0), "restart.max_failures=0"),
        (lambda: failure_rate(interval="0s"), "restart.interval='0s'"),
        (lambda: exponential_delay(multiplier=0.9), "restart.multiplier=0.9"),
        (lambda: exponential_delay(jitter=1.0), "restart.jitter=1.0"),
        (lambda: exponential_delay(initial="2s", maximum="1s"), "restart.maximum='1s'"),
        (lambda: exponential_delay(attempts=0), "restart.attempts=0"),
    ],
)
def test_refused_settings(make, setting: str) -> None:
    """What cannot work is refused by name."""
    with pytest.raises(ConfigError, match=setting):
        make()


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (no_restart(), "no_restart()"),
        (fixed_delay(attempts=2), "fixed_delay(attempts=2)"),
        (failure_rate(max_failures=3, interval="5min"), "failure_rate(max_failures=3, interval=5 min)"),
        (exponential_delay(attempts=4), "exponential_delay(attempts=4)"),
    ],
)
def test_a_strategy_is_named_as_it_is_written(strategy: RestartStrategy, said: str) -> None:
    """The message of a job that failed for good names the strategy, and what it allows, in the words of the settings."""
    assert str(strategy) == said
