"""Packages that only one part of Penstock needs, imported when that part is used. Driver and executors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.errors import ConfigError


def optional_package(module: str, *, needed_by: str, extra: str) -> Any:
    """Import a package, or a module of it, or say what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{needed_by} needs the package {package}, which cannot be imported here ({error}); "
            f"run pip install '.[{extra}]' in a checkout of Penstock, on the driver and on every executor",
            package=package,
        ) from error
