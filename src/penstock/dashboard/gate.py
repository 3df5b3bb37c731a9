"""Checks every request before a route sees it: host, token, and size. The dashboard's process.

Wrong tokens are answered one at a time, and logged. A request with the right token never waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.access import LARGEST_BODY_BYTES, READS, Access, Refusal, is_open
from penstock.dashboard.connections import LET_IN
from penstock.dashboard.looking import StorageLooker
from penstock.dashboard.responses import refused, wants_page, with_usual_headers
from penstock.wording import counted

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
