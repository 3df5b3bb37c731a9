"""The dashboard server of one job, as a low-priority child process of the driver. Driver, and the dashboard's process.

Invariants:
1. The server never delays the job. If it dies, the driver logs that and restarts it, at most once a minute.
2. The server ends with the job and with the driver, however they end: its standard input is a pipe whose other end only the driver has.
3. The driver sends the token through that pipe. It is in no argument and no environment variable, and only a generated token is logged.
4. The server imports nothing from the driver's working directory, which others may be able to write to.
5. Ctrl-C in the driver's terminal does not reach the server, and it inherits only the listening socket from the driver.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from typing import IO

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.serving import bind, check_installed, make_server, port_of
from penstock.dashboard.ui_options import TOKEN_VARIABLE, UiOptions, address_of
from penstock.decoding import decoded
from penstock.errors import PenstockError, UnavailableError
from penstock.storage import Storage, open_storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

PAUSE_S = 60.0
"""The least time between two starts."""
GRACE_S = 3.0
"""The time in which the process may end by itself."""
_PARENT_CHECK_S = 1.0
_LAST_BYTES = 500
_CHILD_PROGRAM = """
import contextlib, os
os.nice(15)
with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as session:
    session.write("10")
from penstock.dashboard.server_process import main
main()
"""
"""Lowers its priority before it imports anything. Linux may first divide the processors among sessions, and the server has its own session:
without a low session priority, the priority of the process would have no effect. With 10, the server gets a tenth of a busy processor."""


class ServerRequest(msgspec.Struct, frozen=True):
    """The first line on the standard input of the process."""

    socket: int
    places: tuple[str, ...]
    only: str
    options: UiOptions
    parent: int


class ServerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line on the standard output of the process."""

    address: str = ""
    error: str = ""


_REQUESTS = msgspec.json.Decoder(ServerRequest)
_REPORTS = msgspec.json.Decoder(ServerReport)


class ServerProcess:
    """A running server process, until `close`."""

    def __init__(
        self, storage: Storage, name: str, options: UiOptions, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._storage = storage
        self._name = name
        self._options = options
        self._clock = clock
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._problem = ""
        listening = bind(options)
        self._port = port_of(listening)
        self._process, self._words = self._spawned(listening)
        self._started_at = clock.monotonic()
        self._thread = threading.Thread(target=self._watch, name="penstock-ui", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address of its pages, such as `http://127.0.0.1:8090`. It accepts connections at once."""
        return address_of(self._options.host, self._port)

    @property
    def opening_address(self) -> str:
        """The address to open, with the token if it was generated."""
        return self._options.opening_address(self._port)

    @property
    def pid(self) -> int:
        """The id of the server process."""
        return self._process.pid

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the server answers; raises `UnavailableError` if it does not start."""
        if not self._ready.wait(seconds) or self._problem:
            why = self._problem or f"it did not report for {duration(seconds)}"
            raise UnavailableError(
                f"the dashboard at {self.address} did not start: {why}; the job is not affected"
            )

    def close(self) -> None:
        """End the server process."""
        self._ended.set()
        self._end_process()
        self._thread.join(GRACE_S)

    # ── the process ────────────────────────────────────────────────────────────────────────────

    def _spawned(self, listening: socket.socket) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        words = tempfile.TemporaryFile()  # noqa: SIM115 - a full pipe would block the process
        with listening:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", _CHILD_PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                pass_fds=[listening.fileno()],
                env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
                start_new_session=True,
            )
            request = ServerRequest(
                listening.fileno(), (self._storage.uri,), self._name, self._options, os.getpid()
            )
        assert process.stdin is not None
        try:
            os.write(process.stdin.fileno(), msgspec.json.encode(request) + b"\n")
        except BrokenPipeError:
            _log.debug("the dashboard process is dead already: its standard error says why")
        return process, words

    def _end_process(self) -> None:
        process = self._process
        if process.stdin is not None:
            process.stdin.close()  # the process ends when its input ends
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # ── the thread that watches it ─────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        while True:
            self._listen()
            status = self._process.wait()
            if self._ended.is_set():
                break
            last = _last(self._words)
            self._close_files()
            pause_s = max(0.0, PAUSE_S - (self._clock.monotonic() - self._started_at))
            _log.warning(
                "the dashboard at %s ended with %d; the job goes on without it%s; the driver restarts it in %s",
                *(self.address, status, f": {last}" if last else "", duration(pause_s)),
            )
            if self._clock.wait(self._ended, pause_s) or not self._restarted():
                break
        self._close_files()

    def _listen(self) -> None:
        line = self._process.stdout.readline() if self._process.stdout else b""
        try:
            report = decoded(_REPORTS, line)
        except msgspec.DecodeError:
            report = ServerReport(error=_last(self._words) or "its process ended without a message")
        self._problem = report.error
        self._ready.set()

    def _restarted(self) -> bool:
        """Restart the process; False if that failed for good."""
        self._started_at = self._clock.monotonic()
        options = msgspec.structs.replace(self._options, ports=(self._port,))
        try:
            self._process, self._words = self._spawned(bind(options))
        except (PenstockError, OSError) as error:
            _log.warning("the driver cannot restart the dashboard: %s; the job goes on", error)
            return False
        if self._ended.is_set():
            self._end_process()
        return True

    def _close_files(self) -> None:
        for one in (self._process.stdin, self._process.stdout, self._words):
            if one is not None:
                one.close()


def start_server_process(
    storage: Storage, name: str, options: UiOptions, *, clock: Clock = SYSTEM_CLOCK
) -> ServerProcess:
    """Start the server for the job `name` in the folder `storage`. Returns when the address is bound, before the server answers.

    Raises `ConfigError` if the port is in use, packages are missing, or another process cannot open the storage.
    Call it before Spark starts.
    """
    check_installed()
    open_storage(storage.uri)  # the other process must be able to open it
    return ServerProcess(storage, name, options, clock=clock)


def _last(words: IO[bytes]) -> str:
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    return words.read().decode(errors="replace").strip()


# ── in the child process ───────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Read the request, serve, and end with the driver."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    request = _REQUESTS.decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_driver, args=(request.parent,), daemon=True).start()
    try:
        listening = socket.socket(fileno=request.socket)
        port = port_of(listening)
        server = make_server(request.places, request.options, port, only=request.only)
    except Exception as error:  # noqa: BLE001 - reported to the driver
        _report(ServerReport(error=f"{type(error).__name__}: {error}"))
        sys.exit(1)
    _report(ServerReport(address=address_of(request.options.host, port)))
    server.run(sockets=[listening])


def _end_with_the_driver(parent: int) -> None:
    """End the process when its input ends. A fork of the driver may keep that open, so check the parent process too.

    This does not read `sys.stdin`: at exit, Python would wait for a lock that this thread holds.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _PARENT_CHECK_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    os._exit(0)


def _report(report: ServerReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()
