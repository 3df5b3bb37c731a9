"""Whole answers, kept until the next look: most who ask, ask for the same, and are answered without a route. The dashboard's process.

The gate has let each of them through before. An answer is kept only if its endpoint says that it is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.dashboard.answering import with_usual_headers

MOST = 64
MOST_BYTES = 32 * 1024 * 1024
_KEEP = "penstock.keep"
_OK = 200


class LastingResponse(Response):
    """The same for everybody who asks for this path with this `Accept`, until jobs are looked at anew."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Response.__call__`."""
        keeping: _Keeping | None = scope.get(_KEEP)
        if keeping is not None and self.status_code == _OK:
            keeping.keep(self)
        await super().__call__(scope, receive, send)


@dataclass(frozen=True)
class Answer:
    """What is sent."""

    headers: list[tuple[bytes, bytes]]
    body: bytes

    async def __call__(self, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": _OK, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


class Recent:
    """Answers of one look. When there are too many, no more are kept before the next."""

    def __init__(self) -> None:
        self._of: object = None
        self._answers: dict[tuple[str, str], Answer] = {}
        self._bytes = 0

    def find(self, scope: Scope, headers: Mapping[str, str], look: object) -> Answer | None:
        """The answer, if one was made since this look; if not, it is kept when it is made. `look`: another object for each look."""
        if scope["method"] != "GET" or scope["query_string"]:
            return None
        if look is not self._of:
            self._of, self._answers, self._bytes = look, {}, 0
        asked = (scope["path"], headers.get("accept", ""))
        found = self._answers.get(asked)
        if found is None:
            scope[_KEEP] = _Keeping(self, look, asked)
        return found

    def keep(self, look: object, asked: tuple[str, str], answer: Answer) -> None:
        """Unless jobs were looked at meanwhile."""
        size = len(answer.body) + sum(map(len, asked))
        if look is self._of and len(self._answers) < MOST and self._bytes + size <= MOST_BYTES:
            self._answers[asked] = answer
            self._bytes += size


@dataclass(frozen=True)
class _Keeping:
    """Where the answer to one request goes."""

    recent: Recent
    look: object
    asked: tuple[str, str]

    def keep(self, response: Response) -> None:
        headers = MutableHeaders(raw=list(response.raw_headers))
        with_usual_headers(headers)
        self.recent.keep(self.look, self.asked, Answer(headers.raw, bytes(response.body)))
