"""Shows work that takes longer than two seconds: a bar with an estimate on a terminal, elsewhere a line when it begins and when it ends.

On standard error, so that what a command prints stays what it is. Driver.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.progress import LOOK_S, Work, open_works

PATIENCE_S = 2.0
"""What is done sooner is not worth a word."""
USUAL_COLUMNS = 80


class Line(Protocol):
    """A line of a terminal that is drawn over itself."""

    @property
    def columns(self) -> int:
        """How much room there is."""
        ...

    def draw(self, text: str) -> None:
        """Show this instead of what is shown."""
        ...

    def erase(self) -> None:
        """Leave the place empty."""
        ...


class StderrLine:
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

    def draw(self, text: str) -> None:
        """See `Line.draw`."""
        if text != self._shown:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._shown = text

    def erase(self) -> None:
        """See `Line.erase`."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = ""


class Display:
    """Looks at what is under way, and shows it on a line, or says it. One thread."""

    def __init__(self, line: Line | None, say: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._line = line
        self._say = say
        self._clock = clock
        self._told: list[Work] = []
        """What was shown, or said to have begun, at the last look."""

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
        """Leave nothing on the line; what has ended meanwhile is said."""
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
    """While this lasts, somebody looks."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            display.look()
        display.close()

    thread = threading.Thread(target=look, name="penstock-progress-shown", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def show_progress() -> Iterator[None]:
    """While this lasts, what takes longer than two seconds is shown on standard error.

    `with ps.show_progress(): ps.write_savepoint(...)`
    """
    with displayed(Display(terminal_line(), _say)):
        yield


def terminal_line() -> StderrLine | None:
    """Standard error, where a line can be drawn over itself."""
    stream = sys.stderr
    is_one = stream is not None and stream.isatty()
    return (
        StderrLine(stream)
        if is_one and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        else None
    )


def _say(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
