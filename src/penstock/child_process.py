"""A child process: how it is started, spoken to and ended, and what a module of Penstock does in one. Parent and child.

The parent sends one request, a line of JSON, to the standard input of the child, and leaves that open: the child ends when it closes,
however the parent dies. The child answers with lines on its standard output. A child that runs a module of Penstock has a low priority,
and imports nothing from the working directory, which others may be able to write to.
"""

from __future__ import annotations

import importlib
import os
import select
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Self

import msgspec

PROGRAM = """
import contextlib, os
os.nice(15)
if os.getsid(0) == os.getpid():
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as session:
        session.write("10")
from penstock.child_process import run_module
run_module()
"""
"""Lowers its priority before it imports anything, because imports cost as much as small requests. Linux may first divide the processors
among sessions: for a child with a session of its own, the priority of the process would have no effect without that of the session. With
10, it gets a tenth of a busy processor."""
TOKEN_VARIABLE = "PENSTOCK_UI_TOKEN"  # noqa: S105 - a name
"""The environment variable for the token of the dashboard: every user of a machine can see the arguments of programs."""
_LAST_BYTES = 500
_RECEIVE = 65536
_PARENT_CHECK_S = 1.0


class ChildProcess:
    """A running child process. A `with` block ends it."""

    def __init__(
        self, command: Sequence[str], request: bytes = b"", *, log: IO[bytes] | None = None, **options: Any
    ) -> None:
        """Start it. `log`: where its standard error goes; `options` are those of `subprocess.Popen`."""
        self._log = log or tempfile.TemporaryFile()  # noqa: SIM115 - not a pipe: a full one would block the child
        self._process = subprocess.Popen(  # noqa: S603 - our own commands
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, **options
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.send(request)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send(self, request: bytes) -> None:
        """Write a request to its standard input."""
        rest = memoryview(request)
        with suppress(BrokenPipeError):  # it is dead already: its standard error says why
            while rest:  # a signal may cut a write short
                rest = rest[os.write(self._input.fileno(), rest) :]

    def lines(self, poll_s: float | None = None) -> Iterator[bytes | None]:
        """Each line of its output, until it ends; None whenever `poll_s` have passed without output.

        A line that was cut off by its death is ignored.
        """
        rest, received = b"", b"\n"
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while received:
                if not selector.select(poll_s):
                    yield None
                    continue
                received = os.read(self._output.fileno(), _RECEIVE)
                *whole, rest = (rest + received).split(b"\n")
                yield from whole

    def last_words(self) -> str:
        """The end of its standard error."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def wait(self) -> int:
        """Wait until it has ended; returns its exit code, or the negative number of the signal that killed it."""
        return self._process.wait()

    def end(self, grace_s: float = 0.0) -> None:
        """Close its input and wait until it has ended. It is killed after `grace_s`."""
        self._input.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the files of a child that has ended."""
        for one in (self._input, self._output, self._log):
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.close()


def start_module(
    module: str, request: msgspec.Struct, *, env: Mapping[str, str] | None = None, **options: Any
) -> ChildProcess:
    """Start a child that calls `main` of a module with the request, as a line of JSON. What `main` returns is the exit code.

    The child has the environment of this process and `env`, without the token of the dashboard: it gets that in its request, or not at all.
    """
    command = [sys.executable, "-P", "-c", PROGRAM, module, str(os.getpid())]
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE} | dict(
        env or {}
    )
    return ChildProcess(command, msgspec.json.encode(request) + b"\n", env=environment, **options)


# ── in the child process ───────────────────────────────────────────────────────────────────────────


def run_module() -> None:
    """Call `main` of the module that the parent named, and end with the parent."""
    module, parent = sys.argv[1:]
    request = sys.stdin.buffer.readline()
    threading.Thread(target=end_with_parent, args=(int(parent),), daemon=True).start()
    sys.exit(importlib.import_module(module).main(request))


def end_with_parent(parent: int) -> None:
    """Exit when the input ends. A fork of the parent may keep that open, so check the parent, too.

    This does not read `sys.stdin`: at exit, Python would wait for a lock that this thread holds.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _PARENT_CHECK_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    os._exit(0)


def report(message: msgspec.Struct) -> None:
    """Send a line to the parent. One call writes it, because the next thing may be the end."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(message) + b"\n")
