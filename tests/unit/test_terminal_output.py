"""What a job in the foreground does to a terminal and to `logging`, and that it leaves both as they were."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TextIO

import msgspec
import pytest

from penstock.long_work import is_terminal
from penstock.spark import terminal_output
from penstock.spark.terminal_output import (
    CHECKPOINTS,
    JobDisplay,
    LiveLine,
    job_display,
    log_on,
)
from penstock.status.live import Progress, Status
from penstock.status.sentences import LIFE
from penstock.testing.virtual import VirtualClock
from services.terminals import no_log, real_terminal, screen

PENSTOCK = logging.getLogger("penstock")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> list[str]:
        return screen(self.getvalue())


@contextmanager
def streams(out: TextIO, err: TextIO) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# ── the line ───────────────────────────────────────────────────────────────────────────────────


def test_a_line_is_drawn_over_itself() -> None:
    """A shorter text leaves nothing of a longer one, and nothing is left at the end."""
    terminal = Terminal()
    line = LiveLine(terminal)
    line.draw("a long line")
    line.draw("short")
    assert terminal.shown == ["short"]
    line.erase()
    assert terminal.shown == [""]


def test_what_has_not_changed_is_not_drawn_again() -> None:
    """A terminal over a slow connection is written to only when there is something new."""
    terminal = Terminal()
    line = LiveLine(terminal)
    line.draw("same")
    before = terminal.getvalue()
    line.draw("same")
    assert terminal.getvalue() == before


def test_what_is_printed_goes_above() -> None:
    """Prints, log lines of handlers that were there before, and text on the other stream do not mix with the line."""
    terminal = Terminal()
    with streams(terminal, terminal):
        handler = logging.StreamHandler()
        logger = logging.getLogger("somebody.else")
        logger.addHandler(handler)
        logger.propagate = False
        line = LiveLine(terminal)
        with line.shown():
            line.draw("a line that is longer than all others")
            print("printed")
            line.draw("the line")
            logger.warning("logged, %s", "longer than the line")
            line.draw("the line again")
            sys.stderr.writelines(["one\n", "two\n"])
            line.draw("the last line")
            assert terminal.shown == [
                "printed",
                "logged, longer than the line",
                "one",
                "two",
                "the last line",
            ]
        assert terminal.shown == ["printed", "logged, longer than the line", "one", "two", ""]
        assert handler.stream is sys.stderr is sys.stdout is terminal
        logger.removeHandler(handler)


def test_half_a_line_is_not_overwritten() -> None:
    """Where somebody has printed a part of a line, the live line waits for the rest."""
    terminal = Terminal()
    line = LiveLine(terminal)
    with streams(terminal, terminal), line.shown():
        print("asking ... ", end="")
        line.draw("the line")
        print("answered")
        line.draw("the line")
        assert terminal.shown == ["asking ... answered", "the line"]


def test_a_terminal_that_was_closed_ends_no_job() -> None:
    """Whoever starts a job and closes the window has a job that goes on, and a line that nobody sees."""
    window, inside = os.openpty()
    with open(inside, "w") as terminal:  # noqa: PTH123 - it is a descriptor
        line = LiveLine(terminal)
        with line.shown():
            line.draw("running")
            os.close(window)
            line.draw("still running")
            line.erase()
            line.draw("for ever")
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, inside)  # what Python holds back for the terminal goes nowhere
        os.close(devnull)


def test_text_that_goes_past_python_does_not_follow_the_line() -> None:
    """What Java prints begins where a line begins, and the next drawing is clean."""
    terminal = Terminal()
    line = LiveLine(terminal)
    line.draw("short line")
    terminal.write("an error of Java\n")
    line.draw("another line")
    assert terminal.shown == ["an error of Java", "another line"]


def test_a_file_is_not_led_through_the_terminal() -> None:
    """`python job.py > out.txt` has in the file what was printed, and the line is on the terminal."""
    file, terminal = io.StringIO(), Terminal()
    line = LiveLine(terminal)
    with streams(file, terminal), line.shown():
        line.draw("the line")
        print("a result")
    assert file.getvalue() == "a result\n"


def test_a_dumb_terminal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot erase gets log lines."""
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Terminal())
    assert not is_terminal(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())


