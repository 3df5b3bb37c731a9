"""What a file in storage may be called, and which names belong to writes under way. Driver and executors."""

from __future__ import annotations

import re

from penstock.errors import ConfigError
from penstock.randomness import SYSTEM_RANDOMNESS

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}")


def checked_file_name(name: str) -> str:
    """Return `name` if it stays below the root and cannot be taken for a write under way."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} or "\0" in part or is_temporary(part) for part in parts):
        raise ConfigError(
            f"storage name {name!r} is not allowed: use a relative name such as 'chk-7/_metadata', "
            "without '..', '.', empty parts or a part that ends like a temporary file",
            name=name,
        )
    return name


def checked_prefix(prefix: str) -> str:
    """Return the folder `prefix` without a trailing '/'; the empty prefix is the root."""
    folder = prefix.removesuffix("/")
    return checked_file_name(folder) if folder else ""


def temporary_name() -> str:
    """Return a new name that `Storage.names` does not list."""
    return f".tmp-{SYSTEM_RANDOMNESS.token()}"


def is_temporary(name: str) -> bool:
    """Say whether the last part of `name` is that of a write under way, or of one that died."""
    return _TEMPORARY.fullmatch(name.rpartition("/")[2]) is not None
