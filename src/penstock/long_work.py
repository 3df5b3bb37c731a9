"""The progress of long work: a savepoint that is made or loaded, state that is redistributed. Driver.

The code that does the work reports its progress: `with working("making the savepoint", unit="file") as reached`. It does not know who reads
it: a terminal, the live record of a job or a test polls `open_works`. Without a reader this costs nothing.

`show_progress` shows work that takes longer than two seconds on standard error, so that the output of a command stays the same: on a
terminal a bar with an estimate, elsewhere a line when the work begins and one when it ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TextIO, TypeVar

from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.wording import counted, duration

_T = TypeVar("_T")
Reached = Callable[[int, int], None]
"""Called with how much is done, and of how much; from any thread."""

FULL, EMPTY = "━", "╌"
BAR_COLUMNS = 24
LOOK_S = 0.2
_SURE_S = 1.0
"""An estimate needs so long to be worth saying."""


@dataclass
class Work:
    """One piece of long work, and its progress."""

    what: str
    """In the form `making the savepoint`."""
    job: str = ""
    unit: str = ""
    """The counted unit, in the singular: `file`."""
    done: int = 0
    total: int = 0
    """0 if it is not known."""
    began_s: float = field(default_factory=SYSTEM_CLOCK.monotonic)
    over: bool = False
    failed: bool = False

    def reached(self, done: int, total: int) -> None:
        """Set the progress; called by the work itself."""
        self.done, self.total = done, total

    def left_s(self, now_s: float) -> float | None:
        """The estimated time to the end, at the speed so far; None if it cannot be estimated."""
        if not 0 < self.done < self.total or now_s - self.began_s < _SURE_S:
            return None
        return (now_s - self.began_s) / self.done * (self.total - self.done)

    def sentence(self, now_s: float) -> str:
        """`making the savepoint: 3 of 8 files, about 12 s left`."""
        if not self.total:
            return f"{self.what}, for {duration(round(now_s - self.began_s))}"
        left_s = self.left_s(now_s)
        left = "" if left_s is None else f", about {duration(max(1, round(left_s)))} left"
        return f"{self.what}: {self.done:,} of {counted(self.total, self.unit)}{left}"

    def bar(self, now_s: float, columns: int) -> str:
        """The same after a bar, in at most `columns` columns."""
        full = round(BAR_COLUMNS * min(1.0, self.done / self.total)) if self.total else 0
        line = f"{FULL * full}{EMPTY * (BAR_COLUMNS - full)} {self.sentence(now_s)}"
        return line[: max(0, columns)]

    def ended(self, now_s: float) -> str:
        """How it ended, in a line."""
        how = "failed after" if self.failed else "done in"
        return f"{self.what}: {how} {duration(now_s - self.began_s)}"


_OPEN: list[Work] = []
_LOCK = threading.Lock()
_CURRENT: ContextVar[Work | None] = ContextVar("penstock_work", default=None)


@contextmanager
def working(what: str, *, unit: str = "step", job: str = "") -> Iterator[Reached]:
    """While this lasts, the work is under way. Work inside of other work is shown instead of it."""
    work = Work(what, job, unit)
    with _LOCK:
        _OPEN.append(work)
    before = _CURRENT.set(work)
    try:
        yield work.reached
    except BaseException:
        work.failed = True
        raise
    finally:
        work.over = True
        with _LOCK:
            _OPEN.remove(work)
        with suppress(ValueError):  # who goes through `each` may leave it to another thread to end
            _CURRENT.reset(before)


def _current() -> Work | None:
    """That of this thread, unless another one has ended it."""
    work = _CURRENT.get()
    return None if work is None or work.over else work


def reached_here() -> Reached:
    """Report progress to the open work of this thread, if there is any; for code that does not know which work it is part of."""
    work = _current()
    return (lambda _done, _total: None) if work is None else work.reached


def each(items: Iterable[_T], what: str, unit: str) -> Iterator[_T]:
    """One after the other, as work: each is done when the next is asked for. Inside of other work it counts for that."""
    everything = list(items)
    with nullcontext(reached_here()) if _current() else working(what, unit=unit) as reached:
        for number, item in enumerate(everything):
            reached(number, len(everything))
            yield item


def open_works(job: str | None = None) -> list[Work]:
    """The work in progress, newest last: that of one job, or all."""
    with _LOCK:
        return [work for work in _OPEN if job is None or work.job in ("", job)]


def doing(job: str) -> str:
    """What takes long at the moment in a job, in words, for its live record; '' for nothing."""
    works = open_works(job)
    return works[-1].sentence(SYSTEM_CLOCK.monotonic()) if works else ""


@contextmanager
def counted_by(read: Callable[[], int], total: int) -> Iterator[None]:
    """While this lasts, how far the work of this thread is can be read off somewhere: it is looked at now and then."""
    reached = reached_here()
    reached(0, total)
    with _polling(lambda: reached(min(read(), total), total), "penstock-progress"):
        yield


@contextmanager
def _polling(look: Callable[[], None], name: str, close: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While this lasts, a thread of this name looks now and then; at the end it closes."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(LOOK_S):
            look()
        close()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


PATIENCE_S = 2.0
"""Shorter work is not shown."""
USUAL_COLUMNS = 80


class Line(Protocol):
    """A line of a terminal that is drawn over itself."""

    @property
    def columns(self) -> int:
        """How much room there is."""
        ...

    def draw(self, text: str) -> None:
        """Replace the line with this text."""
        ...

    def erase(self) -> None:
        """Remove the line from the terminal."""
        ...


class StderrLine(Line):
    """The line on which the cursor stands."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""

    @property
    def columns(self) -> int:
        """The last column stays free, or the cursor would go to the next line."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns - 1
        except (OSError, ValueError):
            return USUAL_COLUMNS - 1

    @override
    def draw(self, text: str) -> None:
        if text != self._shown:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._shown = text

    @override
    def erase(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = ""


class Display:
    """Polls the work in progress, and draws it on a line or prints messages. One thread."""

    def __init__(self, line: Line | None, say: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._line = line
        self._say = say
        self._clock = clock
        self._told: list[Work] = []
        """The work shown, or announced, at the last poll."""

    def look(self) -> None:
        """To be called now and then."""
        now_s = self._clock.monotonic()
        long = [work for work in open_works() if now_s - work.began_s >= PATIENCE_S]
        if self._line is not None:
            self._draw(self._line, long[-1:], now_s)
            return
        for work in self._told:
            if work.over:
                self._say(work.ended(now_s))
        for work in long:
            if work not in self._told:
                self._say(work.sentence(now_s))
        self._told = long

    def close(self) -> None:
        """Erase the line, and report work that has ended meanwhile."""
        self.look()
        if self._line is not None and self._told:
            self._line.erase()

    def _draw(self, line: Line, newest: list[Work], now_s: float) -> None:
        if newest:
            line.draw(newest[0].bar(now_s, line.columns))
        elif self._told:
            line.erase()
        self._told = newest


@contextmanager
def displayed(display: Display) -> Iterator[None]:
    """Show progress while the context lasts."""
    with _polling(display.look, "penstock-progress-shown", display.close):
        yield


@contextmanager
def show_progress() -> Iterator[None]:
    """While this lasts, what takes longer than two seconds is shown on standard error.

    `with ps.show_progress(): ps.write_savepoint(...)`
    """
    with displayed(Display(terminal_line(), _say)):
        yield


def terminal_line() -> StderrLine | None:
    """A line on standard error, if that is a terminal which can redraw it."""
    stream = sys.stderr
    return StderrLine(stream) if stream is not None and is_terminal(stream) else None


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _say(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