# ── a job in the foreground ────────────────────────────────────────────────────────────────────


def test_the_signs_of_a_job() -> None:
    """The line follows the job: its status, its counts, and that it is stopping."""
    terminal, clock = Terminal(), VirtualClock()
    signs = JobDisplay(LiveLine(terminal), clock)
    signs.starting()
    assert terminal.shown == ["starting"]
    handle: Any = SimpleNamespace(
        progress=Progress(run=3, at=0.0, status="running", batches=1), status=Status.RUNNING
    )
    signs.watch(handle)
    assert terminal.shown[0].startswith("running, run 3, 1 batch, its rows are not counted yet, 0 rows/s, ")
    clock.sleep(2.0)
    handle.progress = msgspec.structs.replace(handle.progress, rows_in=500)
    handle.status = Status.RESTARTING
    signs.watch(handle)
    assert terminal.shown[0].startswith("restarting, run 3, 1 batch, 500 rows in, 250 rows/s, ")
    signs.watch(handle, stopping=True)
    assert terminal.shown[0].startswith("stopping, run 3")


def life() -> None:
    LIFE.info("run 1 begins")
    logging.getLogger(CHECKPOINTS).info("checkpoint 1 completed")
    logging.getLogger("penstock.status.observer").info("counts-0: 12 files used again")
    logging.getLogger("penstock.spark.job_handle").warning("job failed")


def test_without_a_terminal_the_log_tells() -> None:
    """Where nobody has set up a log: the begin, a line a checkpoint, warnings; afterwards `logging` is as it was."""
    stream = io.StringIO()
    with no_log(), streams(io.StringIO(), stream):
        with job_display():
            life()
        assert (PENSTOCK.handlers, PENSTOCK.level) == ([], logging.NOTSET)
    assert [line[20:] for line in stream.getvalue().splitlines()] == [
        "run 1 begins",
        "checkpoint 1 completed",
        "WARNING job failed",
    ]


