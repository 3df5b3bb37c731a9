"""Server-sent events: a message for every change of a job, so that open pages update. The dashboard's process.

    event: change
    id: 17
    data: {"revision":17,"jobs":[{"id":"...","name":"views","state":"running", ...}]}

The first message has the state of all jobs. A comment every 15 seconds keeps proxies open and detects closed clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.access import MOST_STREAMS
from penstock.dashboard.json_models import Json
from penstock.dashboard.status_poller import EVERY_S, Seen, StatusPoller

HEARTBEAT_S = 15.0
RETRY_S = 10
_STREAM = "text/event-stream"
_HEARTBEAT = b": still here\n\n"
_FIRST = f"retry: {RETRY_S * 100}\n\n".encode()
"""A page whose stream ended reconnects after a second: the server may have restarted."""


class Streams:
    """The open event streams, at most `MOST_STREAMS` at a time."""

    def __init__(self, poller: StatusPoller) -> None:
        self._poller = poller
        self.open = 0

    def routes(self, seen_job: Callable[[Request], Seen]) -> list[Route]:
        """The routes for all jobs and for one job."""

        async def of_all(request: Request) -> Response:
            return self._stream(request, self._poller.all_seen)

        async def of_one(request: Request) -> Response:
            seen_job(request)
            asked = request.path_params["job"]

            def look() -> Sequence[Seen]:
                seen = self._poller.seen(asked)
                return () if seen is None else (seen,)

            return self._stream(request, look)

        return [
            Route("/events", of_all, methods=["GET"]),
            Route("/jobs/{job}/events", of_one, methods=["GET"]),
        ]

    def _stream(self, request: Request, look: Callable[[], Sequence[Seen]]) -> Response:
        if request.method == "HEAD":
            return Response(media_type=_STREAM)
        if self.open >= MOST_STREAMS:
            raise HTTPException(
                503,
                f"{MOST_STREAMS} event streams are open, which is the limit; close pages, or request the JSON of a page",
                {"Retry-After": str(RETRY_S)},
            )
        self.open += 1
        return _Streaming(self._messages(look), self._closed)

    def _closed(self) -> None:
        self.open -= 1

    async def _messages(self, look: Callable[[], Sequence[Seen]]) -> AsyncIterator[bytes]:
        yield _FIRST
        sent: dict[str, int] = {}
        sent_at = SYSTEM_CLOCK.monotonic()
        while True:
            change = changes(sent, look())
            now = SYSTEM_CLOCK.monotonic()
            if change is not None:
                sent_at = now
                yield _message(change)
            elif now - sent_at >= HEARTBEAT_S:
                sent_at = now
                yield _HEARTBEAT
            await asyncio.sleep(EVERY_S)


class _Streaming(StreamingResponse):
    """A stream that reports its end, even if it never began."""

    def __init__(self, messages: AsyncIterator[bytes], closed: Callable[[], None]) -> None:
        super().__init__(messages, media_type=_STREAM, headers={"X-Accel-Buffering": "no"})
        self._closed = closed

    async def __call__(self, *given: object) -> None:
        try:
            await super().__call__(*given)  # type: ignore[arg-type]
        finally:
            self._closed()


def changes(sent: dict[str, int], seen: Sequence[Seen]) -> Json | None:
    """The message for a client that knows these revisions, by id; None if nothing is new. Updates `sent`."""
    new = [one for one in seen if sent.get(one.job.id) != one.revision]
    gone = [id_ for id_ in sent if id_ not in {one.job.id for one in seen}]
    if not new and not gone:
        return None
    sent.update({one.job.id: one.revision for one in new})
    for id_ in gone:
        del sent[id_]
    newest = max((one.revision for one in seen), default=0)
    return {"revision": newest, "jobs": [_changed(one) for one in new], "gone": gone}


def _changed(seen: Seen) -> Json:
    """What a page needs to decide whether to reload a part."""
    view = seen.view
    last = view.last_completed
    return {
        "id": seen.job.id,
        "name": view.name,
        "revision": seen.revision,
        "state": view.state,
        "run": view.run,
        "batch": view.live.batch if view.live else -1,
        "checkpoint": last.checkpoint if last else -1,
        "checkpoints": len(view.checkpoints),
        "failures": len(view.failures),
        "pending": len(view.live.pending) if view.live else 0,
        "rows_per_s": view.live.rows_per_s if view.live and view.is_up else 0.0,
    }


def _message(change: Json) -> bytes:
    return b"event: change\nid: %d\ndata: %s\n\n" % (change["revision"], msgspec.json.encode(change))
