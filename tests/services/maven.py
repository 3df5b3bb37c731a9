"""Jars from Maven Central for services that tests start, brought by the Ivy inside PySpark: Python and Java suffice."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

from penstock.errors import ConfigError
from penstock.spark.java import cache_dir, find_java
from services.one_at_a_time import one_at_a_time

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
TIMEOUT_S = 300


class JarsMissingError(Exception):
    """The jars are neither in the cache nor could they be fetched; the text says why."""


def ivy_dir() -> Path:
    """The folder to give to Spark as `spark.jars.ivy`, so that it finds what was resolved here."""
    return cache_dir() / "ivy"


def resolve(organisation: str, module: str, version: str, *, transitive: bool = True) -> Path:
    """A folder with the module and all it depends on (or the module alone); fetched once, then taken from the cache."""
    folder = cache_dir() / "jars" / f"{module}-{version}{'' if transitive else '-alone'}"
    if folder.is_dir():
        return folder
    with one_at_a_time(ivy_dir()):  # Ivy's cache bears one process
        if not folder.is_dir():
            _fetch([organisation, module, version], folder, [] if transitive else ["-notransitive"])
    return folder


def _fetch(dependency: list[str], folder: Path, options: list[str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _retrieve(dependency, fresh, options)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _retrieve(dependency: list[str], folder: Path, options: list[str]) -> None:
    name = ":".join(dependency)
    try:
        java = find_java().path / "bin" / "java"
        classpath = ":".join(
            str(jar) for pattern in ("ivy-*", "commons-cli-*") for jar in SPARK_JARS.glob(pattern)
        )
        command = [
            str(java),
            "-cp",
            classpath,
            "org.apache.ivy.Main",
            "-warn",
            "-cache",
            str(ivy_dir() / "cache"),
        ]
        command += ["-dependency", *dependency, "-confs", "default", *options]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (ConfigError, OSError, subprocess.TimeoutExpired) as error:
        raise JarsMissingError(f"{name} cannot be fetched from Maven Central: {error}") from error
    if done.returncode != 0 or not list(folder.glob(f"{dependency[1]}-*.jar")):
        said = [line.strip(": \t") for line in (done.stdout + done.stderr).splitlines()]
        why = next((line for line in reversed(said) if line), "no jar came")
        raise JarsMissingError(f"{name} cannot be fetched from Maven Central: {why}")
