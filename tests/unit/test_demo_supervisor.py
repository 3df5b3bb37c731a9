"""The demonstration watches its driver, which is killed on purpose."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from penstock.demo.display import DemoDisplay
from penstock.demo.run import DemoSupervisor
from penstock.demo.settings import DemoSettings, Finished, Killed, Message, Moved
from penstock.errors import JobFailedError
from penstock.testing.faulty_storage import KillMoment

SAYING = """
import os, signal, sys
os.write(1, sys.argv[1].encode())
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> DemoSupervisor:
    settings = DemoSettings(folder=str(tmp_path))
    return DemoSupervisor(settings, DemoDisplay(settings, Console(file=io.StringIO())))


def drivers(monkeypatch: pytest.MonkeyPatch, *said: tuple[str, list[Message]]) -> None:
    """Drivers that say this, one after the other, and end so."""

    def start(self: DemoSupervisor, number: int, log: io.BufferedWriter) -> subprocess.Popen[bytes]:
        end, messages = said[number]
        lines = "".join(f"{msgspec.json.encode(one).decode()}\n" for one in messages)
        command = [sys.executable, "-c", SAYING, lines, end]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )

    monkeypatch.setattr(DemoSupervisor, "_start", start)


KILLED = Killed(KillMoment.BEFORE_COMPLETE, 1)
MOVED = Moved(batch=2, checkpoint=1, read=500)


def test_a_word_behind_the_last_words(supervisor: DemoSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the driver that says how far it is, while another kills it, does not make the kill an accident."""
    drivers(monkeypatch, ("killed", [KILLED, MOVED]), ("ended", [MOVED, Finished(), MOVED]))
    supervisor.run()
    assert len(supervisor.kills) == 1


def test_a_death_that_was_not_planned(supervisor: DemoSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies without a word about it ends the demonstration."""
    drivers(monkeypatch, ("killed", [MOVED]))
    with pytest.raises(JobFailedError, match="ended with code -9"):
        supervisor.run()
