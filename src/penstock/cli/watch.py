"""`penstock watch`: live status on the whole terminal. Without a terminal, one line for every change. Driver; no Spark."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, Self, TextIO

from rich.console import Console
from rich.live import Live as LiveScreen

from penstock.cli.console import plain_console, visible
from penstock.cli.watch_screen import StatusChanges, WatchScreen
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.status.job_watcher import JobWatcher
from penstock.status.jobs import FoundJob
from penstock.status.view import JobView

LOOK_S = 1.0
KEYS_S = 0.1
"""How long a key, or a new size of the terminal, may wait."""
LEAVE = frozenset("qQ\x03\x04")
"""q, and what Ctrl-C and Ctrl-D are where a terminal hands them on."""

Find = Callable[[], Sequence[FoundJob]]
"""The jobs that are watched: asked again, since new ones may come."""


class Watchers:
    """One watcher a job, which remembers what does not change. One thread."""

    def __init__(self, find: Find, clock: Clock = SYSTEM_CLOCK) -> None:
        self._find = find
        self._clock = clock
        self._watchers: dict[str, JobWatcher] = {}

    def look(self) -> list[JobView]:
        """All jobs at this moment. Raises what is wrong with the storage as a whole."""
        jobs = self._find()
        self._watchers = {
            job.storage.uri: self._watchers.get(job.storage.uri) or JobWatcher(job) for job in jobs
        }
        return [watcher.look(self._clock.wall()) for watcher in self._watchers.values()]


def watch(find: Find, *, one: bool) -> None:
    """Watch until somebody leaves. `one`: the jobs are a single one, which is shown in full."""
    watchers = Watchers(find)
    console = plain_console()
    if console.is_terminal and sys.stdin.isatty() and not console.is_dumb_terminal:
        _on_the_terminal(watchers, console, one=one)
    else:
        _line_by_line(watchers, sys.stdout, threading.Event().wait)


# ── without a terminal ─────────────────────────────────────────────────────────────────────────────


def _line_by_line(watchers: Watchers, out: TextIO, wait: Callable[[float], object]) -> None:
    changes = StatusChanges()
    views = watchers.look()
    if not views:
        out.write("no job here yet; is it the storage given to Job(storage=...)? Ctrl-C leaves\n")
    while True:
        out.writelines(f"{visible(line)}\n" for line in changes.lines(views))
        out.flush()
        wait(LOOK_S)
        views = watchers.look()


# ── on a terminal ──────────────────────────────────────────────────────────────────────────────────


class _Seen(NamedTuple):
    """What a look has found."""

    looks: int = 0
    views: Sequence[JobView] = ()
    trouble: str = ""


class _Looking:
    """A thread that looks once a second: a storage that is slow keeps nobody from leaving."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._stopping = threading.Event()
        self._seen = _Seen()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="penstock-watch", daemon=True)

    @property
    def seen(self) -> _Seen:
        """The last look; raises what has ended the looking."""
        if self._failure is not None:
            raise self._failure
        return self._seen

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._seen = _Seen(self._seen.looks + 1, self._watchers.look())
            except (
                PenstockError
            ) as error:  # storage may be away for a while: what was seen last stays, and it is said
                self._seen = self._seen._replace(looks=self._seen.looks + 1, trouble=str(error))
            except Exception as error:  # noqa: BLE001 - raised again by whoever shows
                self._failure = error
                return
            self._stopping.wait(LOOK_S)


def _on_the_terminal(watchers: Watchers, console: Console, *, one: bool) -> None:
    screen, shown = WatchScreen(one=one), None
    with (
        _leaving_in_order(),
        _Looking(watchers) as looking,
        _keys(sys.stdin) as pressed,
        LiveScreen(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not pressed(KEYS_S) & LEAVE:
            seen = looking.seen
            if (seen, console.size) != shown:
                screen.note(seen.views, seen.looks)
                live.update(
                    screen.rendered(seen.views, console.size, trouble=seen.trouble, looked=seen.looks > 0),
                    refresh=True,
                )
                shown = seen, console.size


@contextmanager
def _leaving_in_order() -> Iterator[None]:
    """SIGTERM leaves as Ctrl-C does: the terminal is somebody's who goes on working in it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys(stdin: TextIO) -> Iterator[Callable[[float], frozenset[str]]]:
    """Keys as they are pressed, without Enter and without an echo; afterwards the terminal is as it was."""
    number = stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def pressed(wait_s: float) -> frozenset[str]:
        ready, _, _ = select.select([number], [], [], wait_s)
        if not ready:
            return frozenset()
        with contextlib.suppress(OSError):
            read = os.read(number, 1024)
            return frozenset(read.decode(errors="replace")) if read else LEAVE
        return LEAVE  # the terminal is gone

    try:
        yield pressed
    finally:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(number, termios.TCSADRAIN, before)
