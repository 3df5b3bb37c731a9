"""Refuses places that cannot hold a job's files, before anything is started or written. Driver.

A path that leads through a file never works. If a folder is not mounted, its files would be created on another disk, and the job
would start without its state.

Some file systems break fencing. The owner of a job is read from a folder: a run lists it after another run has claimed the job,
and must see the claim. NFS lists folders from a cache by default, up to a minute old; mounted with `noac` or `actimeo=0` it
asks the server each time. Mounts of object stores have neither current listings nor a create with one winner.

Addresses of stores are checked here, too: what may be in one, and above all what may not.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from penstock.errors import ConfigError

MOUNTS = Path("/proc/self/mountinfo")
"""Linux only. Other systems have no such file, and nothing is refused there."""

PLANNED_MOUNTS = Path("/etc/fstab")
"""The file systems that should be mounted on this machine."""

_NFS = frozenset({"nfs", "nfs4"})
_CACHED = frozenset({"autofs", "fuse.sshfs"})
_FRESH = frozenset({"noac", "actimeo=0", "acdirmax=0"})
_OBJECT_STORE_MOUNTS = frozenset(
    {"s3fs", "gcsfuse", "goofys", "mountpoint-s3", "rclone", "blobfuse", "blobfuse2"}
)
_KERNEL = frozenset(
    {
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "devpts",
        "debugfs",
        "tracefs",
        "securityfs",
        "configfs",
        "pstore",
        "bpf",
        "mqueue",
        "nsfs",
    }
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of the mount table."""

    point: Path
    kind: str
    source: str
    options: frozenset[str]


def refuse_stale_listings(path: Path, what: str) -> None:
    """Raise `ConfigError` if `path`, which need not exist yet, is on a file system with outdated listings."""
    real = _reached(path)
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return
    mount = mount_of(real, table)
    problem = None if mount is None else why_unsafe(mount)
    if mount is not None and problem is not None:
        raise ConfigError(
            f"{what} {path} is on {mount.kind}, mounted at {mount.point}: {problem}",
            path=str(path),
            kind=mount.kind,
        )


