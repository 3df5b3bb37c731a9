"""What the user gives as a plain function: checked before anything starts, and shown by name only. Driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import ConfigError


def checked_function(
    setting: str, function: Callable[..., Any], arguments: Sequence[str]
) -> Callable[..., Any]:
    """Refuse what cannot be called with these arguments, and what would not be done when the call returns."""
    wanted = f"{setting} takes a function of ({', '.join(arguments)})"
    if not callable(function):
        raise ConfigError(f"{wanted}, not {type(function).__name__}", setting=setting)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{wanted} that is done when it returns, but {shown_function(function)} is async or a generator; wrap it in a "
            "plain function that waits for it",
            setting=setting,
        )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{wanted}, but {shown_function(function)} cannot be called so: {error}", setting=setting
        ) from error
    except ValueError:  # a function in C without a signature: the first call will tell
        return function
    return function


def shown_function(function: Callable[..., Any]) -> str:
    """Name a function without its arguments: a partial or an object may hold a password."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
