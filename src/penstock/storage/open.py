"""Opens a storage by its address: a path, `file:`, `s3://`, `gs://`, `az://` or `hdfs://`. Both."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.lazy_imports import optional_package
from penstock.storage.base import Storage
from penstock.storage.hdfs import HdfsStorage
from penstock.storage.local import LocalStorage
from penstock.storage.object import ObjectStorage
from penstock.storage.place_checks import REMOTE_SCHEMES, refuse_blocked, refuse_scheme, refuse_userinfo

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def open_job_storage(storage: str | Path, job: str) -> Storage:
    """Return the folder of a job below what the user gave as `storage=`."""
    if isinstance(storage, Path):
        return open_storage(storage / job)
    _check_given(storage)
    return open_storage(f"{storage.rstrip('/')}/{job}")


def open_storage(uri: str | Path) -> Storage:
    """Return the storage at a path or URI. Refuses a path that is not a folder; creates nothing, and asks no server."""
    if isinstance(uri, Path):
        return _checked(LocalStorage(uri))
    _check_given(uri)
    if not _SCHEME.match(uri):
        return _checked(LocalStorage(uri))
    refuse_userinfo(uri)
    scheme = uri.partition(":")[0]
    if scheme in REMOTE_SCHEMES and uri.startswith(f"{scheme}://"):
        return _remote(uri, scheme)
    return _checked(_at_file_uri(uri))


def _checked(storage: LocalStorage) -> LocalStorage:
    refuse_blocked(storage.root, "storage")
    return storage


def _remote(uri: str, scheme: str) -> Storage:
    """Nothing is connected yet, but a package that is missing is reported now."""
    opened = HdfsStorage(uri) if scheme == "hdfs" else ObjectStorage(uri)
    optional_package(opened.PACKAGE, needed_by=f"storage at {scheme}://", extra=opened.EXTRA)
    return opened


def _at_file_uri(uri: str) -> LocalStorage:
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
