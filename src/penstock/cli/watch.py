"""`penstock watch`: live status on the whole terminal. Without a terminal it prints one line for every change. Driver; no Spark."""

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
from functools import partial
from types import FrameType
from typing import NamedTuple, Self, TextIO

from rich import box
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live as LiveScreen
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from penstock.cli.console import RateHistory, about, in_brief, moment, plain_console, time_of_day, visible
from penstock.cli.job_tables import TIGHT, overview
from penstock.cli.status_screen import facts, graph_table, heading, needs_lines, problems
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import PenstockError
from penstock.status.events import Event
from penstock.status.job_watcher import JobWatcher
from penstock.status.jobs import FoundJob
from penstock.status.live import Progress
from penstock.status.sentences import sentence
from penstock.status.view import CheckpointStatus, CheckpointView, JobView
from penstock.wording import duration, size

SPARK = 20
WIDE = 120
LEAST_EVENTS = 3
NUMBERS, FEWER_NUMBERS, LEAST_WHY = 80, 58, 12
"""The columns that the numbers of a checkpoint take, and the least width for its outcome."""
MOST_CHECKPOINTS = 5
HINT = "q quits"

LONGEST_EVENT = 400


class WatchScreen:
    """Renders the screen and keeps the history of the rates."""

    def __init__(self, *, one: bool) -> None:
        self._one = one
        self._rates = RateHistory()
        self._noted = 0

    def note(self, views: Sequence[JobView], look: int) -> None:
        """Record the rates of this look."""
        if look == self._noted:
            return
        self._noted = look
        for view in views:
            live = view.live if view.is_up else None
            self._rates.note(view.storage, live.rows_per_s if live is not None else 0.0)
            for uid, rows_per_s in _rates(live).items() if live is not None else ():
                self._rates.note(f"{view.storage}\0{uid}", rows_per_s)

    def rendered(
        self, views: Sequence[JobView], room: ConsoleDimensions, *, trouble: str = "", looked: bool = True
    ) -> RenderableType:
        """The screen, as large as the terminal."""
        above: list[RenderableType] = (
            [Text(f"{trouble}; this screen shows the last known state", "bold red")] if trouble else []
        )
        if not looked:
            return Group(*above, Text("loading ..."))
        if not views:
            return Group(*above, Text("no job yet; a job appears here when it starts"), _hint())
        body = self._job(views[0], room) if self._one else self._all(views, room)
        return Group(*above, body)

    # ── all jobs ───────────────────────────────────────────────────────────────────────────────

    def _all(self, views: Sequence[JobView], room: ConsoleDimensions) -> RenderableType:
        parts: list[RenderableType] = [overview(views, room.width), Text()]
        sick = [line for view in views for line in needs_lines(view, f"{view.name}: ")]
        parts += [*sick, Text()] if sick else []
        rates = Table.grid(padding=(0, 2, 0, 0))
        rates.add_column(no_wrap=True)
        rates.add_column(no_wrap=True, style="cyan")
        for view in views:
            if view.state.is_alive:
                rates.add_row(view.name, self._rates.line(view.storage, SPARK * 2))
        parts += [rates, Text()]
        events = sorted(
            ((event, view.name) for view in views for event in view.events), key=lambda pair: pair[0].at
        )
        left = room.height - _height([*parts], room) - 2
        parts += [
            _journal(f"{name}: {event_line(event)}", event.at, bad=sentence(event).is_bad, room=room)
            for event, name in events[-max(LEAST_EVENTS, left) :]
        ]
        return Group(*parts, _hint())

    # ── one job ────────────────────────────────────────────────────────────────────────────────

    def _job(self, view: JobView, room: ConsoleDimensions) -> RenderableType:
        parts: list[RenderableType] = [heading(view), *needs_lines(view), Text(), facts(view), Text()]
        if view.plan is not None:
            wide = room.width >= WIDE
            bars = SPARK if wide else SPARK // 2
            line = partial(self._line_of, view, bars)
            parts += [graph_table(view, line, wide=wide), Text()]
        if view.checkpoints:
            parts += [_checkpoints(view, room.width), Text()]
        left = room.height - _height(parts, room) - 2
        events = list(reversed(view.events[: max(LEAST_EVENTS, left)]))
        parts += [
            _journal(event_line(event), event.at, bad=sentence(event).is_bad, room=room) for event in events
        ]
        return Group(*parts, _hint())

    def _line_of(self, view: JobView, bars: int, uid: str) -> str:
        return self._rates.line(f"{view.storage}\0{uid}", bars)


def _rates(live: Progress) -> dict[str, float]:
    sources = {uid: one.rows_per_s for uid, one in live.sources.items()}
    operators = {uid: one.rows_per_s for uid, one in live.operators.items()}
    return {**sources, **operators, **{uid: one.rows_per_s for uid, one in live.sinks.items()}}


