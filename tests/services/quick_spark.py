"""Spark that starts quickly, for tests: most of what a test run did was to warm up Java.

The same Java and the same Spark, told by environment variables that Spark itself reads, so that drivers which tests start as
processes of their own hear it too: one compiler, the quick one; one thread for garbage; Spark's classes mapped from an archive,
which is made once and kept in the cache. What Spark does with a query is left as it is.

Python workers were dearer than Java: a driver starts tens of them, and each took a second to import the same modules, PySpark's
from a zip, so that they were compiled again. Here they find everything compiled (`_home`), also where the environment forbids to
write bytecode, and those that run tasks are forks of a process that has imported it (`workers/quick_daemon.py`).

`PENSTOCK_PRODUCTION_JVM=1` leaves all this as it is, as `make chaos` does; `without` does so for one process that a test starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.spark.java import cache_dir, find_java
from services.maven import SPARK_JARS
from services.one_at_a_time import one_at_a_time

PRODUCTION = "PENSTOCK_PRODUCTION_JVM"
ARCHIVING_TIMEOUT_S = 500
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"  # an archive that does not fit is not used; that is no news
_DRIVER = "SPARK_SUBMIT_OPTS"
_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_HOME = "SPARK_HOME"
_WORKERS = Path(__file__).with_name("workers")
DAEMON = "quick_daemon"
"""The module there that Spark starts instead of `pyspark.daemon`."""


@functools.cache
def use() -> None:
    """From now on sessions of this process, and of its children, start quickly."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if os.environ.get(PRODUCTION) or _DRIVER in os.environ or _SUBMIT in os.environ:
        return
    os.environ.setdefault(_HOME, str(_home()))
    options = f"{_QUICK} {_SILENT}"
    archive = _archive()
    if archive is not None:
        options += f" -XX:SharedArchiveFile={archive}"
    os.environ[_DRIVER] = options
    settings = {"spark.executor.extraJavaOptions": options, "spark.python.daemon.module": DAEMON}
    given = " ".join(f'--conf "{name}={value}"' for name, value in settings.items())
    os.environ[_SUBMIT] = f"{given} pyspark-shell"
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_WORKERS), path]))


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child that runs Spark as users do."""
    return {name: value for name, value in environment.items() if name not in {_DRIVER, _SUBMIT, _HOME}}


def _home() -> Path:
    """Spark as it is installed, without `pyspark.zip`: Python does not keep what it compiled of a zip, and each worker did it again."""
    installed = SPARK_JARS.parent
    home = cache_dir() / "spark-home" / hashlib.sha256(str(installed).encode()).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "jars", "sbin"):
        with contextlib.suppress(FileExistsError):
            (home / part).symlink_to(installed / part)
    return home


def _archive() -> Path | None:
    """Spark's classes for this Java and this Spark; made when it is missing, None when it cannot be made here."""
    java = find_java()
    home = os.environ[_HOME]
    key = f"{java.path.resolve()} {java.major} {home} {SPARK_JARS} {SPARK_JARS.stat().st_mtime_ns} {_QUICK}"
    archive = cache_dir() / "classes" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
    if not archive.exists():
        with one_at_a_time(archive):
            if not archive.exists():
                _make(archive)
    return archive if archive.exists() else None


def _make(archive: Path) -> None:
    """Let a Spark that did a little of everything write down its classes as it ends; what it says is kept beside the archive."""
    fresh = archive.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    options = {_DRIVER: f"{_QUICK} -XX:ArchiveClassesAtExit={fresh}"}
    with archive.with_suffix(".log").open("w") as log:
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name("spark_tour.py"))],
            env={**os.environ, **options},
            stdout=log,
            stderr=log,
            timeout=ARCHIVING_TIMEOUT_S,
            check=False,
        )
    if fresh.exists():
        fresh.replace(archive)
