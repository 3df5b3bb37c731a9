"""The demonstration end to end: real drivers, really killed, each in a process of its own."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.checkpoint_listing import list_checkpoints, open_job
from penstock.config import Mode
from penstock.demo.run import run_demo
from penstock.demo.settings import JOB, DemoSettings

pytestmark = pytest.mark.spark

EVENTS = 60_000
PROGRAM = "from penstock.cli import main; main()"


def demo_command(folder: Path, kills: int) -> list[str]:
    """Run `penstock demo` as a user does and return the lines it printed; fails unless it ended with 0."""
    options = ["--events", str(EVENTS), "--apps", "7", "--kills", str(kills), "--dir", str(folder)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "demo", *options], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\x1b" not in ended.stdout
    return ended.stdout.splitlines()


def short_demo(folder: Path, mode: Mode) -> tuple[DemoSettings, str]:
    """What the command does, with as few batches as show the effect of one kill; the last line it printed."""
    settings = DemoSettings(
        folder=str(folder), mode=mode, events=EVENTS, apps=7, kills=1, partitions=2, batches=6
    )
    said = io.StringIO()
    assert run_demo(settings, Console(file=said)), said.getvalue()
    return settings, said.getvalue().splitlines()[-1]


def numbers(verdict: str) -> tuple[int, int, int, int]:
    """The four numbers of the last line."""
    found = re.fullmatch(r"[a-z ]+: (\d+) in, (\d+) counted, (\d+) lost, (\d+) doubled", verdict)
    assert found, verdict
    return int(found[1]), int(found[2]), int(found[3]), int(found[4])


def test_exactly_once(tmp_path: Path) -> None:
    """A driver killed on both sides of `complete` goes back as far as it must, and every count is exact."""
    lines = demo_command(tmp_path / "demo", kills=2)
    assert lines[-1] == f"exactly once: {EVENTS} in, {EVENTS} counted, 0 lost, 0 doubled"
    said = "\n".join(lines)
    before = re.search(
        r"^driver killed between pre-commit and complete of checkpoint (\d+); started again, went back to checkpoint (\d+)$",
        said,
        re.MULTILINE,
    )
    after = re.search(
        r"^driver killed between complete and commit of checkpoint (\d+); started again, went back to checkpoint (\d+) "
        "and committed its output$",
        said,
        re.MULTILINE,
    )
    assert before is not None
    assert after is not None
    assert int(before[2]) < int(before[1])
    assert int(after[2]) == int(after[1])
    settings = DemoSettings(folder=str(tmp_path / "demo"))
    newest = list_checkpoints(open_job(str(settings.storage_path), JOB))[-1]
    assert newest.completed is not None
    assert newest.completed.run == 3
    assert sum(newest.completed.barrier.positions["clicks"].values()) == EVENTS


def test_at_least_once(tmp_path: Path) -> None:
    """What was written after the last checkpoint is delivered again: nothing lost, at least a batch doubled."""
    settings, verdict = short_demo(tmp_path / "demo", Mode.AT_LEAST_ONCE)
    assert verdict.startswith("at least once: ")
    events, counted, lost, doubled = numbers(verdict)
    assert (events, lost) == (EVENTS, 0)
    assert doubled >= settings.rows_per_batch
    assert counted == EVENTS + doubled


def test_at_most_once(tmp_path: Path) -> None:
    """Nothing is read again after a kill: at least a batch is lost, nothing doubled."""
    settings, verdict = short_demo(tmp_path / "demo", Mode.AT_MOST_ONCE)
    assert verdict.startswith("at most once: ")
    events, counted, lost, doubled = numbers(verdict)
    assert (events, doubled) == (EVENTS, 0)
    assert lost >= settings.rows_per_batch
    assert counted == EVENTS - lost
