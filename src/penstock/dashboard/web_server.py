"""Runs the server: in this process, or as a low-priority child process of a driver, for one job. Driver, and the dashboard's process.

The socket is bound first, so that a port in use fails at once. Invariants of the child process:
1. The server never delays the job. If it dies, the driver logs that and restarts it, at most once a minute.
2. The server ends with the job and with the driver, however they end (`child_process`).
3. The driver sends the token through a pipe. It is in no argument and no environment variable, and only a generated token is logged.
4. Ctrl-C in the driver's terminal does not reach the server, and it inherits only the listening socket from the driver.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from penstock import child_process
from penstock.child_process import ChildProcess
from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.ui_options import UiOptions, address_of
from penstock.decoding import decoded
from penstock.errors import ConfigError, PenstockError
from penstock.lazy_imports import optional_package
from penstock.storage import Storage, open_storage
from penstock.wording import duration

if TYPE_CHECKING:
    import uvicorn


MOST_CONNECTIONS = 400
"""The limit of connections, event streams included; beyond it, requests get 503."""
KEEP_ALIVE_S = 5
SHUTDOWN_S = 1
BACKLOG = 256
PROBE_S = 1.0
_MOST_PROBED_BYTES = 1000


def check_installed() -> None:
    """Raise `ConfigError` if the packages of the extra `ui` are missing."""
    for package in ("starlette", "uvicorn", "jinja2", "prometheus_client"):
        if find_spec(package) is None:  # the driver itself does not import them
            optional_package(package, needed_by="the dashboard", extra="ui")


def bind(options: UiOptions) -> socket.socket:
    """A socket that listens on the first free port; raises `ConfigError` that names the program on the port, if known."""
    for port in options.ports[:-1]:
        try:
            return _bound(options.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot(options.host, port, error) from error
    try:
        return _bound(options.host, options.ports[-1])
    except OSError as error:
        raise _cannot(options.host, options.ports[-1], error) from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _cannot(host: str, port: int, error: OSError) -> ConfigError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        who = _who(host, port)
        return ConfigError(
            f"the dashboard cannot listen on {where}: {who}; nothing was started. Choose another port, or 0 for any free port, or end "
            "that program",
            host=host,
            port=port,
        )
    if error.errno == errno.EACCES:
        advice = "ports below 1024 need root; choose another"
    elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        advice = "this machine has no such address; use 127.0.0.1"
    else:
        advice = "choose another"
    return ConfigError(
        f"the dashboard cannot listen on {where}: {error.strerror}; nothing was started; {advice}",
        host=host,
        port=port,
    )


class _Health(msgspec.Struct, frozen=True):
    penstock: str
    pid: int


_HEALTH = msgspec.json.Decoder(_Health)


def _who(host: str, port: int) -> str:
    """Which program uses the port; another dashboard identifies itself."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(reached, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/healthz")
        health = decoded(_HEALTH, connection.getresponse().read(_MOST_PROBED_BYTES))
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return "another program uses the port"
    finally:
        connection.close()
    return f"a dashboard of Penstock {health.penstock} is already running there, process {health.pid}"


def port_of(listening: socket.socket) -> int:
    """The port of a socket."""
    port: int = listening.getsockname()[1]
    return port


def make_server(
    places: Sequence[str], options: UiOptions, port: int, *, only: str | None = None
) -> uvicorn.Server:
    """The server; `run(sockets=[...])` runs it until a signal, or until `should_exit` is set."""
    import uvicorn

    from penstock.dashboard.access import Access
    from penstock.dashboard.app import make_app
    from penstock.dashboard.gate import LARGEST_HEADERS_BYTES, PatientConnection
    from penstock.dashboard.status_poller import StatusPoller

    poller = StatusPoller(places, only=only)
    config = uvicorn.Config(
        make_app(poller, Access(options, port)),
        http=PatientConnection,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,  # paths and queries may contain keys of users
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        h11_max_incomplete_event_size=LARGEST_HEADERS_BYTES,
    )
    return uvicorn.Server(config)


def serve(places: Sequence[str], options: UiOptions, announce: Callable[[str], None]) -> None:
    """Serve in this process until Ctrl-C or SIGTERM. `announce` gets the address to open."""
    check_installed()
    listening = bind(options)
    port = port_of(listening)
    server = make_server(places, options, port)
    announce(options.opening_address(port))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has shut down cleanly, and raises it again
        server.run(sockets=[listening])


_log = logging.getLogger(__name__)

PAUSE_S = 60.0
"""The least time between two starts."""
GRACE_S = 3.0
"""The time in which the process may end by itself."""


class ServerRequest(msgspec.Struct, frozen=True):
    """What the process is to serve, and on which inherited socket."""

    socket: int
    places: tuple[str, ...]
    only: str
    options: UiOptions


_REQUESTS = msgspec.json.Decoder(ServerRequest)


class ServerProcess:
    """A running server process, until `close`."""

    def __init__(self, storage: Storage, name: str, options: UiOptions) -> None:
        self._storage = storage
        self._name = name
        self._options = options
        self._ended = threading.Event()
        listening = bind(options)
        self._port = port_of(listening)
        self._child = self._spawned(listening)
        self._started_at = SYSTEM_CLOCK.monotonic()
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
        return self._child.pid

    def close(self) -> None:
        """End the process and its watching thread."""
        self._ended.set()
        self._child.end(GRACE_S)
        self._thread.join(GRACE_S)

    def _spawned(self, listening: socket.socket) -> ChildProcess:
        with listening:
            number = listening.fileno()
            return child_process.start_module(
                __name__,
                ServerRequest(number, (self._storage.uri,), self._name, self._options),
                pass_fds=[number],
                start_new_session=True,
            )

    # ── the thread that watches it ─────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        while True:
            status = self._child.wait()
            if self._ended.is_set():
                break
            last = self._child.last_words()
            self._child.close()
            pause_s = max(0.0, PAUSE_S - (SYSTEM_CLOCK.monotonic() - self._started_at))
            _log.warning(
                "the dashboard at %s ended with %d; the job goes on without it%s; the driver restarts it in %s",
                *(self.address, status, f": {last}" if last else "", duration(pause_s)),
            )
            if SYSTEM_CLOCK.wait(self._ended, pause_s) or not self._restarted():
                break
        self._child.close()

    def _restarted(self) -> bool:
        """Restart the process; False if that failed for good."""
        self._started_at = SYSTEM_CLOCK.monotonic()
        options = msgspec.structs.replace(self._options, ports=(self._port,))
        try:
            self._child = self._spawned(bind(options))
        except (PenstockError, OSError) as error:
            _log.warning("the driver cannot restart the dashboard: %s; the job goes on", error)
            return False
        if self._ended.is_set():
            self._child.end(GRACE_S)
        return True


def start_server_process(storage: Storage, name: str, options: UiOptions) -> ServerProcess:
    """Start the server for the job `name` in the folder `storage`. Returns when the address is bound, before the server answers.

    Raises `ConfigError` if the port is in use, packages are missing, or another process cannot open the storage.
    Call it before Spark starts.
    """
    check_installed()
    open_storage(storage.uri)  # the other process must be able to open it
    return ServerProcess(storage, name, options)


def main(line: bytes) -> None:
    """In the child process: serve until the driver ends."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    request = _REQUESTS.decode(line)
    listening = socket.socket(fileno=request.socket)
    server = make_server(request.places, request.options, port_of(listening), only=request.only)
    server.run(sockets=[listening])
