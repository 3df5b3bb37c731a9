"""An archive of Spark's classes (class data sharing), with which Spark starts faster on this machine. Driver.

The archive is made once for each combination of Java and Spark, and kept in the user's cache: about 200 MB. A job that is kept alive
starts a process of the lowest priority that makes it (`python -m penstock.spark.class_archive FILE`), once the job has run for a while;
later sessions of `local_session` use it. Java checks that it fits its own version and Spark's jars, and starts without it otherwise.
`PENSTOCK_CLASS_ARCHIVE=off` disables all of this.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from penstock.errors import InternalError
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
            [sys.executable, "-P", "-m", "penstock.spark.class_archive", str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


KEPT = 2
"""Archives of other Javas and Sparks."""
_LOWEST_PRIORITY = 19
_ARCHIVE_MODE = 0o600


def make(archive: Path) -> None:
    """Run a small job on a Java that writes down its classes as it ends. Unless another process is at it."""
    os.nice(_LOWEST_PRIORITY)
    with _alone(archive) as is_alone:
        if not is_alone or is_own(archive):
            return
        fresh = archive.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        os.environ[DRIVER_OPTIONS] = f"-XX:ArchiveClassesAtExit={fresh} {SILENT}"
        with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
            _tour(Path(folder))
        if _java_has_ended() == 0 and fresh.is_file():
            fresh.chmod(_ARCHIVE_MODE)
            with fresh.open("rb") as whole:
                os.fsync(whole.fileno())
            fresh.replace(archive)
            _forget_others(archive)


@contextmanager
def _alone(archive: Path) -> Iterator[bool]:
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _tour(folder: Path) -> None:
    """A job with what most jobs have, so that their classes are loaded: a source, a shuffle, own Python, an aggregate, files."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    import penstock as ps
    from penstock.spark.local_session import local_session

    class Last(ps.KeyedProcess):
        newest = ps.ValueState("long", default=0)

        def process(self, key: int, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[int, int]]:  # noqa: ARG002
            self.newest.value = max(row.n for row in rows)
            yield key, self.newest.value

    spark = local_session("class-archive")
    spark.range(1000).selectExpr("id % 10 as k", "id as n").write.parquet(str(folder / "in"))
    job = ps.Job("tour", storage=folder / "store", local_dir=folder / "local")
    rows = job.read(spark.readStream.schema("k long, n long").parquet(str(folder / "in")), uid="in")
    rows.key_by("k").process(Last(), schema="k long, n long", uid="last").write_to(
        ps.sinks.Files(folder / "last"), uid="last-out"
    )
    counted = rows.key_by("k").aggregate(n=F.count("*"), most=F.max("n"), uid="counted")
    counted.write_to(ps.sinks.Files(folder / "counted"), uid="counted-out")
    job.start(available_now=True).wait()
    spark.stop()


def _java_has_ended() -> int:
    """End Java in good order, which is when it writes its archive; returns its exit code."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        raise InternalError("the small job ran without Java")
    gateway.shutdown()
    gateway.proc.stdin.close()  # for which it waits
    return int(gateway.proc.wait())


def _forget_others(archive: Path) -> None:
    """Of Javas and Sparks that were here once. One that runs keeps what it has mapped."""
    others = (one for one in archive.parent.glob("*.jsa") if one != archive)
    for old in sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)[KEPT:]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
