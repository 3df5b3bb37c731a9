"""The demonstration watches its drivers, which are killed on purpose and started again by the supervisor."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from penstock.demo.run import DemoDisplay, DemoDrivers
from penstock.demo.settings import DemoSettings, Finished, Killed, Message, Moved
from penstock.errors import JobFailedError
from penstock.testing.faulty_storage import KillMoment

SAYING = """
import json, os, pathlib, signal, sys
starts = pathlib.Path(sys.argv[2])
with starts.open("a") as file:
    file.write(".")
end, words = json.loads(sys.argv[1])[len(starts.read_text()) - 1]
os.write(1, words.encode())
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def drivers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *said: tuple[str, list[Message]], kills: int
) -> DemoDrivers:
    """Drivers that say this, one after the other, and end so."""
    words = [
        (end, "".join(f"{msgspec.json.encode(one).decode()}\n" for one in messages)) for end, messages in said
    ]
    command = ["-c", SAYING, json.dumps(words), str(folder / "starts")]
    monkeypatch.setattr(DemoDrivers, "_driver", lambda _: command)
    settings = DemoSettings(folder=str(folder), kills=kills)
    return DemoDrivers(settings, DemoDisplay(settings, Console(file=io.StringIO())))


KILLED = Killed(KillMoment.BEFORE_COMPLETE, 1)
MOVED = Moved(batch=2, checkpoint=1, read=500)


def test_a_message_after_that_of_the_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the driver that says how far it is, while another kills it, does not make the kill an accident."""
    said: list[tuple[str, list[Message]]] = [
        ("killed", [KILLED, MOVED]),
        ("ended", [MOVED, Finished(), MOVED]),
    ]
    supervised = drivers(tmp_path, monkeypatch, *said, kills=1)
    supervised.run()
    assert len(supervised.kills) == 1


def test_a_death_that_was_not_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies more often than planned ends the demonstration."""
    supervised = drivers(tmp_path, monkeypatch, ("killed", [KILLED]), ("killed", [MOVED]), kills=1)
    with pytest.raises(JobFailedError, match="ended with code 137"):
        supervised.run()
