"""A line at the bottom of a terminal that is drawn over itself. What others print goes above it. Driver.

It is there only while the program has the terminal: a program in the background must not draw over what somebody types. That is looked at
again each time, since Ctrl-Z, `fg` and `bg` change it.

Python's own streams are led through it while it is shown, also where loggers hold them. What Spark's JVM prints goes straight to the
terminal: for its sake the cursor waits at the beginning of the line, so that such text overwrites the line and does not follow it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, cast

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
