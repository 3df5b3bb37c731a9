"""Names of a package that are imported when they are first asked for. Both.

Every Python worker imports the package of what it runs, and a job starts only when they have done so: what a task does not use, it should
not have to import.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from penstock.errors import ConfigError

_ONE_AT_A_TIME = threading.RLock()
"""Modules that import each other in a circle, as PySpark's do, are met half done by a thread that comes from the other side."""


class LateNames:
    """For a package that says `__getattr__, __dir__ = names.get, names.all`; `modules` has the names that each module defines.

    Modules are named below the package, or below another one (`below`). A module without names is itself what is asked for.
    """

    def __init__(
        self, package: str, modules: Mapping[str, Sequence[str]], *, below: str | None = None
    ) -> None:
        self._package = package
        self._below = package if below is None else below
        self._found_in = {name: module for module, names in modules.items() for name in names or (module,)}

    def get(self, name: str) -> object:
        """Import it. From then on it is an attribute as any other."""
        if name not in self._found_in:
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
        with _ONE_AT_A_TIME:
            module = import_module(f"{self._below}.{self._found_in[name]}")
        found: object = module if self._found_in[name] == name else getattr(module, name)
        setattr(sys.modules[self._package], name, found)
        return found

    def all(self) -> list[str]:
        """What can be asked for, imported already or not."""
        return sorted({*vars(sys.modules[self._package]), *self._found_in})


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
