"""Terminals for tests: what one shows, one of the operating system's, and a `logging` that nobody has set up."""

from __future__ import annotations

import logging
import os
import pty
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


def screen(written: str) -> list[str]:
    """What a terminal shows of this: as much of one as a line needs that is drawn over itself."""
    lines, column = [""], 0
    for piece in written.replace("\x1b[K", "\0").replace("\r\n", "\n"):
        if piece == "\n":
            lines.append("")
            column = 0
        elif piece == "\r":
            column = 0
        elif piece == "\0":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + piece + lines[-1][column + 1 :]
            column += 1
    return lines


@contextmanager
def real_terminal(columns: int) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """The end that programs write to, and all that came out of the other one when that is closed."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    came: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                came.append(part)
        except OSError:  # how Linux says that the other end is closed
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stream = os.fdopen(theirs, "w")

    def written() -> str:
        stream.close()
        reader.join()
        return b"".join(came).decode()

    try:
        yield stream, written
    finally:
        stream.close()
        reader.join()
        os.close(ours)


@contextmanager
def no_log() -> Iterator[None]:
    """Nobody has set up a log: pytest has, for itself, anew for every test."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
