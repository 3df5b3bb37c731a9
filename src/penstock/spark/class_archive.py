"""Spark's classes as Java maps them from one file (class data sharing): a Spark on this machine comes up sooner with it. Driver.

The file is made once for a Java and a Spark, and kept in the user's cache: about 200 MB. A job that is kept alive has it made, by a process
of the lowest priority, when it has run for a while; sessions of `local_session` use it from then on. Java itself checks that it fits its
own version and Spark's jars, and starts without it where it does not. `PENSTOCK_CLASS_ARCHIVE=off` leaves all this.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from penstock.spark.java import JavaHome, cache_dir

_log = logging.getLogger(__name__)

SWITCH = "PENSTOCK_CLASS_ARCHIVE"
QUIET_S = 60.0
"""A job that has processed for so long has come up, and most of what it had to catch up with is done."""
DRIVER_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Spark's launcher gives Java what this variable has."""
_ONLY_OURS = stat.S_IRWXU
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
SILENT = "-Xlog:disable -Xlog:all=error:stderr"  # an archive that does not fit is not used; that is no news


class _Missing:
    """The archive that a session of this process would have used."""

    path: Path | None = None


def archive_options(java: JavaHome, given: str) -> str:
    """What Java is told to use the archive, where there is one; nothing where the user has a say in it."""
    told = f"{given} {os.environ.get(DRIVER_OPTIONS, '')}"
    if os.environ.get(SWITCH) == "off" or "SharedArchive" in told or "ArchiveClasses" in told:
        return ""
    try:
        archive = _archive(java)
        is_there = is_own(archive)
    except OSError as error:  # it is for quicker starts, and in no start's way
        _log.debug("no archive of Spark's classes is used: %s", error)
        return ""
    if any(map(str.isspace, str(archive))):
        return ""  # Spark would cut the option there
    if not is_there:
        _Missing.path = archive
        return ""
    return f"-XX:SharedArchiveFile={archive} {SILENT}"


def _archive(java: JavaHome) -> Path:
    """Named by what it depends on, as far as one can see from outside."""
    home = Path(_find_spark_home())
    jars = sorted(f"{jar.name} {jar.stat().st_size}" for jar in (home / "jars").iterdir())
    key = "\n".join([_version_of(java), str(home), *jars])
    return cache_dir() / "class-archives" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def is_own(archive: Path) -> bool:
    """Whether there is one that nobody but this user can have written: Java runs what is in it as it is."""
    try:
        found, folder = archive.lstat(), archive.parent.stat()
    except FileNotFoundError:
        return False
    return _is_ours(found) and _is_ours(folder) and stat.S_ISREG(found.st_mode)


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _version_of(java: JavaHome) -> str:
    """Another one for every update, which leaves the path as it is."""
    modules = java.path.resolve() / "lib" / "modules"
    found = modules.stat() if modules.is_file() else None
    return f"{java.path.resolve()} {java.major} {found and (found.st_size, found.st_mtime_ns)}"


def make_if_missing() -> subprocess.Popen[bytes] | None:
    """Start the process that makes the archive which a session of this process had to do without; at most once.

    Where that cannot be done, as on a full disk, nothing is made: the job that wanted it goes on.
    """
    archive, _Missing.path = _Missing.path, None
    try:
        return None if archive is None or is_own(archive) else _started_making(archive)
    except OSError as error:
        _log.info("no archive of Spark's classes is made: %s", error)
        return None


def _started_making(archive: Path) -> subprocess.Popen[bytes]:
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.parent.chmod(_ONLY_OURS)
    if not _is_ours(archive.parent.stat()):
        raise PermissionError(f"{archive.parent} is another user's")
    _log.info("an archive of Spark's classes is being made in %s, for quicker starts", archive.parent)
    with archive.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", "penstock.spark.class_archive_making", str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