def _checkpoints(view: JobView, columns: int) -> Table:
    wide = columns >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=TIGHT)
    parts = ("batch", "align", "sync", "async", "commit") if wide else ("batch", "async", "commit")
    for name in ("checkpoint", "age", "took", *parts, "new"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for one in view.checkpoints[:MOST_CHECKPOINTS]:
        outcome, style = _outcome(one)
        numbers = _numbers(one, wide=wide) or [""] * (len(parts) + 2)
        age = about(view.now - (one.completed_at or one.triggered_at))
        room = max(LEAST_WHY, columns - (NUMBERS if wide else FEWER_NUMBERS))
        table.add_row(str(one.checkpoint), age, *numbers, Text(in_brief(outcome, room), style))
    return table


def _numbers(one: CheckpointView, *, wide: bool) -> list[str]:
    """The numbers of a completed checkpoint; [] for any other."""
    if one.status is not CheckpointStatus.COMPLETED:
        return []
    inside = (one.alignment_ms, one.sync_ms) if wide else ()
    times = (one.duration_ms, one.batch_ms, *inside, one.async_ms)
    commit = duration(one.commit_ms / 1000) if one.committed_at else ""
    return [*(duration(ms / 1000) for ms in times), commit, size(one.new_bytes)]


def _outcome(one: CheckpointView) -> tuple[str, str]:
    """The outcome in words, with a colour; nothing if all is well."""
    match one.status:
        case CheckpointStatus.IN_PROGRESS:
            done = f", {one.acknowledged} of {one.subtasks_in_all} subtasks" if one.subtasks_in_all else ""
            return f"in progress{done}", "yellow"
        case CheckpointStatus.FAILED:
            return f"{one.reason} {one.detail}".strip(), "red"
        case CheckpointStatus.COMPLETED:
            waits = one.transactions and not one.committed_at
            return ("waiting for its commit" if waits else ""), "yellow"


def _journal(line: str, at: float, *, bad: bool, room: ConsoleDimensions) -> Text:
    text = Text.assemble((f"{time_of_day(at)} ", "dim"), (" ".join(line.split()), "red" if bad else ""))
    text.truncate(max(1, room.width - 1), overflow="ellipsis")
    return text


def _hint() -> Text:
    return Text(HINT, "dim")


def event_line(event: Event) -> str:
    """An event on one line, without its time."""
    return in_brief(sentence(event).line, LONGEST_EVENT)


def _height(parts: Sequence[RenderableType], room: ConsoleDimensions) -> int:
    """The number of lines that these take."""
    console = plain_console(width=room.width, height=room.height)
    lines: list[list[Segment]] = console.render_lines(Group(*parts), pad=False)
    return len(lines)


class StatusChanges:
    """The changes since the last look, as lines."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._events: dict[str, frozenset[Event]] = {}
        self._needs: dict[str, frozenset[str]] = {}

    def lines(self, views: Sequence[JobView]) -> Iterator[str]:
        """The state of each new job, then only its changes."""
        for view in views:
            yield from (f"{moment(at)} {view.name}: {text}" for at, text in self._of(view))
        for gone in set(self._states) - {view.storage for view in views}:
            del self._states[gone]
            yield f"{gone} is gone"

    def _of(self, view: JobView) -> Iterator[tuple[float, str]]:
        key = view.storage
        known = self._events.get(key)
        if known is not None:
            for event in reversed(view.events):
                if event not in known:
                    yield event.at, event_line(event)
        self._events[key] = frozenset(view.events)
        if self._states.get(key) != view.state:
            run = f", run {view.run}" if view.run else ""
            last = view.last_completed
            checkpoint = f", last checkpoint {last.checkpoint}" if last is not None else ""
            yield view.now, f"{view.state}{run}{checkpoint}"
        self._states[key] = view.state
        yield from ((view.now, text) for text in self._new_needs(view))

    def _new_needs(self, view: JobView) -> Iterator[str]:
        found = {_kind(one.text): one.sentences for one in problems(view)}
        for kind, text in found.items():
            if kind not in self._needs.get(view.storage, ()):
                yield " ".join(text.split())
        self._needs[view.storage] = frozenset(found)


def _kind(text: str) -> str:
    """The text without digits: its numbers change from look to look."""
    return "".join(one for one in text if not one.isdigit())


LOOK_S = 1.0
KEYS_S = 0.1
"""How often keys and the terminal size are checked."""
LEAVE = frozenset("qQ\x03\x04")
"""The keys q, Ctrl-C and Ctrl-D."""

Find = Callable[[], Sequence[FoundJob]]
"""Finds the watched jobs; called at every look, since jobs may appear."""


class Watchers:
    """One watcher for each job; it caches what does not change. For one thread."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._watchers: dict[str, JobWatcher] = {}

    def look(self) -> list[JobView]:
        """All jobs now. Raises if the storage as a whole cannot be read."""
        jobs = self._find()
        self._watchers = {
            job.storage.uri: self._watchers.get(job.storage.uri) or JobWatcher(job) for job in jobs
        }
        return [watcher.look(SYSTEM_CLOCK.wall()) for watcher in self._watchers.values()]


def watch(find: Find, *, one: bool) -> None:
    """Watch until the user quits. `one`: there is a single job, which is shown in full."""
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
        out.write("no job here yet; is it the storage given to Job(storage=...)? Ctrl-C quits\n")
    while True:
        out.writelines(f"{visible(line)}\n" for line in changes.lines(views))
        out.flush()
        wait(LOOK_S)
        views = watchers.look()


# ── on a terminal ──────────────────────────────────────────────────────────────────────────────────


class _Seen(NamedTuple):
    """The result of the last look."""

    looks: int = 0
    views: Sequence[JobView] = ()
    trouble: str = ""


class _Looking:
    """A thread that looks once a second, so that a slow storage does not block the keys."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._stopping = threading.Event()
        self._seen = _Seen()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="penstock-watch", daemon=True)

    @property
    def seen(self) -> _Seen:
        """The last look; raises the error that ended the thread."""
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
            except PenstockError as error:  # storage may be unavailable: the screen keeps the last look
                self._seen = self._seen._replace(looks=self._seen.looks + 1, trouble=str(error))
            except Exception as error:  # noqa: BLE001 - raised again by `seen`
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
    """SIGTERM quits as Ctrl-C does, so that the terminal is restored."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys(stdin: TextIO) -> Iterator[Callable[[float], frozenset[str]]]:
    """Reads keys without Enter and without echo; restores the terminal afterwards."""
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
        return LEAVE  # the terminal is closed

    try:
        yield pressed
    finally:
        with contextlib.suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(number, termios.TCSADRAIN, before)
