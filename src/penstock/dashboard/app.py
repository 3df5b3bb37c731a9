"""The ASGI application: pages, their JSON, event streams, actions, Flink's REST interface, metrics. The dashboard's process."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.dashboard import pages
from penstock.dashboard.access import Access
from penstock.dashboard.actions import action_routes
from penstock.dashboard.flink import flink_routes
from penstock.dashboard.gate import Gate, Guesses, TooLargeError, asker, too_large
from penstock.dashboard.metrics import metrics_route
from penstock.dashboard.page_routes import Pages, seen_job
from penstock.dashboard.pages.render import PageFrame
from penstock.dashboard.responses import (
    StaticFiles,
    json_answer,
    local_path,
    page_answer,
    refused,
    with_cookie,
)
from penstock.dashboard.savepoint_disposal import savepoint_routes
from penstock.dashboard.state_reader import StateReader, lookup_routes
from penstock.dashboard.status_poller import Seen, StatusPoller
from penstock.dashboard.stream import Streams
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.version import __version__

_log = logging.getLogger(__name__)
_NOT_THE_TOKEN = "That is not the token of this dashboard."  # noqa: S105 - a sentence


def make_app(poller: StatusPoller, access: Access) -> ASGIApp:
    """All routes, protected by the gate. The poller starts and ends with the application."""
    states, guesses = StateReader(), Guesses()
    shown = Pages(poller, access, states)

    def seen(request: Request) -> Seen:
        return seen_job(poller, request)

    routes = [
        Route("/healthz", _healthz),
        *_login_routes(access, guesses),
        StaticFiles().route(),
        *Streams(poller).routes(seen),
        *action_routes(seen, shown.refused_action, access.savepoints),
        *savepoint_routes(seen, access.savepoints),
        *lookup_routes(seen, states),
        *shown.twin_routes(),
        *shown.browser_routes(),
        *flink_routes(poller, read_only=access.read_only, savepoints=access.savepoints),
        metrics_route(poller),
        *shown.page_routes(),
    ]
    inside = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            TooLargeError: _too_large,
            ClientDisconnect: _gone,
            PenstockError: _penstock_error,
            Exception: _unexpected,
        },
        lifespan=_lifespan(poller),
    )
    return Gate(inside, access, poller, guesses)


def _lifespan(poller: StatusPoller) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        poller.start()
        try:
            yield
        finally:
            await run_in_threadpool(poller.close)

    return lifespan


async def _healthz(_: Request) -> Response:
    """This is a Penstock dashboard. It needs no token, so it says nothing about jobs."""
    return json_answer({"penstock": __version__, "pid": os.getpid(), "status": "ok"})


def _login_routes(access: Access, guesses: Guesses) -> list[Route]:
    async def form(request: Request) -> Response:
        following = local_path(request.query_params.get("next", "/"))
        if not access.needs_token or access.is_logged_in(request.headers):
            return RedirectResponse(following, 303)
        given = request.query_params.get("token", "")
        if access.is_token(given):  # the printed address contains the token
            return with_cookie(RedirectResponse(following, 303), access, request)
        if given:
            await guesses.one_more(asker(request.scope))
        return page_answer(pages.login(PageFrame(), following=following))

    async def login(request: Request) -> Response:
        fields = parse_qs((await request.body()).decode(errors="replace"))
        following = local_path(fields.get("next", ["/"])[0])
        if not access.is_token(fields.get("token", [""])[0]):
            await guesses.one_more(asker(request.scope))
            return page_answer(pages.login(PageFrame(), _NOT_THE_TOKEN, following), 401)
        return with_cookie(RedirectResponse(following, 303), access, request)

    async def logout(request: Request) -> Response:
        access.log_out(request.headers)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(access.cookie_name, httponly=True, samesite="strict")
        return answer

    return [
        Route("/login", form, methods=["GET"]),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


# ── errors ─────────────────────────────────────────────────────────────────────────────────────────


_WHY = {
    "Not Found": "there is no such page; / shows all jobs, /index.json has them as JSON",
    "Method Not Allowed": "this path does not support that method; nothing was done",
}
"""Clearer texts for Starlette's own errors."""


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = _WHY.get(error.detail, error.detail)
    return refused(request, error.status_code, why, error.headers)


async def _gone(request: Request, _: Exception) -> Response:
    """The client is gone or was too slow, so it will hardly read this."""
    return refused(request, 408, "the request did not arrive in time; nothing was done")


async def _too_large(request: Request, _: Exception) -> Response:
    return too_large(request)


async def _penstock_error(request: Request, error: Exception) -> Response:
    """Map configuration errors to 400, unavailable storage to 503, anything else to 500."""
    if isinstance(error, ConfigError):
        return refused(request, 400, str(error))
    if isinstance(error, UnavailableError):
        return refused(request, 503, str(error), {"Retry-After": "5"})
    return refused(request, 500, str(error))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed: %r", request.method, request.url.path, error)
    why = f"{type(error).__name__} inside the dashboard: this is a bug in Penstock, please report it. The job is not affected"
    return refused(request, 500, why)
