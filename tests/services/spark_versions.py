"""Environments with other Sparks, and the tests on each: `python tests/services/spark_versions.py test [4.0 ...] [--pytest ...]`.

They lie in `.spark-versions/`, are made once, and again when versions change. `make test` needs the oldest without tools, for one test:
`prepare` makes that one beside the other tests.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from services.one_at_a_time import one_at_a_time

ROOT = Path(__file__).parents[2]
PINS: dict[str, dict[str, str]] = tomllib.loads((ROOT / "tests" / "spark-versions.toml").read_text())
OLDEST, *_ = PINS
FOLDER = ROOT / ".spark-versions"
_INPUTS = ("pyproject.toml", "constraints.txt", "tests/spark-versions.toml")
_OUR_FAULT = ("ResolutionImpossible", "metadata-generation-failed")


class PackagesMissingError(Exception):
    """The packages cannot be fetched here; the text says why."""


def python_with(spark: str, *, tools: bool) -> Path:
    """The interpreter of an environment with this Spark and Penstock, made if need be; with `tools` the tests run in it too."""
    if metadata.version("pyspark") == PINS[spark]["pyspark"]:
        return Path(sys.executable)
    folder = FOLDER / spark
    python = folder / "bin" / "python"
    with one_at_a_time(folder):
        if not _stamp(spark, tools=True).exists() and not _stamp(spark, tools=tools).exists():
            _make(spark, python, tools=tools)
    return python


def _stamp(spark: str, *, tools: bool) -> Path:
    """Written last. Its name says from what the environment was made."""
    inputs = b"".join((ROOT / name).read_bytes() for name in _INPUTS) + sys.version.encode()
    made_from = hashlib.sha256(inputs).hexdigest()[:16]
    return FOLDER / spark / f".ready-{'tools' if tools else 'alone'}-{made_from}"


def _make(spark: str, python: Path, *, tools: bool) -> None:
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(FOLDER / spark)], check=True)
    constraints = FOLDER / f"{spark}-constraints.txt"
    constraints.write_text(constraints_for(spark, (ROOT / "constraints.txt").read_text()))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    command = [*pip, "install", "-c", str(constraints), "-e", str(ROOT)]
    _run([*command, "--group", f"{ROOT}/pyproject.toml:dev"] if tools else command)
    _stamp(spark, tools=tools).touch()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if any(word in said for word in _OUR_FAULT):
        raise RuntimeError(f"{' '.join(command)} failed: {said}")
    raise PackagesMissingError(next(iter(reversed(said.strip().splitlines())), "pip said nothing"))


def constraints_for(spark: str, constraints: str) -> str:
    """`constraints.txt` with the versions that belong to a Spark."""
    pins = PINS[spark]
    lines = [line for line in constraints.splitlines() if line.partition("==")[0] not in pins]
    return "\n".join([*lines, *(f"{name}=={version}" for name, version in pins.items())]) + "\n"


@dataclass(frozen=True)
class Outcome:
    """What the tests said on one Spark."""

    spark: str
    passed: int
    failed: int
    skipped: int
    took_s: float
    failures: tuple[str, ...] = ()


def outcome(spark: str, report: Path, took_s: float) -> Outcome:
    """Read from pytest's report; one that is missing counts as a failure."""
    if not report.exists():
        return Outcome(spark, 0, 1, 0, took_s, ("pytest did not run to its end",))
    cases = list(ET.parse(report).iter("testcase"))
    failures = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    names = tuple(f"{c.get('classname')}::{c.get('name')}" for c in failures)
    return Outcome(spark, len(cases) - len(failures) - skipped, len(failures), skipped, took_s, names)


def table(outcomes: list[Outcome]) -> str:
    """For people: one line a Spark, then the names of what failed."""
    lines = [f"{'PySpark':<9}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}"]
    lines += [
        f"{PINS[one.spark]['pyspark']:<9}{one.passed:>8}{one.failed:>8}{one.skipped:>9}{one.took_s / 60:>9.1f}"
        for one in outcomes
    ]
    lines += [f"failed on {one.spark}: {name}" for one in outcomes for name in one.failures]
    return "\n".join(lines)


def _test(spark: str, arguments: list[str]) -> Outcome:
    print(f"Spark {spark}: tests", flush=True)
    python = python_with(spark, tools=True)
    report = FOLDER / f"{spark}-report.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        f"--junitxml={report}",
        *(arguments or ["tests/spark"]),
    ]
    subprocess.run(command, cwd=ROOT, env=clean_environment(), check=False)
    return outcome(spark, report, time.monotonic() - began)


def clean_environment() -> dict[str, str]:
    """Without what leads Python or Spark to the packages of another environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if not re.fullmatch(r"PYTHON(PATH|HOME)|VIRTUAL_ENV|SPARK_.*|PYSPARK_.*", name)
    }


def main() -> int:
    """Run as `make test-spark-versions` and `make test` do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["test", "prepare"])
    parser.add_argument("sparks", nargs="*", default=list(PINS), help="such as 4.0")
    parser.add_argument(
        "--pytest", nargs=argparse.REMAINDER, default=[], help="all that follows is for pytest"
    )
    given = parser.parse_args()
    if given.command == "prepare":
        python_with(OLDEST, tools=False)
        return 0
    outcomes = [_test(spark, given.pytest) for spark in given.sparks]
    print(table(outcomes))
    return int(any(one.failed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
