"""Functions for a POSIX file system: sync, hard links, and names of temporary files. Driver and executors."""

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
    """Sync the content of a closed file, so that it survives a power failure; fails if the file was deleted."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, so that they survive a power failure."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> bool:
    """Link `target` to `source`, or copy it if the file system does not allow a link; returns whether it is a link."""
    try:
        os.link(source, target)
    except OSError as error:
        # ENOENT may also mean that the name was just given to another file; copying a missing file raises it again
        if error.errno not in _NO_HARD_LINK and error.errno != errno.ENOENT:
            raise
        shutil.copyfile(source, target)
        return False
    return True


def beside(path: Path) -> Path:
    """Return a unique name in the same folder, for a file that is not complete yet."""
    return path.with_name(f"{path.name}.{SYSTEM_RANDOMNESS.token()}.tmp")


_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}")


def checked_file_name(name: str) -> str:
    """Return `name` if it stays below the root and is not the name of a temporary file."""
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


def temporary_name(token: str = "") -> str:
    """Return a new name that `Storage.names` does not list. `token`: what to draw it from, of 32 hexadecimal digits."""
    return f".tmp-{token or SYSTEM_RANDOMNESS.token()}"


def is_temporary(name: str) -> bool:
    """Return whether the last part of `name` is that of a temporary file."""
    return _TEMPORARY.fullmatch(name.rpartition("/")[2]) is not None


def no_local_file(name: str, local: Path) -> FileNotFoundError:
    """The error for a local file that is to be uploaded and is not there."""
    return FileNotFoundError(errno.ENOENT, f"cannot upload {name!r}: no such local file", str(local))
