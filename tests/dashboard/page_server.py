"""The pages of jobs that were made by hand, served on loopback under the strictest rules that a browser knows. For the tests in a browser.

What is shown can be changed while a page is open, and the connection can be cut: `show`, `cut`, `heal`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import penstock.dashboard
from builders.job_views import held
from penstock.dashboard import pages
from penstock.dashboard.pages.render import PageFrame, slug
from penstock.requests.request_client import Outcome
from penstock.status.stored_state import FoundRows, KeyRows, LargestKeys
from penstock.status.view import JobView

STATIC = Path(penstock.dashboard.__file__).parent / "static"
CSP = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
REQUEST = "0123456789abcdef" * 2


LARGE = 9_007_199_254_740_995
"""A number of 64 bits that a browser's own numbers cannot hold."""


class PageServer:
    """One server of views, in a thread."""

    def __init__(self, views: list[JobView], *, read_only: bool = False) -> None:
        self.views = {slug(view): view for view in views}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.outcome = Outcome(request=REQUEST, state="waiting")
        self.read_only = read_only
        self.url = ""
        self._revision = 0
        self._is_cut = False

    def show(self, *views: JobView) -> None:
        """Show these from now on, and tell every page that is open."""
        self.views.update({slug(view): view for view in views})
        self._revision += 1

    def cut(self) -> None:
        """End all streams, and answer nothing."""
        self._is_cut = True

    def heal(self) -> None:
        """Answer again."""
        self._is_cut = False

    @contextmanager
    def serving(self) -> Iterator[PageServer]:
        """Serve inside the block, at `url`."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(self._app(), log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield self
        finally:
            self._is_cut = True
            server.should_exit = True
            thread.join()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._overview),
                Route("/events", self._events),
                Route("/jobs/{job}", self._page),
                Route("/jobs/{job}/events", self._events),
                Route("/jobs/{job}/actions/{kind}", self._act, methods=["POST"]),
                Route("/jobs/{job}/checkpoints/{one}", self._checkpoint),
                Route("/jobs/{job}/state/{operator}/{state}.html", self._lookup),
                Route("/jobs/{job}/{page}", self._page),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._strict)],
        )

    async def _strict(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if self._is_cut and not request.url.path.startswith("/static"):
            return Response("cut", 503)
        answer = await call_next(request)
        answer.headers["Content-Security-Policy"] = CSP
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _frame(self, request: Request) -> PageFrame:
        path = request.url.path
        return PageFrame(
            path=path,
            query=f"?{request.url.query}" if request.url.query else "",
            twin=f"{path}.json" if path != "/" else "/index.json",
            read_only=self.read_only,
        )

    async def _overview(self, request: Request) -> Response:
        return HTMLResponse(pages.overview(list(self.views.values()), self._frame(request)))

    async def _page(self, request: Request) -> Response:
        view, frame = self.views.get(request.path_params["job"]), self._frame(request)
        if view is None:
            return HTMLResponse(pages.problem(404, "There is no such job.", frame), 404)
        match request.path_params.get("page", ""):
            case "":
                return HTMLResponse(pages.job(view, frame))
            case "state":
                return HTMLResponse(pages.state(view, held(), frame))
            case "actions":
                outcome = self.outcome if "request" in request.query_params else None
                return HTMLResponse(pages.actions(view, outcome, frame))
            case "batches" | "savepoints" | "checkpoints" | "failures" | "journal" as name:
                asked = {name: int(text) for name, text in request.query_params.items()}
                return HTMLResponse(getattr(pages, name)(view, frame, **asked))
            case other:
                return HTMLResponse(pages.problem(404, f"There is no page {other}.", frame), 404)

    async def _checkpoint(self, request: Request) -> Response:
        view = self.views[request.path_params["job"]]
        wanted = request.path_params["one"]
        one = next(one for one in view.checkpoints if f"{one.checkpoint}-r{one.run}" == wanted)
        return HTMLResponse(pages.checkpoint(view, one, self._frame(request)))

    async def _act(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
        self.asked.append((request.path_params["kind"], form))
        return RedirectResponse(f"/jobs/{request.path_params['job']}/actions?request={REQUEST}", 303)

    async def _lookup(self, request: Request) -> Response:
        facts: dict[str, Any] = {
            "operator": request.path_params["operator"],
            "state": request.path_params["state"],
            "kind": "windows",
            "checkpoint": 5117,
            "run": 3,
            "columns": {"app": "string", "views": "string", "order": "bigint"},
            "looked_at": 12_000,
            "complete": "largest" not in request.query_params,
            "why": "only 2,000,000 rows are read",
            "took_s": 0.04,
        }
        if "largest" in request.query_params:
            keys = (KeyRows(key={"app": "<b>app-1</b>"}, rows=3), KeyRows(key={"app": "app-2"}, rows=1))
            return HTMLResponse(pages.found(LargestKeys(**facts, keys=keys)))
        asked = {name.removeprefix("key."): value for name, value in request.query_params.items()}
        rows = ({**asked, "views": "<b>12</b>", "order": LARGE},)
        return HTMLResponse(pages.found(FoundRows(**facts, key=asked, rows=rows)))

    async def _events(self, request: Request) -> Response:
        async def told() -> AsyncIterator[str]:
            seen = -1
            while not self._is_cut and not await request.is_disconnected():
                if seen != self._revision:
                    seen = self._revision
                    yield f"data: {seen}\n\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(told(), media_type="text/event-stream")


def later(view: JobView, seconds: float, **changes: object) -> JobView:
    """The same job a while later."""
    return msgspec.structs.replace(view, now=view.now + seconds, **changes)
