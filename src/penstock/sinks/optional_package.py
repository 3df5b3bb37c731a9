"""Packages that only one sink needs, imported when that sink is made. Driver and executors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.errors import ConfigError


def optional_package(name: str, *, sink: str, extra: str) -> Any:
    """Import a package, or say what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"sinks.{sink} needs the package {name}, which cannot be imported ({error}): pip install 'penstock[{extra}]'",
            package=name,
        ) from error
