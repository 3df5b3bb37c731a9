"""What can be said of a user's function before it is called. Driver."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.errors import ConfigError
from penstock.wording import counted


def name_of(function: Any) -> str:
    """How a function, or an object that has some, is called in a message."""
    name = getattr(function, "__qualname__", None)
    if isinstance(name, str):
        return name
    return repr(function) if callable(function) else type(function).__qualname__


def check_takes(function: Any, number: int, what: str, given: str) -> None:
    """Refuse what cannot be called with so many arguments; `given` says which they are. Of some built-in functions nobody can tell."""
    if not callable(function):
        raise ConfigError(
            f"{what}={function!r} is not a function: give one that takes {given}", function=function
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*(None,) * number)
    except TypeError as error:
        called = f"called with {counted(number, 'argument')}{f' ({given})' if given else ''}"
        raise ConfigError(
            f"{what}={name_of(function)}{signature} cannot be {called}: {error}", function=function
        ) from error