def _reached(path: Path) -> Path:
    """Resolve a path. Accessing it first makes the system mount file systems that are mounted on demand."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if folder.exists():
            break
    return real


def mount_of(path: Path, table: str) -> Mount | None:
    """Return the mount that holds an absolute path: the innermost one, and the last of several at one point."""
    mounts = [mount for line in table.splitlines() if (mount := _parse(line)) is not None]
    holding = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)


def why_unsafe(mount: Mount) -> str | None:
    """Return what could go wrong on this mount and what to do; None if nothing is known."""
    if mount.kind in _NFS and not mount.options & _FRESH:
        return (
            "its folders are listed from a cache that may be a minute old, so a run that was replaced would not notice it and would "
            "commit; mount it with the option noac or actimeo=0"
        )
    if mount.kind in _KERNEL:
        return "it is a virtual file system of the kernel, which stores no files; use a folder on a disk"
    if mount.kind in _CACHED:
        return "its listings may be outdated, or nothing is mounted there yet; use a local or shared POSIX file system"
    if (
        mount.kind.startswith("fuse")
        and {mount.kind.removeprefix("fuse."), mount.source} & _OBJECT_STORE_MOUNTS
    ):
        return "two runs could create the same file there, and both would own the job; use a local or shared POSIX file system"
    return None


def not_mounted(path: Path) -> Path | None:
    """Return the planned mount point at or above an absolute path if nothing is mounted there; None otherwise."""
    try:
        planned = _planned(PLANNED_MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    real = _reached(path)
    there = {mount.point for line in table.splitlines() if (mount := _parse(line)) is not None}
    missing = [point for point in planned if real.is_relative_to(point) and point not in there]
    return max(missing, key=lambda point: len(point.parts), default=None)


def _planned(table: str) -> set[Path]:
    """Return the mount points in a file like `/etc/fstab`, see fstab(5), except the root."""
    rows = (line.split() for line in table.splitlines() if not line.lstrip().startswith("#"))
    points = {Path(_unescaped(row[1])) for row in rows if len(row) > 1 and row[1].startswith("/")}
    return points - {Path("/")}


def _parse(line: str) -> Mount | None:
    """See proc_pid_mountinfo(5): fields, a dash, then the kind, the source and the options of the file system."""
    fields, dash, rest = line.partition(" - ")
    before, after = fields.split(" "), rest.split(" ")
    if not dash or len(before) < 6 or len(after) < 3:  # noqa: PLR2004 - the fields that the kernel writes
        return None
    return Mount(
        Path(_unescaped(before[4])), after[0], after[1], frozenset(f"{before[5]},{after[2]}".split(","))
    )


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


_FOLDERS_OF_MOUNTS = (PurePosixPath("/mnt"), PurePosixPath("/media"), PurePosixPath("/Volumes"))
"""Folders directly below these are mount points by convention; Penstock does not create them."""

_ELSEWHERE = {
    "s3a": ("Amazon S3", "s3://bucket/path"),
    "s3n": ("Amazon S3", "s3://bucket/path"),
    "gcs": ("Google Cloud Storage", "gs://bucket/path"),
    "abfs": ("Azure Storage", "az://container/path"),
    "abfss": ("Azure Storage", "az://container/path"),
    "wasb": ("Azure Storage", "az://container/path"),
    "wasbs": ("Azure Storage", "az://container/path"),
    "viewfs": ("a Hadoop file system", "hdfs://namenode:8020/path"),
    "webhdfs": ("a Hadoop file system", "hdfs://namenode:8020/path"),
    "swebhdfs": ("a Hadoop file system", "hdfs://namenode:8020/path"),
}
_INSTEAD = (
    "give a path on a local disk, or on a file system that is mounted at the same path on the driver and every executor, such as "
    "'/var/lib/penstock', or an address with s3://, gs://, az:// or hdfs://"
)


def refuse_scheme(uri: str, scheme: str) -> ConfigError:
    """The error for an address that is neither a path of this machine nor in a store that Penstock opens."""
    what, instead = _ELSEWHERE.get(scheme, ("", ""))
    if what:
        text = f"names {what} in a way that Penstock does not read; write {instead}"
    else:
        text = f"has the scheme {scheme!r}, which Penstock cannot open; {_INSTEAD}"
    return ConfigError(f"storage {uri!r} {text}", storage=uri, scheme=scheme)


def refuse_blocked(path: Path, what: str) -> None:
    """Raise `ConfigError` if a part of an absolute path is a file or a broken link."""
    for part in (path, *path.parents):
        if part.is_dir():
            return
        kind = _in_the_way(part)
        if kind is not None:
            whole = f"is {kind}" if part == path else f"lies below {part}, which is {kind}"
            raise ConfigError(
                f"{what} {path} {whole}: it must be a folder, or a path where one can be created; choose another path",
                path=str(path),
                blocked_by=str(part),
            )


def _in_the_way(part: Path) -> str | None:
    if part.is_symlink() and not part.exists():
        return f"a link to {part.readlink()}, which does not exist"
    try:
        found = part.stat()  # once: another start may create or remove the folder between two calls
    except OSError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else "a file"


def refuse_place(path: Path, what: str) -> None:
    """Raise `ConfigError` if a job could not be kept at an absolute path, or would be kept on the wrong disk."""
    refuse_blocked(path, what)
    refuse_stale_listings(path, what)
    point = not_mounted(path) or _missing_mount(path)
    if point is None:
        return
    raise ConfigError(
        f"{what} {path} lies below {point}, but nothing is mounted there: the job would be kept on another disk and would start "
        "without its state; mount it, or choose another path"
        + ("" if point.exists() else f"; if {point} should be a plain folder, create it first"),
        path=str(path),
        mount=str(point),
    )


def _missing_mount(path: Path) -> Path | None:
    """Return a missing folder such as `/mnt/data` at or above a path."""
    for part in (path, *path.parents):
        if PurePosixPath(part.parent) in _FOLDERS_OF_MOUNTS and not part.exists():
            return part
    return None


# ── addresses of stores ────────────────────────────────────────────────────────────────────────

_AUTHORITY = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "gs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "az": re.compile(r"[$A-Za-z0-9][A-Za-z0-9-]*"),
    "hdfs": re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*(?::\d+)?)?"),
}
"""What comes after the two slashes: a bucket, a container, or a name node. The one of HDFS may be missing: then `fs.defaultFS` is meant."""

REMOTE_SCHEMES = frozenset(_AUTHORITY)
_FORMS = {
    "s3": "s3://bucket/path",
    "gs": "gs://bucket/path",
    "az": "az://container/path",
    "hdfs": "hdfs://namenode:8020/path",
}
_FORBIDDEN = re.compile(r"[?#\\\x00-\x1f\x7f]")


@dataclass(frozen=True)
class RemotePlace:
    """A folder in a store. What a person wrote is taken as it is: nothing is escaped or unescaped."""

    scheme: str
    bucket: str
    folder: str
    """Without slashes at its ends; '' for the whole bucket."""

    @property
    def uri(self) -> str:
        """The address, as a person would write it."""
        return f"{self.scheme}://{self.bucket}{f'/{self.folder}' if self.folder else ''}"

    def key(self, name: str) -> str:
        """The full name of a file."""
        return f"{self.folder}/{name}" if self.folder else name


def place_of(uri: str) -> RemotePlace:
    """Read an address; raises `ConfigError` for one that names no place, or has more in it."""
    scheme, _, rest = uri.partition("://")
    bucket, _, folder = rest.partition("/")
    refuse_userinfo(uri)
    folder = folder.rstrip("/")
    if _FORBIDDEN.search(rest) or any(part in ("", ".", "..") for part in folder.split("/") if folder):
        problem = "it must be a plain path, without '?', '#', '..' and empty parts; settings come from the environment"
    elif not _AUTHORITY[scheme].fullmatch(bucket) or (scheme == "hdfs" and not folder):
        problem = "that names no place"
    else:
        return RemotePlace(scheme, bucket, folder)
    raise ConfigError(f"storage {uri!r}: {problem}; write {_FORMS[scheme]}", storage=uri)


def refuse_userinfo(uri: str) -> None:
    """Refuse an address with a user or a password in it, without repeating it: addresses are shown, logged and stored."""
    scheme, slashes, rest = uri.partition("://")
    userinfo, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    if slashes and at and (":" in userinfo or scheme in REMOTE_SCHEMES):
        raise ConfigError(
            f"the storage address {scheme}://... has a user name or a key before its '@', and addresses are shown and stored: leave it "
            "out; credentials come from the environment or the platform",
            scheme=scheme,
        )
