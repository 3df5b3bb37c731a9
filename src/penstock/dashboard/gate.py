"""Checks every request before a route sees it: host, token, size, and how long the client takes. The dashboard's process.

Wrong tokens are answered one at a time, and logged. A request with the right token never waits for that. uvicorn itself only closes
connections that are idle between two requests, so `PatientConnection` adds deadlines and a bound on connections without a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import h11
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.access import LARGEST_BODY_BYTES, READS, Access, Refusal, is_open
from penstock.dashboard.responses import refused, wants_page, with_usual_headers
from penstock.dashboard.status_poller import StatusPoller
from penstock.wording import counted

REQUEST_S = 10.0
"""The time in which a client must send a request with its body."""
READING_S = 20.0
"""The time in which a client must read its response."""
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""The limit of unread bytes for all clients together; beyond it, the connection that waited longest is closed."""
MOST_STRANGERS = 200
"""The limit of connections without a token; beyond it, the oldest one is closed, so that they lock out no other client."""
LET_IN = "penstock.let_in"
"""Set in the scope of a request that was allowed to see more than the open paths."""


class PatientConnection(H11Protocol):
    """An HTTP connection with deadlines for sending and for reading."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.made_at = self.loop.time()
        self._sends = _Deadline(self, REQUEST_S)
        self.reads = _Deadline(self, READING_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # call `pause_writing` as soon as anything is unread
        self._watch_request()
        strangers = [one for one in self._others() if not one.is_let_in]
        if len(strangers) > MOST_STRANGERS:
            min(strangers, key=lambda one: one.made_at).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both deadlines of the closed connection."""
        self._sends.stop()
        self.reads.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a request arrived."""
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        """The client reads more slowly than we send."""
        super().pause_writing()
        self.reads.start()
        unread = sorted((one for one in self._others() if one.reads.since), key=lambda one: one.reads.since)
        waiting_bytes = sum(one.transport.get_write_buffer_size() for one in unread)
        for one in unread:
            if waiting_bytes <= MOST_UNREAD_BYTES:
                break
            waiting_bytes -= one.transport.get_write_buffer_size()
            one.transport.abort()

    def resume_writing(self) -> None:
        """The client has read everything."""
        self.reads.stop()
        super().resume_writing()

    def shutdown(self) -> None:
        """The server ends. An event stream would go on, so it is cut off; other requests have a moment to finish."""
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()

    @property
    def is_let_in(self) -> bool:
        """Whether the gate allowed the last request on this connection."""
        return self.scope is not None and bool(self.scope.get(LET_IN))

    def _others(self) -> list[PatientConnection]:
        """All open connections of the server, including this one."""
        return [
            one
            for one in self.connections
            if isinstance(one, PatientConnection) and not one.transport.is_closing()
        ]

    def _watch_request(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._sends.start()
        else:
            self._sends.stop()


class _Deadline:
    """Closes a connection after some seconds, unless it is stopped first."""

    def __init__(self, connection: PatientConnection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.since = 0.0
        """When it started; 0 while it is stopped."""

    def start(self) -> None:
        """Start, unless it runs already."""
        if self._timer is None:
            self.since = self._connection.loop.time()
            self._timer = self._connection.loop.call_later(self._seconds, self._connection.transport.abort)

    def stop(self) -> None:
        """Stop: the client met the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.since = 0.0


_log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""The pause between two answers to wrong tokens: five guesses a second for all clients together."""
LOG_EVERY_S = 60.0
"""One log line for each guess would fill the disk."""


class Guesses:
    """Slows down and logs wrong tokens. For the event loop of one server."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._unlogged = 0
        self._logged_at = float("-inf")

    async def one_more(self, who: str) -> None:
        """Log a wrong token, and wait until it may be answered."""
        self._unlogged += 1
        now = SYSTEM_CLOCK.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            _log.warning(
                "the dashboard received %s, the last from %s", counted(self._unlogged, "wrong token"), who
            )
            self._unlogged, self._logged_at = 0, now
        async with self._turn:
            await asyncio.sleep(PAUSE_S)


LONGEST_PATH = 2000
LARGEST_HEADERS_BYTES = 16 * 1024
_LONGEST_NUMBER = 20
_END = {"Connection": "close"}


class TooLargeError(Exception):
    """The body of a request is too large."""


class Gate:
    """An ASGI application that protects another one."""

    def __init__(self, app: ASGIApp, access: Access, poller: StatusPoller, guesses: Guesses) -> None:
        self._app = app
        self._access = access
        self._poller = poller
        self._guesses = guesses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        refusal = self._access.refusal(scope["method"], scope["path"], headers)
        answer = self._refused(scope, headers, refusal)
        if answer is not None:
            if refusal is not None and refusal.is_guess:
                await self._guesses.one_more(asker(scope))
            await answer(scope, receive, _with_headers(send))
            return
        try:
            if not is_open(scope["path"]):
                scope[LET_IN] = True
                if not self._poller.is_fresh():
                    await run_in_threadpool(self._poller.wait)
            await self._app(scope, _limited(receive), _with_headers(send))
        except asyncio.CancelledError:  # the server ends, and has waited long enough
            why = "the dashboard is shutting down and did not finish this request; try again when it is back"
            await refused(Request(scope), 503, why, _END)(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope, headers: Mapping[str, str], refusal: Refusal | None) -> Response | None:
        path = scope["path"]
        if len(path) > LONGEST_PATH or not path.isprintable():
            return refused(
                Request(scope),
                400,
                "the path is too long, or has characters that no path of this server has",
                headers=_END,
            )
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEADERS_BYTES:
            return refused(
                Request(scope), 431, "the headers are larger than those of any browser", headers=_END
            )
        if refusal is not None:
            return _response(Request(scope), refusal)
        given = headers.get("content-length", "0")
        is_small = len(given) < _LONGEST_NUMBER and given.isdecimal() and int(given) <= LARGEST_BODY_BYTES
        return None if is_small else too_large(Request(scope))


def asker(scope: Scope) -> str:
    """The address of the client, for log messages."""
    client = scope.get("client")
    return str(client[0]) if client else "an unknown client"


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name; of several with one name the first, as in Starlette."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def _response(request: Request, refusal: Refusal) -> Response:
    asks_for_page = wants_page(request.method, request.scope["path"], request.headers.get("accept", ""))
    if refusal.status == 401 and asks_for_page and request.method in READS:  # noqa: PLR2004
        return RedirectResponse(f"/login?next={quote(_asked(request), safe='')}", 303)
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}  # noqa: PLR2004
    return refused(request, refusal.status, refusal.why, {**headers, **_END})


def _asked(request: Request) -> str:
    path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def too_large(request: Request) -> Response:
    """The response to a body that is too large; the rest of it is not read."""
    most = f"{LARGEST_BODY_BYTES // 1024} KB"
    return refused(request, 413, f"the body has more than {most}; nothing was done", _END)


def _limited(receive: Receive) -> Receive:
    """Count the bytes of a body, since it may come without a length, and fail if it is too large."""
    came = 0

    async def limited() -> Message:
        nonlocal came
        message = await receive()
        came += len(message.get("body", b""))
        if came > LARGEST_BODY_BYTES:
            raise TooLargeError
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            with_usual_headers(MutableHeaders(scope=message))
        await send(message)

    return sending
