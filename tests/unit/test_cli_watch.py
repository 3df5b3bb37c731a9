"""`penstock watch`: on a terminal of the operating system's, and without one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import ConsoleDimensions

from builders.stored_jobs import PLAN, died, healthy, late
from penstock.cli.console import plain_console, sparkline
from penstock.cli.status_screen import lines
from penstock.cli.watch import StatusChanges, WatchScreen
from penstock.clock import SYSTEM_CLOCK
from penstock.status import events as told
from penstock.status.job_watcher import look_at
from penstock.status.jobs import find_jobs
from penstock.status.plan import PlanNode
from penstock.status.view import JobView
from services.patience import tries

SOON = "from penstock.cli import main, watch; watch.LOOK_S = 0.05; main()"
WATCH = [sys.executable, "-c", SOON, "watch"]
THE_END = b"nothing comes after this"
INTO_ANOTHER_SCREEN, OUT_OF_IT = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, ours: int, theirs: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self._theirs = theirs
        self.process = process
        self.came = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while part := os.read(self._ours, 65536):
                self.came += part.decode(errors="replace")
        except OSError:  # how Linux says that the other end is closed
            pass

    @property
    def text(self) -> str:
        """Without colours and places."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.came)

    def wait_for(self, seen: Callable[[str], bool]) -> None:
        for _ in tries(0.05):
            if seen(self.text):
                return
            assert self.process.poll() is None, self.text
        raise TimeoutError(self.text)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))

    def ended(self) -> int:
        """How the program ended, when all it wrote has come."""
        code = self.process.wait()
        os.write(self._theirs, THE_END)
        for _ in tries(0.01):
            if self.came.endswith(THE_END.decode()):
                return code
        raise TimeoutError(self.text)


def _without_a_size(environment: Mapping[str, str]) -> dict[str, str]:
    """Readline, which pytest imports, leaves the size of its own terminal in the environment, and that would count."""
    return {name: value for name, value in environment.items() if name not in ("LINES", "COLUMNS")}


