"""From what a user writes as `storage=` to a `Storage`. Driver."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.storage.base import Storage
from penstock.storage.local import LocalStorage
from penstock.storage.places import refuse_blocked, refuse_scheme

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def open_job_storage(storage: str | Path, job: str) -> Storage:
    """Return the folder of a job below what the user gave as `storage=`."""
    if isinstance(storage, Path):
        return open_storage(storage / job)
    _check_given(storage)
    return open_storage(f"{storage.rstrip('/')}/{job}")


def open_storage(uri: str | Path) -> Storage:
    """Return the storage at a path or a `file:` URI; refuses by name what is no folder, and makes nothing yet."""
    opened = _opened(uri)
    refuse_blocked(opened.root, "storage")
    return opened


def _opened(uri: str | Path) -> LocalStorage:
    if isinstance(uri, Path):
        return LocalStorage(uri)
    _check_given(uri)
    if not _SCHEME.match(uri):
        return LocalStorage(uri)
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise refuse_scheme(uri, parts.scheme)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(
            f"storage {uri!r} names the host {parts.netloc!r}; write file:///path with three slashes",
            storage=uri,
        )
    return LocalStorage(unquote(parts.path))


def _check_given(uri: object) -> None:
    if not isinstance(uri, str) or not uri.strip():
        raise ConfigError(f"storage is {uri!r}: give a path such as '/var/lib/penstock'", storage=uri)
