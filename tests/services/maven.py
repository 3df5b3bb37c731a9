"""Jars from Maven Central for services that tests start, brought by the Ivy inside PySpark: Python and Java suffice."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark

from penstock.errors import ConfigError
from penstock.spark.java import cache_dir, find_java
from services.one_at_a_time import one_at_a_time

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
TIMEOUT_S = 300


class JarsMissingError(Exception):
    """The jars are neither in the cache nor could they be fetched; the text says why."""


@dataclass(frozen=True)
class Part:
    """A module among several: with what it depends on, or alone; `tests` is its jar of tests beside its own."""

    organisation: str
    module: str
    version: str
    transitive: bool = False
    tests: bool = False
    without: tuple[str, ...] = ()
    """Modules that it names and nobody needs here."""

    @property
    def described(self) -> str:
        """As Ivy reads it."""
        jars = "<artifact name={0} type='jar'/><artifact name={0} type='test-jar' ext='jar' m:classifier='tests'/>"
        inside = jars.format(quoteattr(self.module)) if self.tests else ""
        inside += "".join(f"<exclude name={quoteattr(name)}/>" for name in self.without)
        names = zip(("org", "name", "rev"), (self.organisation, self.module, self.version), strict=True)
        words = " ".join(f"{name}={quoteattr(value)}" for name, value in names)
        conf = "default" if self.transitive else "default->master"
        return f"<dependency {words} conf='{conf}' transitive='{str(self.transitive).lower()}'>{inside}</dependency>"


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
            dependency = [organisation, module, version]
            options = ["-dependency", *dependency, *([] if transitive else ["-notransitive"])]
            _fetch(":".join(dependency), [module], folder, options)
    return folder


def resolve_all(name: str, parts: Sequence[Part]) -> Path:
    """A folder with all of them in one; fetched once for these parts, then taken from the cache."""
    dependencies = "".join(part.described for part in parts)
    text = (
        "<ivy-module version='2.0' xmlns:m='http://ant.apache.org/ivy/maven'>"
        f"<info organisation='tests' module={quoteattr(name)}/>"
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = cache_dir() / "jars" / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    with one_at_a_time(ivy_dir()), tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(text)
        file.flush()
        if not folder.is_dir():
            _fetch(name, [part.module for part in parts], folder, ["-ivy", file.name])
    return folder


def _fetch(name: str, modules: Sequence[str], folder: Path, options: list[str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _retrieve(name, modules, fresh, options)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _retrieve(name: str, modules: Sequence[str], folder: Path, options: list[str]) -> None:
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
        command += [*options, "-confs", "default"]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (ConfigError, OSError, subprocess.TimeoutExpired) as error:
        raise JarsMissingError(f"{name} cannot be fetched from Maven Central: {error}") from error
    if done.returncode != 0 or not all(list(folder.glob(f"{module}-*.jar")) for module in modules):
        said = [line.strip(": \t") for line in (done.stdout + done.stderr).splitlines()]
        why = next((line for line in reversed(said) if line), "no jar came")
        raise JarsMissingError(f"{name} cannot be fetched from Maven Central: {why}")
