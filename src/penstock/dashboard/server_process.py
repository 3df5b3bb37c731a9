"""The server beside a driver: a child process of lower priority, for one job. Driver.

What always holds:
1. Nothing that it does holds up the job: its death is logged, and it is started anew, at most once a minute.
2. It ends with the job, and with the driver, however that ends: its standard input is a pipe of which only the driver has the other end.
3. The token is told through that pipe. It is in no argument and no environment, and in the log only if nobody gave one.
4. It imports nothing out of the folder in which the driver was started, which others may be able to write to.
5. Ctrl-C in the driver's terminal does not reach it, and of the driver's files and sockets it has only the one on which it listens.
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
"""Between two starts."""
GRACE_S = 3.0
"""So long it may take to end by itself."""
_PARENT_CHECK_S = 1.0
_LAST_BYTES = 500
_MODESTLY = """
import contextlib, os
os.nice(15)
with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as session:
    session.write("10")
from penstock.dashboard.server_process import main
main()
"""
"""Its priority is low before it imports anything. Linux may share processors out among sessions first, and it has a session of its own: so
that gets a low priority, too. Without it the priority of the process would count for nothing against the job. With 10 it gets a tenth of a
processor that is full of the job: enough for people, and not for a thousand requests a second."""


class ServerRequest(msgspec.Struct, frozen=True):
    """What the process is told: one line on its standard input."""

    socket: int
    places: tuple[str, ...]
    only: str
    options: UiOptions
    parent: int


class ServerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it answers: one line on its standard output."""

    address: str = ""
    error: str = ""


_REQUESTS = msgspec.json.Decoder(ServerRequest)
_REPORTS = msgspec.json.Decoder(ServerReport)


class ServerProcess:
    """A server that runs beside this process, until `close`."""

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
        """Where its pages are: `http://127.0.0.1:8090`. Connections wait there from the first moment on."""
        return address_of(self._options.host, self._port)

    @property
    def opening_address(self) -> str:
        """See `UiOptions.opening_address`."""
        return self._options.opening_address(self._port)

    @property
    def pid(self) -> int:
        """That of the process."""
        return self._process.pid

    def wait_until_ready(self, seconds: float) -> None:
        """For those who cannot go on without it; raises `UnavailableError` when it does not come up."""
        if not self._ready.wait(seconds) or self._problem:
            why = self._problem or f"it has said nothing for {duration(seconds)}"
            raise UnavailableError(
                f"the dashboard at {self.address} did not start: {why}; the job is not touched by it"
            )

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._end_process()
        self._thread.join(GRACE_S)

    # ── the process ────────────────────────────────────────────────────────────────────────────

    def _spawned(self, listening: socket.socket) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        words = tempfile.TemporaryFile()  # noqa: SIM115 - no pipe: a full one would make the process stand still
        with listening:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-c", _MODESTLY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                pass_fds=[listening.fileno()],
                env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
                start_new_session=True,
            )
            wish = ServerRequest(
                listening.fileno(), (self._storage.uri,), self._name, self._options, os.getpid()
            )
        assert process.stdin is not None
        try:
            os.write(process.stdin.fileno(), msgspec.json.encode(wish) + b"\n")
        except BrokenPipeError:
            _log.debug("the dashboard is dead already: its last words say why")
        return process, words

    def _end_process(self) -> None:
        process = self._process
        if process.stdin is not None:
            process.stdin.close()  # which it takes for the end
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
                "the dashboard at %s ended with %d, the job goes on without it%s; it is started again in %s",
                *(self.address, status, f": {last}" if last else "", duration(pause_s)),
            )
            if self._clock.wait(self._ended, pause_s) or not self._restarted():
                break
        self._close_files()

    def _listen(self) -> None:
        line = self._process.stdout.readline() if self._process.stdout else b""
        try:
            said = decoded(_REPORTS, line)
        except msgspec.DecodeError:
            said = ServerReport(error=_last(self._words) or "its process ended without a word")
        self._problem = said.error
        self._ready.set()

    def _restarted(self) -> bool:
        """False when that is not to be tried again."""
        self._started_at = self._clock.monotonic()
        options = msgspec.structs.replace(self._options, ports=(self._port,))
        try:
            self._process, self._words = self._spawned(bind(options))
        except (PenstockError, OSError) as error:
            _log.warning("the dashboard is not started again: %s; the job goes on", error)
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
    """Start the server for the job `name`, whose folder `storage` is. Returns when its address is taken, not when it answers there.

    Raises `ConfigError` when the port is taken, packages are missing, or another process cannot open the storage.
    Call it before Spark starts.
    """
    check_installed()
    open_storage(storage.uri)  # as the other process does
    return ServerProcess(storage, name, options, clock=clock)


def _last(words: IO[bytes]) -> str:
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    return words.read().decode(errors="replace").strip()


# ── in the child process ───────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Read the request, serve, end with the driver."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    request = _REQUESTS.decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_driver, args=(request.parent,), daemon=True).start()
    try:
        listening = socket.socket(fileno=request.socket)
        port = port_of(listening)
        server = make_server(request.places, request.options, port, only=request.only)
    except Exception as error:  # noqa: BLE001 - told to the driver
        _report(ServerReport(error=f"{type(error).__name__}: {error}"))
        sys.exit(1)
    _report(ServerReport(address=address_of(request.options.host, port)))
    server.run(sockets=[listening])


def _end_with_the_driver(parent: int) -> None:
    """When the input ends, the driver has closed it, or is gone. A fork of the driver's may keep its end open, so its id is looked at too.

    Not through `sys.stdin`: at its end Python would wait for a lock that this thread has.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _PARENT_CHECK_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    os._exit(0)


def _report(report: ServerReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()
