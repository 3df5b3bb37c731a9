"""Whether a program that has ended is started again, and which signals are passed on to it. Pure: events in, decisions out; driver."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock import errors
from penstock.errors import ConfigError
from penstock.ids import SYSTEM_RANDOMNESS, Randomness
from penstock.recovery.restart import (
    RestartStrategy,
    exponential_delay,
    failure_rate,
    fixed_delay,
    no_restart,
)
from penstock.wording import counted, duration

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals with which a person, or a machine that shuts down, asks a job to stop."""
SAME_REQUEST_S = 1.0
"""Two signals within this time are one request: systemd and `timeout` send it to every process, a terminal to the whole group."""
DEAF_S = 30.0
"""How long a program has to end after the second request, which means now. Then it is killed."""
MOST_FAILURES = 1000
"""The number of failure times that are remembered, or more where the strategy counts them: a program may be started again for years."""

_FINAL: Mapping[int, str] = {
    errors.EXIT_DONE: "it ended by itself",
    errors.EXIT_WRONG_SETTING: "a setting or the command is wrong, or the job is running already",
    errors.EXIT_FAILED_FOR_GOOD: "the job has failed for good: another attempt would only meet it again",
    errors.EXIT_FENCED: "another start owns the job now, or its storage was taken away",
}
_ASKED = frozenset(
    {*(-number for number in STOP_SIGNALS), *(errors.EXIT_BY_SIGNAL + number for number in STOP_SIGNALS)}
)


@dataclass(frozen=True)
class End:
    """How a program ended: its status and the failure that it reported."""

    status: int
    """Its exit code; the number of a signal that killed it is negative."""
    reported: int = 0
    """The code of the failure that it reported before; 0 if it reported none."""

    @property
    def how(self) -> str:
        """In words: `exit code 1`, `signal SIGKILL`."""
        return f"exit code {self.status}" if self.status >= 0 else f"signal {_name(-self.status)}"

    @property
    def exit_code(self) -> int:
        """The code with which a supervisor ends after it, as a shell does."""
        return self.status if self.status >= 0 else errors.EXIT_BY_SIGNAL - self.status

    @property
    def kind(self) -> int:
        """The code that decides. A program of the user ends with 1 after any failure, and has reported the code before."""
        return self.reported if self.reported and self.status > 0 else self.status


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@dataclass(frozen=True)
class Decision:
    """What follows from an end."""

    restarts: bool
    why: str
    delay_s: float = 0.0


@dataclass
class Supervision:
    """What has happened so far to a program and its supervisor."""

    strategy: RestartStrategy
    randomness: Randomness = SYSTEM_RANDOMNESS
    asked: int | None = None
    """The last signal that requested a stop."""
    stop_requests: int = 0
    """How often."""
    failures: list[float] = field(default_factory=list)
    _asked_at: float = 0.0
    killed_at: float | None = None
    """When a program that is still there is to be killed, because it ignores requests."""

    def came(self, number: int, at: float) -> bool:
        """A signal has come, to the supervisor or to the program. Returns whether it is a request of its own, which has to be passed on."""
        if self.asked is not None and at - self._asked_at < SAME_REQUEST_S:
            return False
        self.asked, self._asked_at = number, at
        self.stop_requests += 1
        if self.stop_requests > 1 and self.killed_at is None:
            self.killed_at = at + DEAF_S
        return True

    def ended(self, end: End, at: float, *, beside_the_dead: bool = False, again: bool = False) -> Decision:
        """The program has ended. `beside_the_dead`: something of the one before it still lived. `again`: it was not the first attempt.

        What lived may be the job itself, where a script that had started it was killed: the job was running already, and will not be
        soon. A command that was right once, and that does not even come to the job again, may have lost its file for a moment.
        """
        if self.asked is not None:
            return Decision(restarts=False, why=f"it was asked to stop, with {_name(self.asked)}")
        curable = end.kind == errors.EXIT_WRONG_SETTING and (beside_the_dead or (again and not end.reported))
        if end.kind in _FINAL and not curable:
            return Decision(restarts=False, why=_FINAL[end.kind])
        if end.status in _ASKED:
            return Decision(restarts=False, why="a user asked the program itself to end")
        return self._by_strategy(at)

    def _by_strategy(self, at: float) -> Decision:
        remembered = max(MOST_FAILURES, self.strategy.counts_up_to)
        self.failures = [*self.failures, at][-remembered:]
        delay_s = self.strategy.delay_s(self.failures, self.randomness)
        if delay_s is None:
            times = counted(len(self.failures), "failure")
            return Decision(
                restarts=False,
                why=f"after {times} the restart strategy {self.strategy} allows no further start",
            )
        return Decision(restarts=True, why=f"it is started again in {duration(delay_s)}", delay_s=delay_s)


def without(arguments: Sequence[str], flags: Collection[str], valued: Collection[str]) -> list[str]:
    """The arguments without these options, of which `valued` have a value; what follows `--` are none."""
    kept: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one == "--":
            return [*kept, one, *rest]
        name, equals, _ = one.partition("=")
        if name in valued:
            if not equals:
                next(rest, None)
        elif one not in flags:
            kept.append(one)
    return kept


STRATEGIES: dict[str, Callable[..., RestartStrategy]] = {
    "exponential-delay": exponential_delay,
    "fixed-delay": fixed_delay,
    "failure-rate": failure_rate,
    "none": no_restart,
}
BY_DEFAULT = "exponential-delay:initial=100ms,multiplier=2"
"""Flink's, but for a short first pause: a program takes seconds to come up, and that is a pause already."""


def strategy_of(said: str) -> RestartStrategy:
    """The strategy of an option `--restart NAME:SETTING=VALUE,...`; its settings are those of the functions of the same names."""
    name, _, given = said.strip().partition(":")
    make = STRATEGIES.get(name)
    if make is None:
        raise ConfigError(
            f"--restart {said} is unknown: choose one of {', '.join(STRATEGIES)}, with settings after a colon, such as "
            "fixed-delay:attempts=3,delay=10s",
            value=said,
        )
    return make(**dict(_setting(said, make, one) for one in given.split(",") if one))


def _setting(said: str, make: Callable[..., RestartStrategy], text: str) -> tuple[str, object]:
    parameters = inspect.signature(make).parameters
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in parameters or not value:
        allowed = ", ".join(parameters) or "no settings"
        raise ConfigError(
            f"--restart {said} is not allowed: {text!r} is no setting; it has {allowed}, each as SETTING=VALUE",
            value=said,
        )
    return name, _as(str(parameters[name].annotation), said, value)


def _as(annotation: str, said: str, value: str) -> object:
    """Durations stay text, whose form is checked by the strategy."""
    kind = int if annotation.startswith("int") else float if annotation == "float" else str
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigError(f"--restart {said} is not allowed: {value!r} is no number", value=said) from error
