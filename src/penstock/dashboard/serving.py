"""Runs the server. Its socket is bound first, so that a port in use fails at once. The dashboard's process."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from penstock.dashboard.ui_options import UiOptions
from penstock.decoding import decoded
from penstock.errors import ConfigError
from penstock.lazy_imports import optional_package

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
    return f"a dashboard of Penstock {health.penstock} runs there already, process {health.pid}"


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
    from penstock.dashboard.looking import StorageLooker

    looker = StorageLooker(places, only=only)
    config = uvicorn.Config(
        make_app(looker, Access(options, port)),
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