@contextmanager
def terminal(*arguments: object) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (60, 100))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [*WATCH, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**_without_a_size(os.environ), "TERM": "xterm-256color"},
        start_new_session=True,
    )
    shown = Terminal(ours, theirs, process)
    try:
        yield shown
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize(("leave", "code"), [(0, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_screen_that_somebody_keeps_open(tmp_path: Path, leave: int, code: int) -> None:
    """It is drawn on a screen of its own, shows what changes, follows the size of the terminal; q and signals leave, and all is as it was."""
    now = SYSTEM_CLOCK.wall()
    job = healthy(tmp_path, now)
    with terminal(tmp_path, "views") as shown:
        shown.wait_for(lambda text: "Checkpoint 41 was completed" in text and "aggregate by app" in text)
        assert INTO_ANOTHER_SCREEN in shown.came
        job.complete(42, SYSTEM_CLOCK.wall())
        shown.wait_for(lambda text: "Checkpoint 42 was completed" in text)
        shown.resize(70)
        shown.wait_for(lambda text: re.search(r"Checkpoint 42 was completed[^\r\n]*…", text) is not None)
        shown.process.send_signal(leave) if leave else shown.press(b"q")
        assert shown.ended() == code
        assert OUT_OF_IT in shown.came
        assert "Traceback" not in shown.text


def test_all_jobs_on_one_screen(tmp_path: Path) -> None:
    """Jobs that come while somebody looks appear; what needs somebody stands on top of the journal."""
    now = SYSTEM_CLOCK.wall()
    healthy(tmp_path, now)
    with terminal(tmp_path) as shown:
        shown.wait_for(lambda text: "views" in text)
        died(tmp_path, now)
        shown.wait_for(lambda text: "visits: Its process (pid " in text)
        shown.press(b"q")
        assert shown.ended() == 0


def test_without_a_terminal(tmp_path: Path) -> None:
    """A line for each change, as it comes, without control codes."""
    now = SYSTEM_CLOCK.wall()
    job = healthy(tmp_path, now)
    process = subprocess.Popen(
        [*WATCH, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" views: running, run 2, last checkpoint 41\n")
        job.complete(42, SYSTEM_CLOCK.wall())
        assert " views: Checkpoint 42 was completed in 1.5 s: " in process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


# ── what it is made of ─────────────────────────────────────────────────────────────────────────────


def seen(place: Path) -> list[JobView]:
    return [look_at(job, SYSTEM_CLOCK.wall()) for job in find_jobs([place])]


@pytest.mark.parametrize("columns", [60, 80, 120, 160])
@pytest.mark.parametrize("one", [False, True])
def test_it_fits_the_terminal(tmp_path: Path, columns: int, *, one: bool) -> None:
    """No line is wider than the terminal; where there is room the journal fills it, and the hint how to leave is there."""
    now = SYSTEM_CLOCK.wall()
    healthy(tmp_path, now)
    late(tmp_path, now)
    room = ConsoleDimensions(columns, 60)
    console = plain_console(width=columns)
    with console.capture() as capture:
        console.print(WatchScreen(one=one).rendered(seen(tmp_path), room))
    shown = capture.get().splitlines()
    assert max(map(len, shown)) <= columns
    assert len(shown) <= 60
    assert shown[-1].strip() == "q quits"


def test_storage_that_is_away_is_said() -> None:
    """What was seen last stays on the screen, under what is wrong."""
    console = plain_console(width=100)
    with console.capture() as capture:
        console.print(WatchScreen(one=False).rendered([], ConsoleDimensions(100, 30), trouble="no mount"))
    assert capture.get().startswith("no mount; this screen shows the last known state")


def test_changes_are_said_once(tmp_path: Path) -> None:
    """Of a job that is new here only its state; then what happened since, what it needs now, and that it is gone; nothing twice."""
    now = SYSTEM_CLOCK.wall()
    job = healthy(tmp_path, now)
    changes = StatusChanges()
    assert [line.partition(" views: ")[2] for line in changes.lines(seen(tmp_path))] == [
        "running, run 2, last checkpoint 41"
    ]
    assert list(changes.lines(seen(tmp_path))) == []
    job.tell(told.SinkDown(at=now, run=job.run, sink="topic", why="away\x1b[2J", waiting=2))
    job.live(now, status="restarting", failure="it broke")
    lines_now = [line.partition(" views: ")[2] for line in changes.lines(seen(tmp_path))]
    assert (
        lines_now[0]
        == "The sink topic does not take commits; 2 transactions wait: away\N{REPLACEMENT CHARACTER}[2J"
    )
    assert lines_now[1:] == [
        "restarting, run 2, last checkpoint 41",
        "it broke. It restarts from its last checkpoint now. Check that the service in the error answers.",
    ]
    assert list(changes.lines(seen(tmp_path))) == []
    assert list(changes.lines([])) == [f"{(tmp_path / 'views').as_uri()} is gone"]


def test_a_graph_is_a_tree() -> None:
    """A node below two others stands below both, and what comes behind it once; a plan that is no tree at all is shown whole."""
    assert [(branches, node.uid, first) for branches, node, first in lines(PLAN)] == [
        ("", "clicks", True),
        ("└─ ", "counts", True),
        ("   ├─ ", "joined", True),
        ("   │  └─ ", "topic", True),
        ("   └─ ", "table", True),
        ("", "shops", True),
        ("└─ ", "joined", False),
    ]
    circle = (
        PlanNode(uid="a", kind="operator", what="", inputs=("b",)),
        PlanNode(uid="b", kind="operator", what="", inputs=("a",)),
    )
    plan = type(PLAN)(job="x", nodes=circle, settings=PLAN.settings, guarantee="")
    assert [node.uid for _, node, _ in lines(plan)] == ["a", "b", "a"]


def test_a_sparkline() -> None:
    """Each number against the largest; nothing is the lowest bar, and only the last ones are shown."""
    assert sparkline([], 5) == ""
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([9, 1, 2, 4, 8], 4) == "▁▂▄█"
