"""What a job in the foreground shows of itself: a live line on a terminal, and what the log tells where nobody has set up a log. Driver.

Only `job.run` and `penstock run` do this. `job.start` touches neither the terminal nor anything of `logging`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.log_fields import JsonLines, LogForm, is_json, wanted_form
from penstock.progress import open_works
from penstock.progress_display import PATIENCE_S, Display, displayed
from penstock.spark.live_line import LiveLine, is_terminal
from penstock.status.log_messages import LIFE, Rate, live_line

if TYPE_CHECKING:
    from penstock.spark.handle import JobHandle

STARTING = "starting"
CHECKPOINTS = "penstock.checkpoint.coordinator"
"""The logger that tells of every checkpoint."""


class SignsOfLife:
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
def signs_of_life() -> Iterator[SignsOfLife]:
    """Show them as long as this lasts; afterwards the terminal and `logging` are as they were."""
    as_json = wanted_form() is LogForm.JSON  # then nothing else is to stand between the lines
    terminal = sys.stderr if sys.stderr is not None and is_terminal(sys.stderr) and not as_json else None
    if terminal is None:
        with log_on(sys.stderr):
            yield SignsOfLife(None)
        return
    line = LiveLine(terminal)
    with line.shown(), log_on(sys.stderr, line):
        yield SignsOfLife(line)


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
