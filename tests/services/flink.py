"""Flink's own operators as a judge: its window, join and timer code runs in a JVM, without a cluster, and plays scripts.

A script is an operator and steps, all in words; the answer says what came out in which step. Times are numbers: milliseconds for Flink,
and whatever the other side counts in.

| operator | its numbers |
|---|---|
| `tumbling F`, `sliding F` | size, slide (0 for tumbling), offset, allowed lateness |
| `session F` | gap, 0, 0, allowed lateness |
| `count F` | size, slide (0 for windows that do not overlap), 0, 0 |
| `join` | lower and upper bound, both inclusive |
| `timers` | none; rows are commands |

`F` is `sum` (and count) or `list`. Commands are `se 5` and `de 5` to set and delete a timer by event time, `sp 5` and `dp 5` by the clock,
and `again 2 10`: the next two that fire are set again, 10 later.

| step | |
|---|---|
| `1 key time value`, `2 key time value` | a row, at the first or second input |
| `w time`, `p time` | the watermark, the clock |
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.java import JavaHome, cache_dir, find_java
from services import maven, summary
from services.maven import Part
from services.one_at_a_time import one_at_a_time

VERSION = "2.3.0"
SOURCE = Path(__file__).with_name("FlinkJudge.java")
_FLINK = "org.apache.flink"
_UNUSED = ("flink-rpc-akka-loader", "flink-shaded-zookeeper-3", "async-profiler", "snappy-java")
PARTS = (
    Part(_FLINK, "flink-runtime", VERSION, transitive=True, tests=True, without=_UNUSED),
    Part(_FLINK, "flink-core", VERSION, transitive=True, tests=True, without=_UNUSED),
    Part(_FLINK, "flink-streaming-java", VERSION),
    Part(_FLINK, "flink-test-utils-junit", VERSION),
    Part("junit", "junit", "4.13.2"),
    Part("org.hamcrest", "hamcrest-core", "1.3"),
)
"""About 51 MB. Flink's harnesses for operators are in its jars of tests, and need JUnit to load."""
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_OPENED = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util")]
_END = "."
_FAILED = "! "


class CannotCompileError(Exception):
    """The Java of this machine runs programs but cannot compile them."""


class Given(NamedTuple):
    """What came out in one step: a result (`r`), or a row that was late at the first input (`l`) or the second (`m`)."""

    step: int
    kind: str
    time: int
    words: list[str]


class Flink:
    """One JVM for many scripts; each plays with an operator of its own."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def play(self, operator: str, steps: Iterable[str]) -> list[Given]:
        """What Flink gives for a script, in its order."""
        questions, answers = _pipes(self._process)
        questions.write("".join(f"{line}\n" for line in (operator, *steps, _END)))
        questions.flush()
        lines = []
        while (line := answers.readline().rstrip("\n")) != _END:
            if not line:
                raise RuntimeError(f"Flink's process has ended: {self._errors.read_text()[-2000:]}")
            if line.startswith(_FAILED):
                raise RuntimeError(f"Flink failed in {operator}: {line}")
            lines.append(line)
        return [_given(line) for line in lines]


@contextmanager
def running() -> Iterator[Flink]:
    """Start it; raises `maven.JarsMissingError` or `CannotCompileError` where it cannot be had."""
    try:
        java = find_java()
    except ConfigError as error:
        raise CannotCompileError(str(error)) from error
    jars = maven.resolve_all("flink-operators", PARTS)
    classes = _compiled(java, jars)
    command = [str(java.path / "bin" / "java"), *_JVM, *_OPENED, "-cp", _path(classes, jars), SOURCE.stem]
    with tempfile.NamedTemporaryFile("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        summary.started("Flink", VERSION)
        try:
            yield Flink(process, Path(errors.name))
        finally:
            for pipe in _pipes(process):
                pipe.close()
            process.wait()


def _compiled(java: JavaHome, jars: Path) -> Path:
    """A folder with the classes, made once for each version of the source and the jars."""
    made_from = hashlib.sha256(SOURCE.read_bytes() + f"{jars.name} {java.major}".encode()).hexdigest()[:16]
    folder = cache_dir() / "judge" / made_from
    with one_at_a_time(folder):
        if not folder.is_dir():
            _compile(java, jars, folder)
    return folder


def _compile(java: JavaHome, jars: Path, folder: Path) -> None:
    """With the compiler inside Java, which a Java that is only there to run programs lacks."""
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    compiler = [str(java.path / "bin" / "java"), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    try:
        done = subprocess.run(
            [*compiler, "-nowarn", "-cp", _path(jars), "-d", str(fresh), str(SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        if "jdk.compiler not found" in said:
            raise CannotCompileError(f"the Java in {java.found_in} has no compiler, a JDK is needed")
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile: {said}")
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _path(*folders: Path) -> str:
    """Every jar by its name: the compiler, started so, does not look for them."""
    return os.pathsep.join(str(one) for folder in folders for one in (folder, *sorted(folder.glob("*.jar"))))


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _given(line: str) -> Given:
    step, kind, time, *words = line.split(" ")
    return Given(int(step), kind, int(time), words)
