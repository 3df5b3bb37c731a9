"""A child process as its parent sees it: its lines, its last words, and its end."""

from __future__ import annotations

import os
import signal
import sys

import msgspec
import pytest

from penstock import child_process
from penstock.child_process import TOKEN_VARIABLE, ChildProcess
from services.patience import PATIENCE_S

SAYING = """
import os, sys, time
os.write(1, b"one\\ntw")
sys.stdin.readline()
os.write(1, b"o\\ncut off")
sys.exit("x" * 10_000 + " in the end")
"""


class Request(msgspec.Struct):
    """A request of any size."""

    text: str


def main(request: bytes) -> None:
    """In the child process: the length of the request, and what the environment has."""
    text = msgspec.json.decode(request, type=Request).text
    os.write(1, f"{len(text)} {os.environ.get(TOKEN_VARIABLE)} {os.environ['GIVEN']}\n".encode())


def test_a_module_gets_its_request_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a pipe takes only a part at once. The token of the dashboard is not in the child's environment."""
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret of the dashboard")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    whole = os.write
    monkeypatch.setattr(os, "write", lambda number, given: whole(number, given[:1000]))
    with child_process.start_module(__name__, Request("x" * 300_000), env={"GIVEN": "too"}) as child:
        assert [*child.lines()] == [b"300000 None too"], child.last_words()


def test_lines_come_whole() -> None:
    """A line is yielded when it is complete; a silent child is reported as None, and a line without an end is ignored."""
    with ChildProcess([sys.executable, "-c", SAYING]) as child:
        lines = child.lines(0.1)
        assert next(one for one in lines if one is not None) == b"one"
        assert next(lines) is None
        child.send(b"\n")
        assert [one for one in lines if one is not None] == [b"two"]
        assert child.wait() == 1
        assert child.last_words().endswith("x in the end")
        assert len(child.last_words()) <= 500


def test_a_child_that_does_not_end_is_killed() -> None:
    """The end of its input asks it to end; after the grace period it is killed."""
    listening = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with ChildProcess(listening) as child:
        child.end(PATIENCE_S)
        assert child.wait() == 0
    deaf = [sys.executable, "-c", "import time; time.sleep(600)"]
    with ChildProcess(deaf) as child:
        pass
    assert child.wait() == -signal.SIGKILL
