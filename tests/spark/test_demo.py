"""The demonstration end to end: real drivers, really killed, each in a process of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.checkpoint_tables import list_checkpoints
from penstock.cli.job_arguments import open_job
from penstock.demo.settings import JOB, DemoSettings

pytestmark = pytest.mark.spark

EVENTS = 3_000


@pytest.fixture
def demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Run `penstock demo` as a user does and return the lines it printed; fails unless it ended with 0."""

    def run(**options: object) -> list[str]:
        options |= {"dir": tmp_path / "demo", "events": EVENTS, "apps": 7, "partitions": 2}
        given = [f"--{name}={value}" for name, value in options.items()]
        monkeypatch.setattr(sys, "argv", ["penstock", "demo", *given])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        assert not exit_.value.code, said.out + said.err
        assert "\x1b" not in said.out
        return said.out.splitlines()

    return run


def numbers(verdict: str) -> tuple[int, int, int, int]:
    """The four numbers of the last line."""
    found = re.fullmatch(r"[a-z ]+: (\d+) in, (\d+) counted, (\d+) lost, (\d+) doubled", verdict)
    assert found, verdict
    return int(found[1]), int(found[2]), int(found[3]), int(found[4])


def test_exactly_once(demo: Callable[..., list[str]], tmp_path: Path) -> None:
    """A driver killed on both sides of `complete` goes back as far as it must, and every count is exact."""
    lines = demo(kills=2, batches=6)
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


def test_at_least_once(demo: Callable[..., list[str]]) -> None:
    """What was written after the last checkpoint is delivered again: nothing lost, at least a batch doubled."""
    verdict = demo(mode="at-least-once", kills=1, batches=4)[-1]
    assert verdict.startswith("at least once: ")
    events, counted, lost, doubled = numbers(verdict)
    assert (events, lost) == (EVENTS, 0)
    assert doubled >= EVENTS / 4
    assert counted == EVENTS + doubled


def test_at_most_once(demo: Callable[..., list[str]]) -> None:
    """Nothing is read again after a kill: at least a batch is lost, nothing doubled."""
    verdict = demo(mode="at-most-once", kills=1, batches=4)[-1]
    assert verdict.startswith("at most once: ")
    events, counted, lost, doubled = numbers(verdict)
    assert (events, doubled) == (EVENTS, 0)
    assert lost >= EVENTS / 4
    assert counted == EVENTS - lost
