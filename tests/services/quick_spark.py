"""Spark that starts quickly, for tests: most of what a test run did was to warm up Java.

The same Java and the same Spark, told by environment variables that Spark itself reads, so that drivers which tests start as
processes of their own hear it too: one compiler, the quick one; one thread for garbage; Spark's classes mapped from an archive,
which is made once for a Java and a Spark, wherever that is installed, and kept in the cache. It is made in the background: a Spark
that starts meanwhile starts without it. What Spark does with a query is left as it is.

Python workers were dearer than Java: a driver starts tens of them, and each took a second to import the same modules, PySpark's
from a zip, so that they were compiled again. Here they find everything compiled (`_home`), also where the environment forbids to
write bytecode, and those that run tasks are forks of a process that has imported it (`workers/quick_daemon.py`). So are those that
come with each query of the session that tests share (`workers/quick_source_runners.py`).

And Java starts processes without a helper process in between.

`PENSTOCK_PRODUCTION_JVM=1` leaves all this as it is, as `make chaos` does; `without` does so for one process that a test starts.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pyspark

from penstock.spark.java import cache_dir, find_java
from services.maven import SPARK_JARS
from services.one_at_a_time import one_at_a_time

PRODUCTION = "PENSTOCK_PRODUCTION_JVM"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"  # an archive that does not fit is not used; that is no news
_DRIVER = "SPARK_SUBMIT_OPTS"
_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_HOME = "SPARK_HOME"
_LAUNCHER = "SPARK_LAUNCHER_OPTS"  # of the Java that only finds out how to start Java
_SOURCE_RUNNERS = "PENSTOCK_QUICK_SOURCE_RUNNERS"  # known to workers/sitecustomize.py
_WORKERS = Path(__file__).with_name("workers")
DAEMON = "quick_daemon"
"""The module there that Spark starts instead of `pyspark.daemon`."""


def use() -> None:
    """From now on sessions of this process, and of its children, start quickly; asked before each test, for the archive may have come."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if _ours():
        _tell(_archive())


@functools.cache
def _ours() -> bool:
    """Whether it is left to us how Spark starts; then what does not change is told here."""
    if os.environ.get(PRODUCTION) or _DRIVER in os.environ or _SUBMIT in os.environ:
        return False
    os.environ.setdefault(_HOME, str(_home()))
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_WORKERS), path]))
    return True


def _tell(archive: Path | None) -> None:
    options = f"{_QUICK} {_SILENT}" + (f" -XX:SharedArchiveFile={archive}" if archive else "")
    os.environ[_DRIVER] = options
    os.environ[_LAUNCHER] = _QUICK
    settings = {
        "spark.executor.extraJavaOptions": options,
        "spark.python.daemon.module": DAEMON,
    }
    given = " ".join(f'--conf "{name}={value}"' for name, value in settings.items())
    os.environ[_SUBMIT] = f"{given} pyspark-shell"


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child that runs Spark as users do."""
    return {
        name: value for name, value in environment.items() if name not in {_DRIVER, _SUBMIT, _HOME, _LAUNCHER}
    }


@contextmanager
def source_runners() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """What makes the processes that come with each query; a session that is started within what it yields has them from there."""
    if not _ours():
        yield nullcontext
        return
    with tempfile.TemporaryDirectory(prefix="penstock-sources-") as folder:
        address = f"{folder}/socket"
        nursery = subprocess.Popen(
            [sys.executable, "-m", "quick_source_runners", address],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        yield lambda: _named(address)
        nursery.communicate()


@contextmanager
def _named(address: str) -> Iterator[None]:
    os.environ[_SOURCE_RUNNERS] = address
    yield
    del os.environ[_SOURCE_RUNNERS]


def _home() -> Path:
    """Spark as it is installed, without `pyspark.zip`: Python does not keep what it compiled of a zip, and each worker did it again.

    The same for all installations of a version: an archive holds for the very jars that it was made with.
    """
    jars = sorted(f"{jar.name} {jar.stat().st_size}" for jar in SPARK_JARS.iterdir())
    digest = hashlib.sha256("\n".join(jars).encode()).hexdigest()[:16]
    home = cache_dir() / "spark-home" / f"{pyspark.__version__}-{digest}"
    if not home.is_dir():
        with one_at_a_time(home):
            if not home.is_dir():
                _copy(SPARK_JARS.parent, home)
    return home


def _copy(installed: Path, home: Path) -> None:
    """Jars are linked where that is possible."""
    fresh = home.with_name(f"{home.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    for part in ("bin", "sbin"):
        shutil.copytree(installed / part, fresh / part)
    shutil.copytree(installed / "jars", fresh / "jars", copy_function=_link)
    fresh.rename(home)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or somebody else's file
        shutil.copy2(source, target)


def _archive() -> Path | None:
    """Spark's classes for this Java and this Spark; None while they are not there yet."""
    archive = _archive_path()
    if not archive.exists():
        _make_in_background(archive)
    return archive if archive.exists() else None


@functools.cache
def _archive_path() -> Path:
    java = find_java()
    key = f"{java.path.resolve()} {java.major} {os.environ[_HOME]} {_QUICK}"
    return cache_dir() / "classes" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


@functools.cache
def _make_in_background(archive: Path) -> None:
    """Let a Spark that does a little of everything write down its classes as it ends, unless another one is at it.

    It holds the lock as long as it lives; what it says is kept beside the archive. It is tried once by each process.
    """
    fresh = archive.with_suffix(".new")
    archive.parent.mkdir(parents=True, exist_ok=True)
    options = {_DRIVER: f"{_QUICK} -XX:ArchiveClassesAtExit={fresh}"}
    with archive.with_suffix(".lock").open("w") as lock, archive.with_suffix(".log").open("a") as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("spark_tour.py")), str(fresh), str(archive)],
            env={**os.environ, **options},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
