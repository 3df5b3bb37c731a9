"""Restart strategies as words of the command line: `fixed-delay:attempts=3,delay=10s`. Pure; driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from penstock.errors import ConfigError
from penstock.recovery.restart import (
    RestartStrategy,
    exponential_delay,
    failure_rate,
    fixed_delay,
    no_restart,
)

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
            f"--restart {said} is unknown: choose one of {', '.join(STRATEGIES)}, with settings behind a colon, such as "
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
