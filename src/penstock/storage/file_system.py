"""What a POSIX file system is asked for beyond reading and writing: that it lasts, links, names for what is not whole yet.

Driver and executors.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from penstock.errors import ConfigError
from penstock.ids import SYSTEM_RANDOMNESS

_NO_HARD_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES}
)


def sync_file(path: Path) -> None:
    """Return when the content of a closed file survives a power cut; fails if it was deleted meanwhile."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder survive a power cut."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> bool:
    """Make `target` the same file as `source`, or a copy of it where the file system allows no link; whether it is a link."""
    try:
        os.link(source, target)
    except OSError as error:
        # ENOENT also means that the name was given to another file in this very moment; a copy of a missing one says so itself
        if error.errno not in _NO_HARD_LINK and error.errno != errno.ENOENT:
            raise
        shutil.copyfile(source, target)
        return False
    return True


def beside(path: Path) -> Path:
    """A name in the same folder that nobody else has, for a file that is not whole yet."""
    return path.with_name(f"{path.name}.{SYSTEM_RANDOMNESS.token()}.tmp")


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