def test_a_log_that_comes_up_meanwhile_tells_nothing_twice() -> None:
    """A library that logs to the root, as py4j does when the JVM dies, gives it a handler: the lines of the job come once all the same."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    with no_log(), streams(io.StringIO(), stream):
        with job_display():
            logging.getLogger().addHandler(handler)
            life()
            logging.getLogger().removeHandler(handler)
        assert PENSTOCK.propagate
    assert stream.getvalue().count("job failed") == 1


def test_on_a_terminal_checkpoints_are_in_the_line() -> None:
    """There the begin, the end and warnings stand above the line, which has the rest."""
    terminal = Terminal()
    with no_log(), streams(io.StringIO(), terminal), job_display() as signs:
        signs.starting()
        life()
        signs.starting()
        assert [line[9:] for line in terminal.shown[:-1]] == ["run 1 begins", "WARNING job failed"]
        assert terminal.shown[-1] == "starting"
    assert terminal.shown[-1] == ""


def test_who_has_set_up_a_log_keeps_it() -> None:
    """A handler on `penstock` or on the root: nothing is added, and no level is changed."""
    for logger in (PENSTOCK, logging.getLogger()):
        stream = io.StringIO()
        handler = logging.StreamHandler(io.StringIO())
        with no_log():
            logger.addHandler(handler)
            with log_on(stream):
                life()
            logger.removeHandler(handler)
        assert stream.getvalue() == ""
        assert PENSTOCK.level == logging.NOTSET


def test_who_has_set_a_level_sees_all_of_it() -> None:
    """A level without a handler is a wish, too: nothing of it is left out."""
    stream = io.StringIO()
    PENSTOCK.setLevel(logging.INFO)
    try:
        with no_log(), log_on(stream, LiveLine(Terminal())):
            life()
    finally:
        PENSTOCK.setLevel(logging.NOTSET)
    assert len(stream.getvalue().splitlines()) == 4


def test_a_failure_leaves_the_terminal_clean() -> None:
    """What is raised is printed where the line was, by whoever prints it."""
    terminal = Terminal()

    def fail() -> None:
        with job_display() as signs:
            signs.starting()
            raise KeyboardInterrupt

    with no_log(), streams(io.StringIO(), terminal):
        with pytest.raises(KeyboardInterrupt):
            fail()
        assert sys.stderr is terminal
    assert terminal.shown == [""]
    assert PENSTOCK.handlers == []


def test_a_real_terminal() -> None:
    """The line is as wide as the terminal allows, what is logged stands above it, and it is gone at the end."""
    handle: Any = SimpleNamespace(
        progress=Progress(run=3, at=0.0, status="running", batches=24, rows_in=5), status=Status.RUNNING
    )
    with no_log(), real_terminal(40) as (stream, written), streams(io.StringIO(), stream):
        with job_display() as signs:
            signs.watch(handle)
            LIFE.info("run 3 begins")
            signs.watch(handle)
        print("and then the prompt", file=stream)
        came = written()
    before_the_end, *_ = came.rpartition("\r\x1b[K")
    above, line = screen(before_the_end)
    assert above.endswith(" run 3 begins")
    assert line == "running, run 3, 24 batches, 5 rows i..."
    assert screen(came)[1:] == ["and then the prompt", ""]


# ── in the background ──────────────────────────────────────────────────────────────────────────


def story_of_a_job(stream: TextIO, has_terminal: Callable[[bool], None]) -> None:
    """A job that a shell puts into the background and brings back."""
    handle: Any = SimpleNamespace(
        progress=Progress(run=3, at=0.0, status="running", batches=1), status=Status.RUNNING
    )
    with no_log(), streams(io.StringIO(), stream), job_display() as signs:
        signs.watch(handle)
        has_terminal(False)
        signs.watch(handle)
        life()
        signs.watch(handle)
        has_terminal(True)
        handle.progress = msgspec.structs.replace(handle.progress, batches=2)
        signs.watch(handle)
        life()
        has_terminal(False)


def check_story(came: str) -> None:
    """Drawn twice, erased once: for the log line that came while the job had the terminal."""
    assert came.count("running, run 3, 1 batch,") == 1
    assert came.count("running, run 3, 2 batches,") == 1
    assert came.count("\r\x1b[K") == 1
    assert came.count("run 1 begins") == came.count("WARNING job failed") == 2
    assert came.count("checkpoint 1 completed") == 1


def test_in_the_background_there_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody types is neither drawn over nor erased: there are log lines as without a terminal, until the job is brought back."""
    terminal, has = Terminal(), [True]
    monkeypatch.setattr(terminal_output, "has_terminal", lambda _: has[-1])
    story_of_a_job(terminal, has.append)
    check_story(terminal.getvalue())


STORY = """
import fcntl, os, signal, sys, termios
import test_terminal_output as tests

os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
other = os.fork()
if not other:
    os.setpgid(0, 0)
    signal.pause()
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
try:
    os.setpgid(other, other)
    tests.story_of_a_job(sys.stderr, lambda has: os.tcsetpgrp(2, os.getpgrp() if has else other))
finally:
    os.kill(other, signal.SIGKILL)
"""


def test_the_background_of_a_real_terminal() -> None:
    """The same where another group of processes has the terminal, as a shell gives it."""
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with real_terminal(100) as (stream, written):
        subprocess.run([sys.executable, "-c", STORY], stderr=stream, env=environment, check=True)
        came = written()
    check_story(came)
