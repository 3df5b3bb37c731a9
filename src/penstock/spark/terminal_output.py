"""A line at the bottom of a terminal that is drawn over itself. What others print goes above it. Driver.

It is there only while the program has the terminal: a program in the background must not draw over what somebody types. That is looked at
again each time, since Ctrl-Z, `fg` and `bg` change it.

Python's own streams are led through it while it is shown, also where loggers hold them. What Spark's JVM prints goes straight to the
terminal: for its sake the cursor waits at the beginning of the line, so that such text overwrites the line and does not follow it.

What a job in the foreground shows of itself: a live line on a terminal, and what the log tells where nobody has set up a log. Driver.

Only `job.run` and `penstock run` do this. `job.start` touches neither the terminal nor anything of `logging`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.log_fields import JsonLines, LogForm, is_json, wanted_form
from penstock.progress import PATIENCE_S, Display, displayed, open_works
from penstock.status.sentences import LIFE, Rate, live_line

if TYPE_CHECKING:
    from penstock.spark.job_handle import JobHandle


USUAL_COLUMNS = 80
ERASE = "\r\x1b[K"
_DUMB = ("dumb", "unknown")


def is_terminal(stream: TextIO) -> bool:
    """Whether a line can be drawn over itself there."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB


def has_terminal(stream: TextIO) -> bool:
    """Whether the program is in the foreground of its terminal. One that does not control it cannot be in its background."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return True


class LiveLine:
    """The line, on one terminal. From any thread."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._lock = threading.RLock()
        self._shown = ""
        self._in_a_line = False
        """Somebody has printed a part of a line, whose rest is to follow it."""
        self._gone = False
        """The terminal takes nothing any more: its window was closed, and the job goes on without."""

    @property
    def is_live(self) -> bool:
        """Whether it may be drawn now."""
        return has_terminal(self._terminal)

    @property
    def columns(self) -> int:
        """How much room there is: the last column stays free, or the cursor would go to the next line."""
        try:
            columns = os.get_terminal_size(self._terminal.fileno()).columns
        except (OSError, ValueError):  # not of a kind that has a size
            columns = 0
        return (columns or USUAL_COLUMNS) - 1

    def draw(self, text: str) -> None:
        """Show this instead of what is shown."""
        with self._lock:
            if not self.is_live:
                self._shown = ""  # the terminal is somebody else's now, and so is the place of the line
            elif text != self._shown and not self._in_a_line:
                self._put(f"{text}\x1b[K\r")
                self._shown = text

    def erase(self) -> None:
        """Leave the place empty for whatever comes next."""
        with self._lock:
            if self._shown and self.is_live:
                self._put(ERASE)
            self._shown = ""

    def _put(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the window is closed, or the stream: no job ends for that
            self._gone = True

    def write_above(self, stream: TextIO, text: str) -> int:
        """Let somebody else print on the same terminal."""
        with self._lock:
            self.erase()
            written = stream.write(text)
            stream.flush()
            if text:
                self._in_a_line = not text.endswith("\n")
            return written

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Lead what Python prints on terminals through the line; gone at the end."""
        with ExitStack() as undo:
            undo.callback(self.erase)
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and stream.isatty():
                    undo.enter_context(_led(name, stream, cast("TextIO", _Above(self, stream))))
            yield


class _Above:
    """A stream whose text is printed above the line. Everything but printing is that of the stream itself."""

    def __init__(self, line: LiveLine, stream: TextIO) -> None:
        self._line = line
        self._stream = stream

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _led(name: str, stream: TextIO, above: TextIO) -> Iterator[None]:
    """Replace a stream of `sys`, and in the handlers of loggers, which took it when they were made."""
    handlers = [handler for handler in _stream_handlers() if handler.stream is stream]
    setattr(sys, name, above)
    for handler in handlers:
        handler.setStream(above)
    try:
        yield
    finally:
        for handler in handlers:
            if handler.stream is above:
                handler.setStream(stream)
        if getattr(sys, name) is above:
            setattr(sys, name, stream)


def _stream_handlers() -> list[logging.StreamHandler[TextIO]]:
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = (
        handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers
    )
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]


STARTING = "starting"
CHECKPOINTS = "penstock.checkpoint.coordinator"
"""The logger that tells of every checkpoint."""


class JobDisplay:
    """The live line of one job; without a terminal it shows nothing, and the log is all there is."""

    def __init__(self, line: LiveLine | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._line = line
        self._clock = clock
        self._rate = Rate()

    def starting(self) -> None:
        """Nothing is known yet."""
        if self._line is not None:
            self._line.draw(STARTING)

    @contextmanager
    def of_work(self) -> Iterator[None]:
        """While the job starts, show what takes long: a savepoint that is loaded, state that is dealt out anew."""
        with displayed(Display(self._line, LIFE.info)):
            yield

    def watch(self, handle: JobHandle, *, stopping: bool = False) -> None:
        """To be called again and again while the job runs."""
        if self._line is None:
            return
        works = [work for work in open_works() if self._clock.monotonic() - work.began_s >= PATIENCE_S]
        if works:
            self._line.draw(works[-1].bar(self._clock.monotonic(), self._line.columns))
            return
        progress, doing = handle.progress, "stopping" if stopping else handle.status.value
        rate = self._rate.rows_per_s(progress.rows_in, self._clock.monotonic())
        self._line.draw(live_line(progress, doing, rate, self._clock.wall(), self._line.columns))


@contextmanager
def job_display() -> Iterator[JobDisplay]:
    """Show them as long as this lasts; afterwards the terminal and `logging` are as they were."""
    as_json = wanted_form() is LogForm.JSON  # then nothing else is to stand between the lines
    terminal = sys.stderr if sys.stderr is not None and is_terminal(sys.stderr) and not as_json else None
    if terminal is None:
        with log_on(sys.stderr):
            yield JobDisplay(None)
        return
    line = LiveLine(terminal)
    with line.shown(), log_on(sys.stderr, line):
        yield JobDisplay(line)


@contextmanager
def log_on(stream: TextIO | None, line: LiveLine | None = None) -> Iterator[None]:
    """Where nobody has set up a log: print the story of the job, and every warning, as long as this lasts.

    While a live line is there, checkpoints are in it. Whoever has given `penstock` a level is shown all of that level.
    """
    logger = logging.getLogger("penstock")
    if stream is None or logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if is_json() else _Lines(line))
    level = logger.level
    if level == logging.NOTSET:
        handler.addFilter(lambda record: _is_told(record, line))
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    propagates, logger.propagate = (
        logger.propagate,
        False,
    )  # py4j gives the root a handler when the JVM dies: lines would come twice
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def _is_told(record: logging.LogRecord, line: LiveLine | None) -> bool:
    if record.name == CHECKPOINTS and record.levelno < logging.WARNING:
        return not _is_live(line)
    return record.levelno >= logging.WARNING or record.name == LIFE.name


def _is_live(line: LiveLine | None) -> bool:
    return line is not None and line.is_live


class _Lines(logging.Formatter):
    """When, and what; the level only where it says something. Whoever watches a live line knows the date."""

    def __init__(self, line: LiveLine | None) -> None:
        super().__init__()
        self._line = line

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        when = self.formatTime(record, "%H:%M:%S" if _is_live(self._line) else "%Y-%m-%d %H:%M:%S")
        return f"{when} {level}{record.message}"
