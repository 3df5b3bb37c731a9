"""Refuse places that cannot hold a job's files, by name, before anything is started or written. Driver.

A path that leads through a file never works. A folder that is not mounted works too well: the folders would be made on another
disk, and the job would begin from nothing there.
"""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from penstock.errors import ConfigError
from penstock.storage.mounts import not_mounted, refuse_stale_listings

_FOLDERS_OF_MOUNTS = (PurePosixPath("/mnt"), PurePosixPath("/media"), PurePosixPath("/Volumes"))
"""What lies directly below is a mount by custom: nobody makes it on the way."""

_OBJECT_STORES = {
    "s3": "Amazon S3",
    "s3a": "Amazon S3",
    "s3n": "Amazon S3",
    "gs": "Google Cloud Storage",
    "gcs": "Google Cloud Storage",
    "abfs": "Azure Storage",
    "abfss": "Azure Storage",
    "wasb": "Azure Storage",
    "wasbs": "Azure Storage",
    "az": "Azure Storage",
    "dbfs": "a Databricks file system",
}
_HADOOP = frozenset({"hdfs", "viewfs", "webhdfs", "swebhdfs", "har", "ofs", "o3fs"})
_INSTEAD = (
    "give a path on a local disk, or on a file system that is mounted at the same path on the driver and every executor, such as "
    "'/var/lib/penstock'"
)


def refuse_scheme(uri: str, scheme: str) -> ConfigError:
    """The error for an address that is not a folder of this machine."""
    if scheme in _OBJECT_STORES:
        what = (
            f"is in {_OBJECT_STORES[scheme]}. A job cannot be kept there yet: Penstock has no way to create a file there that only one of "
            "two runs can create, and both would own the job"
        )
    elif scheme in _HADOOP:
        what = "is on a Hadoop file system. A job cannot be kept there: Penstock writes files of the operating system only"
    else:
        what = f"has the scheme {scheme!r}, which Penstock cannot open"
    return ConfigError(f"storage {uri!r} {what}; {_INSTEAD}", storage=uri, scheme=scheme)


def refuse_blocked(path: Path, what: str) -> None:
    """Raise `ConfigError` if a part of an absolute path is a file, or a link that leads nowhere."""
    for part in (path, *path.parents):
        if part.is_dir():
            return
        kind = _in_the_way(part)
        if kind is not None:
            whole = f"is {kind}" if part == path else f"lies below {part}, which is {kind}"
            raise ConfigError(
                f"{what} {path} {whole}: it must be a folder, or a path where one can be made; choose another path",
                path=str(path),
                blocked_by=str(part),
            )


def _in_the_way(part: Path) -> str | None:
    if part.is_symlink() and not part.exists():
        return f"a link to {part.readlink()}, which is not there"
    try:
        found = part.stat()  # once: another start may make the folder, or remove it, between two looks
    except OSError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else "a file"


def refuse_place(path: Path, what: str) -> None:
    """Raise `ConfigError` if a job could not be kept at an absolute path, or would be kept on another disk than is meant."""
    refuse_blocked(path, what)
    refuse_stale_listings(path, what)
    point = not_mounted(path) or _missing_mount(path)
    if point is None:
        return
    raise ConfigError(
        f"{what} {path} lies below {point}, and nothing is mounted there: the job would be kept on another disk, and would begin "
        f"from nothing; mount it, or choose another path"
        + ("" if point.exists() else f"; if {point} is to be a plain folder, make it first"),
        path=str(path),
        mount=str(point),
    )


def _missing_mount(path: Path) -> Path | None:
    """A folder such as `/mnt/data` that does not exist."""
    for part in (path, *path.parents):
        if PurePosixPath(part.parent) in _FOLDERS_OF_MOUNTS and not part.exists():
            return part
    return None
