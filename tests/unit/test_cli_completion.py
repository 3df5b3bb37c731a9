"""What a shell completes: commands, options, and the names of jobs behind a storage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.stored_jobs import SeenJob

PENSTOCK = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()",
]


def completed(*words: str) -> list[str]:
    """As bash asks."""
    asked = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(PENSTOCK, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("command", ["status", "stop", "inspect"])
def test_names_of_jobs(tmp_path: Path, command: str) -> None:
    """Behind a storage come its jobs, those that begin so."""
    for name in ("views", "visits", "orders"):
        SeenJob(tmp_path, name, started_at=1.0)
    assert completed("penstock", command, str(tmp_path), "vi") == ["views", "visits"]


def test_a_storage_that_is_none(tmp_path: Path) -> None:
    """Whatever is wrong there is no answer, and no error in the middle of what somebody types."""
    (tmp_path / "file").write_text("")
    assert completed("penstock", "status", str(tmp_path / "file"), "v") == []
    assert completed("penstock", "status", "s3://bucket/x", "v") == []


def test_commands() -> None:
    """So are the commands themselves."""
    assert completed("penstock", "ch") == ["checkpoints"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str) -> None:
    """`--show-completion` prints what a shell has to be told."""
    done = subprocess.run(
        [*PENSTOCK, "--show-completion", shell],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert done.returncode == 0
    assert "_PENSTOCK_COMPLETE" in done.stdout
