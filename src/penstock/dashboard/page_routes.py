"""The routes of pages, each with its JSON. The dashboard's process.

Pages and Flink's REST interface share some paths, such as `/jobs/{job}`. A client that accepts `text/html` gets the page, any other gets
Flink's JSON. A savepoint's folder is only read or deleted if the journal names it and this server may use it: see `UiOptions.savepoints`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from urllib.parse import urlencode

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope
from typing_extensions import override

from penstock.dashboard import json_models, pages
from penstock.dashboard.access import Access
from penstock.dashboard.actions import allowed_actions
from penstock.dashboard.pages.render import PageFrame
from penstock.dashboard.responses import HTML, JSON, ResponseCache, json_answer, page_answer
from penstock.dashboard.savepoint_disposal import known_folder, look_into
from penstock.dashboard.state_reader import StateReader
from penstock.dashboard.status_poller import Seen, StatusPoller
from penstock.errors import ConfigError
from penstock.requests.request_client import Outcome, outcome
from penstock.status.view import CheckpointView, JobView

_CHECKPOINT = re.compile(r"(\d{1,18})-r(\d{1,18})")
_NUMBER = re.compile(r"[0-9]{1,6}")
Endpoint = Callable[[Request], Awaitable[Response]]
Render = Callable[..., str]
"""Renders its arguments and a `PageFrame` as HTML."""


class BrowserRoute(Route):
    """A route for clients that accept HTML."""

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        accept = next((value for name, value in scope.get("headers", ()) if name == b"accept"), b"")
        return super().matches(scope) if b"text/html" in accept else (Match.NONE, {})


class Pages:
    """The endpoints of pages and their JSON twins."""

    def __init__(self, poller: StatusPoller, access: Access, states: StateReader) -> None:
        self._poller = poller
        self._access = access
        self._states = states
        self._cache = ResponseCache()

    def paths(self) -> dict[str, tuple[str, Endpoint, Endpoint]]:
        """For each page: its path, its endpoint, and the endpoint of its twin."""
        return {
            "overview": ("/", *self._of_all()),
            "job": ("/jobs/{job}", *self._of_view(pages.job, json_models.job)),
            "checkpoints": (
                "/jobs/{job}/checkpoints",
                *self._of_view(pages.checkpoints, json_models.checkpoints, "page"),
            ),
            "batches": ("/jobs/{job}/batches", *self._of_view(pages.batches, json_models.batches)),
            "checkpoint": ("/jobs/{job}/checkpoints/{checkpoint}", self._checkpoint, self._checkpoint_twin),
            "failures": ("/jobs/{job}/failures", *self._of_view(pages.failures, json_models.failures)),
            "journal": (
                "/jobs/{job}/journal",
                *self._of_view(pages.journal, json_models.journal, "page", "routine"),
            ),
            "state": ("/jobs/{job}/state", self._state, self._state_twin),
            "savepoints": (
                "/jobs/{job}/savepoints",
                self._savepoints,
                self._of_view(pages.savepoints, json_models.savepoints)[1],
            ),
            "actions": ("/jobs/{job}/actions", self._actions, self._actions_twin),
        }

    def twin_routes(self) -> list[Route]:
        """The routes of the JSON twins."""
        return [Route(twin_of(path), twin) for path, _, twin in self.paths().values()]

    def browser_routes(self) -> list[Route]:
        """The routes for browsers, which take precedence over Flink's."""
        return [BrowserRoute(path, page) for path, page, _ in self.paths().values()]

    def page_routes(self) -> list[Route]:
        """The routes for all other clients, which come after Flink's."""
        return [Route(path, page) for path, page, _ in self.paths().values()]

    # ── all jobs ───────────────────────────────────────────────────────────────────────────────

    def _of_all(self) -> tuple[Endpoint, Endpoint]:
        async def page(request: Request) -> Response:
            frame = self._frame(request)
            return self._page(pages.overview, frame, self._mark(), lambda: (self._poller.views(),))

        async def twin(request: Request) -> Response:
            problems = self._poller.problems
            return self._twin(
                request, self._mark(), lambda: json_models.overview(self._poller.views(), problems)
            )

        return page, twin

    def _mark(self) -> Hashable:
        return tuple(one.looked_at for one in self._poller.all_seen()), self._poller.problems

    # ── one job ────────────────────────────────────────────────────────────────────────────────

    def _of_view(
        self, render: Render, twin_of_view: Callable[[JobView], object], *asked: str
    ) -> tuple[Endpoint, Endpoint]:
        """A page that shows only the view. `asked`: numbers that the query may contain, such as the page of a list."""

        async def page(request: Request) -> Response:
            seen, numbers = self._seen(request), _numbers(request, asked)
            frame = self._frame(request, query=f"?{urlencode(numbers)}" if numbers else "")
            return self._page(partial(render, **numbers), frame, seen.looked_at, lambda: (seen.view,))

        async def twin(request: Request) -> Response:
            seen = self._seen(request)
            return self._twin(request, seen.looked_at, lambda: twin_of_view(seen.view))

        return page, twin

    async def _checkpoint(self, request: Request) -> Response:
        seen, one = self._found_checkpoint(request)
        return self._page(pages.checkpoint, self._frame(request), seen.looked_at, lambda: (seen.view, one))

    async def _checkpoint_twin(self, request: Request) -> Response:
        seen, one = self._found_checkpoint(request)
        return self._twin(request, seen.looked_at, lambda: one)

    def _found_checkpoint(self, request: Request) -> tuple[Seen, CheckpointView]:
        seen = self._seen(request)
        asked = request.path_params["checkpoint"]
        match = _CHECKPOINT.fullmatch(asked)
        for one in seen.view.checkpoints if match else ():
            if match and (one.checkpoint, one.run) == (int(match[1]), int(match[2])):
                return seen, one
        raise HTTPException(
            404,
            f"job {seen.view.name} has no checkpoint {asked[:40]!r}: it is neither retained nor in the journal; "
            "write it as NUMBER-rRUN, as in the list of checkpoints",
        )

    async def _state(self, request: Request) -> Response:
        seen = self._seen(request)
        contents = await run_in_threadpool(self._states.contents, seen)
        return self._page(pages.state, self._frame(request), seen.looked_at, lambda: (seen.view, contents))

    async def _state_twin(self, request: Request) -> Response:
        return json_answer(await run_in_threadpool(self._states.contents, self._seen(request)))

    async def _savepoints(self, request: Request) -> Response:
        seen, folder = self._seen(request), request.query_params.get("folder", "")
        if not folder:
            return self._page(pages.savepoints, self._frame(request), seen.looked_at, lambda: (seen.view,))
        inside = await run_in_threadpool(look_into, seen, known_folder(seen, folder), self._access.savepoints)
        frame = self._frame(request, query=f"?{urlencode({'folder': folder})}")
        return page_answer(pages.savepoints(seen.view, frame, folder, inside))

    async def _actions(self, request: Request) -> Response:
        seen = self._seen(request)
        found = await self._outcome(request, seen)
        return self._page(
            pages.actions, self._frame(request), (seen.looked_at, found), lambda: (seen.view, found)
        )

    def refused_action(self, request: Request, seen: Seen, error: HTTPException) -> Response:
        """The page of actions, with the reason of a refusal."""
        frame = self._frame(request, request.scope["path"].rpartition("/")[0])
        return page_answer(pages.actions(seen.view, None, frame, error.detail), error.status_code)

    async def _actions_twin(self, request: Request) -> Response:
        seen = self._seen(request)
        allowed = () if self._access.read_only else allowed_actions(seen.view)
        return json_answer(json_models.actions(seen.view, allowed, await self._outcome(request, seen)))

    async def _outcome(self, request: Request, seen: Seen) -> Outcome | None:
        asked = request.query_params.get("request", "")
        return await run_in_threadpool(outcome, seen.job.storage, asked[:64]) if asked else None

    # ── answers ────────────────────────────────────────────────────────────────────────────────

    def _seen(self, request: Request) -> Seen:
        return seen_job(self._poller, request)

    def _frame(self, request: Request, of: str = "", query: str = "") -> PageFrame:
        path: str = of or request.scope["path"]
        return PageFrame(
            path=path,
            query=query,
            twin=twin_of(path),
            read_only=self._access.read_only,
            logged_in=self._access.needs_token,
            problems=self._poller.problems,
        )

    def _page(
        self, render: Render, frame: PageFrame, mark: Hashable, shown: Callable[[], tuple[object, ...]]
    ) -> Response:
        made = self._cache.get(frame, mark, lambda: render(*shown(), frame).encode())
        return Response(made, media_type=HTML)

    def _twin(self, request: Request, mark: Hashable, shown: Callable[[], object]) -> Response:
        made = self._cache.get(request.scope["path"], mark, lambda: msgspec.json.encode(shown()))
        return Response(made, media_type=JSON)


def _numbers(request: Request, names: Sequence[str]) -> dict[str, int]:
    """The numbers in the query; anything else is ignored."""
    found = {name: request.query_params.get(name, "") for name in names}
    return {name: int(text) for name, text in found.items() if _NUMBER.fullmatch(text)}


def twin_of(path: str) -> str:
    """The path of the JSON twin of a page."""
    return "/index.json" if path == "/" else f"{path}.json"


def seen_job(poller: StatusPoller, request: Request) -> Seen:
    """The job of a path; 404 with the names of all jobs if there is none."""
    asked = request.path_params["job"]
    seen = poller.seen(asked)
    if seen is not None:
        return seen
    try:
        poller.found(asked[:200])
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error
    raise HTTPException(503, f"job {asked[:200]!r} appeared just now; try again")
