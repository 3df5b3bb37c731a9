"""Checks every request before a route sees it: host, token, and size. The dashboard's process.

Wrong tokens are answered one at a time, and logged. A request with the right token never waits for that.

Limits what a slow or hostile client may cost: deadlines for sending and for reading, and a bound on connections without a token.

uvicorn itself only ends connections that are quiet between two requests. The dashboard's process.
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

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.access import LARGEST_BODY_BYTES, READS, Access, Refusal, is_open
from penstock.dashboard.looking import StorageLooker
from penstock.dashboard.responses import refused, wants_page, with_usual_headers
from penstock.wording import counted

REQUEST_S = 10.0
"""So long a client may take to send a request, its body included."""
READING_S = 20.0
"""So long a client may leave unread what was sent to it."""
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""So much of what was sent may wait for all clients together: beyond that, who has waited longest is cut off."""
MOST_STRANGERS = 200
"""Connections on which nobody has shown a token yet: when there are more, the oldest is ended. So strangers lock nobody out."""
LET_IN = "penstock.let_in"
"""In the scope of a request that has passed the gate for more than what everybody sees."""


class PatientConnection(H11Protocol):
    """A connection of uvicorn's with two deadlines."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.made_at = self.loop.time()
        self._sends = _Deadline(self, REQUEST_S)
        self.reads = _Deadline(self, READING_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` comes as soon as anything waits here
        self._watch_request()
        strangers = [one for one in self._others() if not one.is_let_in]
        if len(strangers) > MOST_STRANGERS:
            min(strangers, key=lambda one: one.made_at).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._sends.stop()
        self.reads.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request has come."""
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        """The client does not read as fast as is sent."""
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
        """It has read all."""
        self.reads.stop()
        super().resume_writing()

    @property
    def is_let_in(self) -> bool:
        """Whether the last request on it has passed the gate."""
        return self.scope is not None and bool(self.scope.get(LET_IN))

    def _others(self) -> list[PatientConnection]:
        """All open connections of the server, this one among them."""
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
    """After which a connection is cut, unless it is stopped before."""

    def __init__(self, connection: PatientConnection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.since = 0.0
        """When it began; 0 while it does not run."""

    def start(self) -> None:
        """Now, unless it runs already."""
        if self._timer is None:
            self.since = self._connection.loop.time()
            self._timer = self._connection.loop.call_later(self._seconds, self._connection.transport.abort)

    def stop(self) -> None:
        """It was met."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.since = 0.0


_log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""Between two answers to all who guess: five guesses a second, however many guess."""
LOG_EVERY_S = 60.0
"""A line for each would fill the disk."""


class Guesses:
    """Those of one server. By its event loop."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._untold = 0
        self._told_at = float("-inf")

    async def one_more(self, who: str) -> None:
        """Wait for its turn, and tell, before it is answered."""
        self._untold += 1
        now = self._clock.monotonic()
        if now - self._told_at >= LOG_EVERY_S:
            _log.warning(
                "the dashboard was shown %s, the last by %s", counted(self._untold, "wrong token"), who
            )
            self._untold, self._told_at = 0, now
        async with self._turn:
            await asyncio.sleep(PAUSE_S)


LONGEST_PATH = 2000
LARGEST_HEADERS_BYTES = 16 * 1024
_LONGEST_NUMBER = 20
_END = {"Connection": "close"}


class TooLargeError(Exception):
    """More was sent than anybody has to say."""


class Gate:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, access: Access, looker: StorageLooker, guesses: Guesses) -> None:
        self._app = app
        self._access = access
        self._looker = looker
        self._guesses = guesses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
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
        if not is_open(scope["path"]):
            scope[LET_IN] = True
            if not self._looker.is_fresh():
                await run_in_threadpool(self._looker.wait)
        await self._app(scope, _limited(receive), _with_headers(send))

    def _refused(self, scope: Scope, headers: Mapping[str, str], refusal: Refusal | None) -> Response | None:
        path = scope["path"]
        if len(path) > LONGEST_PATH or not path.isprintable():
            return refused(
                Request(scope), 400, "no path of this server is so long, or has such characters", headers=_END
            )
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEADERS_BYTES:
            return refused(
                Request(scope), 431, "the headers are larger than those of any browser", headers=_END
            )
        if refusal is not None:
            return _told(Request(scope), refusal)
        given = headers.get("content-length", "0")
        is_small = len(given) < _LONGEST_NUMBER and given.isdecimal() and int(given) <= LARGEST_BODY_BYTES
        return None if is_small else too_large(Request(scope))


def asker(scope: Scope) -> str:
    """The address of whoever asks, for people."""
    client = scope.get("client")
    return str(client[0]) if client else "somebody"


def _headers(scope: Scope) -> dict[str, str]:
    """By name, in lower case; of several of one name the first, as Starlette has it. A dictionary, since each is looked for often."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def _told(request: Request, refusal: Refusal) -> Response:
    asks_for_page = wants_page(request.method, request.scope["path"], request.headers.get("accept", ""))
    if refusal.status == 401 and asks_for_page and request.method in READS:  # noqa: PLR2004
        return RedirectResponse(f"/login?next={quote(_asked(request), safe='')}", 303)
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}  # noqa: PLR2004
    return refused(request, refusal.status, refusal.why, {**headers, **_END})


def _asked(request: Request) -> str:
    path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def too_large(request: Request) -> Response:
    """The answer to it; what is still to come is not read."""
    most = f"{LARGEST_BODY_BYTES // 1024} KB"
    return refused(
        request, 413, f"more than {most} was sent, and nothing here needs as much; nothing was done", _END
    )


def _limited(receive: Receive) -> Receive:
    """The same, which ends when too much has come: a body without a length is counted."""
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
