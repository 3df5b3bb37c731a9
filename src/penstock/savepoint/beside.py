"""Make a savepoint in a process of its own, of lower priority: the driver's Python has batches to plan. Driver.

The process ends with the one that started it: a savepoint whose driver is gone is not finished by anybody.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import msgspec

from penstock.checkpoint.completed import Completed
from penstock.errors import InternalError, UnavailableError, error_named
from penstock.savepoint.create import Told, create_savepoint
from penstock.savepoint.manifest import Manifest, read_manifest
from penstock.storage import LocalStorage, Storage


class Wish(msgspec.Struct, frozen=True):
    """What the process is told on its standard input."""

    storage: str
    checkpoint: int
    run: int
    to: str
    token: str
    committed: bool = False


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of what it says: how far it is, or why it failed."""

    done: int = 0
    of: int = 0
    failed: str = ""
    error: str = ""


_MODESTLY = "import os, runpy; os.nice(15); runpy.run_module('penstock.savepoint', run_name='__main__')"
"""Its priority is low before it imports anything: imports cost as much as a small savepoint."""
_LAST_BYTES = 500
_RECEIVE = 65536
_POLL_S = 0.2
_SAID = msgspec.json.Decoder(Said)


def create_beside(
    job_storage: Storage,
    completed: Completed,
    to: Storage,
    *,
    token: str,
    committed: bool = False,
    told: Told = lambda _done, _of: None,
    given_up: Callable[[], bool] = lambda: False,
) -> Manifest:
    """`create_savepoint`, in another process where another process can reach both places. `given_up`: whether it is to end unfinished."""

    def told_unless_given_up(done: int, of: int) -> None:
        _refuse_if(given_up())
        told(done, of)

    if not (isinstance(job_storage, LocalStorage) and isinstance(to, LocalStorage)):
        return create_savepoint(
            job_storage, completed, to, token=token, committed=committed, told=told_unless_given_up
        )
    wish = Wish(job_storage.uri, completed.checkpoint, completed.run, to.uri, token, committed)
    command = [sys.executable, "-P", "-c", _MODESTLY]  # nothing out of the folder where the driver is
    with (
        tempfile.TemporaryFile() as words,  # no pipe: nobody reads it before the end, and a full one would make the process stand still
        subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words
        ) as process,
    ):
        try:
            _listen(process, wish, told, words, given_up)
        finally:
            process.kill()
    return read_manifest(to)


def _refuse_if(given_up: bool) -> None:
    if given_up:
        raise UnavailableError(
            "the job was cancelled while its savepoint was made: it is given up, there is none"
        )


def _listen(
    process: subprocess.Popen[bytes],
    wish: Wish,
    told: Told,
    words: IO[bytes],
    given_up: Callable[[], bool],
) -> None:
    if process.stdin is None:
        raise InternalError("the process that makes a savepoint has no input")
    with contextlib.suppress(BrokenPipeError):  # it is dead already: its last words say why
        os.write(
            process.stdin.fileno(), msgspec.json.encode(wish) + b"\n"
        )  # unbuffered: nothing is left to be written at the end
    # and it stays open: its end tells the process that this one is gone
    for said in _lines(process, given_up):
        if said.failed:
            raise error_named(said.error, said.failed)
        told(said.done, said.of)
    if process.wait() != 0:
        raise UnavailableError(
            f"the process that makes the savepoint {wish.to} ended with {process.returncode}: {_last(words)}",
            status=process.returncode,
        )


def _last(words: IO[bytes]) -> str:
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    return words.read().decode(errors="replace").strip()


def _lines(process: subprocess.Popen[bytes], given_up: Callable[[], bool]) -> Iterator[Said]:
    """What it says. Whatever else prints in a new Python, and a line that was cut when it died, says nothing."""
    if process.stdout is None:
        raise InternalError("the process that makes a savepoint has no output")
    rest, received = b"", b"\n"
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while received:
            _refuse_if(given_up())
            if not selector.select(_POLL_S):
                continue
            received = os.read(process.stdout.fileno(), _RECEIVE)
            *whole, rest = (rest + received).split(b"\n")
            for line in whole:
                with contextlib.suppress(msgspec.DecodeError):
                    yield _SAID.decode(line)
