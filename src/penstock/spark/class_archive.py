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
"""A job that has run this long has started, and most of its backlog is processed."""
DRIVER_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable whose options Spark's launcher passes to Java."""
_ONLY_OURS = stat.S_IRWXU
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
SILENT = "-Xlog:disable -Xlog:all=error:stderr"  # Java ignores an archive that does not fit, silently


class _Missing:
    """The archive that a session of this process would have used, if it existed."""

    path: Path | None = None


def archive_options(java: JavaHome, given: str) -> str:
    """The Java options that use the archive; '' if there is none, or the user has set options of their own."""
    options = f"{given} {os.environ.get(DRIVER_OPTIONS, '')}"
    if os.environ.get(SWITCH) == "off" or "SharedArchive" in options or "ArchiveClasses" in options:
        return ""
    try:
        archive = _archive(java)
        is_there = is_own(archive)
    except OSError as error:  # the archive only makes starts faster: it must not prevent one
        _log.debug("no archive of Spark's classes is used: %s", error)
        return ""
    if any(map(str.isspace, str(archive))):
        return ""  # Spark splits options at whitespace
    if not is_there:
        _Missing.path = archive
        return ""
    return f"-XX:SharedArchiveFile={archive} {SILENT}"


def _archive(java: JavaHome) -> Path:
    """The path of the archive, named after everything that it depends on."""
    home = Path(_find_spark_home())
    jars = sorted(f"{jar.name} {jar.stat().st_size}" for jar in (home / "jars").iterdir())
    key = "\n".join([_version_of(java), str(home), *jars])
    return cache_dir() / "class-archives" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def is_own(archive: Path) -> bool:
    """Whether the archive exists and only this user can have written it: Java runs its content unchecked."""
    try:
        found, folder = archive.lstat(), archive.parent.stat()
    except FileNotFoundError:
        return False
    return _is_ours(found) and _is_ours(folder) and stat.S_ISREG(found.st_mode)


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _version_of(java: JavaHome) -> str:
    """A text that changes with every update of this Java, also if its path stays."""
    modules = java.path.resolve() / "lib" / "modules"
    found = modules.stat() if modules.is_file() else None
    return f"{java.path.resolve()} {java.major} {found and (found.st_size, found.st_mtime_ns)}"


def make_if_missing() -> subprocess.Popen[bytes] | None:
    """Start the process that makes the archive which a session of this process lacked; at most once.

    If that fails, for instance on a full disk, no archive is made, and the job continues.
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
        raise PermissionError(f"{archive.parent} belongs to another user")
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
"""How many archives of other Javas and Sparks are kept."""
_LOWEST_PRIORITY = 19
_ARCHIVE_MODE = 0o600


def make(archive: Path) -> None:
    """Run a small job on a Java that writes its classes to the archive when it ends, unless another process is doing so."""
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
    """Run a job with common parts, so that their classes are loaded: a source, a shuffle, own Python, an aggregate, files."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

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
    """Let Java exit normally, which is when it writes the archive. Returns its exit code."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        raise InternalError("the small job ran without Java")
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java waits for this
    return int(gateway.proc.wait())


def _forget_others(archive: Path) -> None:
    """Delete archives of former Javas and Sparks. A running Java keeps its mapping."""
    others = (one for one in archive.parent.glob("*.jsa") if one != archive)
    for old in sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)[KEPT:]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
