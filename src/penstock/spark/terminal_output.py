"""The terminal output of a job in the foreground: a live line at the bottom, and log lines above it. Driver.

The live line is drawn only while the program is in the foreground of its terminal: in the background it would draw over the user's input.
This is checked each time, because Ctrl-Z, `fg` and `bg` change it.

While the line is shown, Python's own streams are routed through it, including those that loggers hold. Spark's JVM prints directly to the
terminal. Therefore the cursor waits at the beginning of the line, so that such text overwrites the line.

If logging is not configured, the important log messages of the job are printed, too. Only `job.run` and `penstock run` do this;
`job.start` touches neither the terminal nor `logging`.
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
from penstock.long_work import PATIENCE_S, USUAL_COLUMNS, Display, displayed, is_terminal, open_works
from penstock.status.sentences import LIFE, Rate, live_line

if TYPE_CHECKING:
    from penstock.spark.job_handle import JobHandle


ERASE = "\r\x1b[K"


def has_terminal(stream: TextIO) -> bool:
    """Whether the program is in the foreground of its terminal. A program without a controlling terminal cannot be in the background."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return True


class LiveLine:
    """The live line of one terminal. Its methods may be called from any thread."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._lock = threading.RLock()
        self._shown = ""
        self._in_a_line = False
        """Something printed the beginning of a line, and its rest is to follow."""
        self._gone = False
        """The terminal accepts no more output, for instance because its window was closed. The job continues."""

    @property
    def is_live(self) -> bool:
        """Whether it may be drawn now."""
        return has_terminal(self._terminal)

    @property
    def columns(self) -> int:
        """The width of the line. The last column stays free, or the cursor would move to the next line."""
        try:
            columns = os.get_terminal_size(self._terminal.fileno()).columns
        except (OSError, ValueError):  # a stream without a size
            columns = 0
        return (columns or USUAL_COLUMNS) - 1

    def draw(self, text: str) -> None:
        """Replace the line by this text."""
        with self._lock:
            if not self.is_live:
                self._shown = ""  # another program has the terminal now, and the place of the line
            elif text != self._shown and not self._in_a_line:
                self._put(f"{text}\x1b[K\r")
                self._shown = text

    def erase(self) -> None:
        """Remove the line before other output."""
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
        except (OSError, ValueError):  # the window or the stream is closed, which must not end the job
            self._gone = True

    def write_above(self, stream: TextIO, text: str) -> int:
        """Print other text above the line."""
        with self._lock:
            self.erase()
            written = stream.write(text)
            stream.flush()
            if text:
                self._in_a_line = not text.endswith("\n")
            return written

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Route everything that Python prints on terminals through the line, which is removed at the end."""
        with ExitStack() as undo:
            undo.callback(self.erase)
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and stream.isatty():
                    undo.enter_context(_led(name, stream, cast("TextIO", _Above(self, stream))))
            yield


class _Above:
    """A stream that prints its text above the line, and otherwise behaves as the original stream."""

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
    """Replace a stream in `sys`, and in logging handlers that hold it."""
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
"""The logger of checkpoints."""


class JobDisplay:
    """The live line of one job. Without a terminal it shows nothing, and the log is the only output."""

    def __init__(self, line: LiveLine | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._line = line
        self._clock = clock
        self._rate = Rate()

    def starting(self) -> None:
        """Show that the job is starting."""
        if self._line is not None:
            self._line.draw(STARTING)

    @contextmanager
    def of_work(self) -> Iterator[None]:
        """While the job starts, show work that takes long: loading a savepoint, redistributing state."""
        with displayed(Display(self._line, LIFE.info)):
            yield

    def watch(self, handle: JobHandle, *, stopping: bool = False) -> None:
        """Redraw the line; to be called at short intervals while the job runs."""
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
    """Show the live line inside this block; afterwards the terminal and `logging` are as before."""
    as_json = wanted_form() is LogForm.JSON  # nothing else may appear between JSON lines
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
    """If logging is not configured, print the main events of the job and every warning inside this block.

    The live line shows checkpoints, so they are not logged while it is drawn. If the user has set a level for `penstock`, all messages of
    that level are printed.
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
    )  # py4j gives the root logger a handler when the JVM dies: lines would appear twice
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
    """Time and message, with the level if it is not INFO. Without the date while a live line is shown."""

    def __init__(self, line: LiveLine | None) -> None:
        super().__init__()
        self._line = line

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        when = self.formatTime(record, "%H:%M:%S" if _is_live(self._line) else "%Y-%m-%d %H:%M:%S")
        return f"{when} {level}{record.message}"
