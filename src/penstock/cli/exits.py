"""Turns an exception or a signal into one clear message and an exit code. Driver."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from penstock import errors
from penstock.errors import ConfigError, InternalError, PenstockError


class JobFileError(ConfigError):
    """The user's file cannot be loaded."""


class CouldNotError(ConfigError):
    """A command that says something with exit code 1, as diff does, could not be done."""


def explain(error: BaseException) -> str:
    """Return what to tell the user."""
    return "\n".join([_text(error), *getattr(error, "__notes__", ())])


def _text(error: BaseException) -> str:
    if isinstance(error, InternalError):
        return f"{error}\nThis is a bug in Penstock: please report it, with what `penstock --debug ...` shows"
    if isinstance(error, PenstockError):
        return str(error)
    return f"{type(error).__name__}: {error}\n`penstock --debug ...` shows where it comes from"


def where_in(file: Path, error: BaseException) -> str:
    """The last line of `file` that an exception went through, as 'file.py, line 7'."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{file.name}, line {error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return f"{file.name}, line {lines[-1]}" if lines else file.name


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """While the user's file is loaded and may start Spark, Ctrl-C ends the process as SIGTERM does, without an exception.

    One that comes while PySpark waits for its JVM leaves the JVM behind; when the process is gone, the JVM sees that and goes too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def exits_by_signals() -> Iterator[None]:
    """SIGTERM, as of `timeout`, and SIGHUP end the command by an exception, so that it can take back what it has asked for."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(errors.EXIT_BY_SIGNAL + number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if in_main_thread else ()
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [
        number for number, handler in before.items() if handler is signal.SIG_DFL
    ]  # `nohup` ignores SIGHUP
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
