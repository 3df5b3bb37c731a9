"""The server as one ASGI application: pages, their JSON, event streams, actions, REST as Flink's client speaks it, metrics.

The dashboard's process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import parse_qs

import msgspec
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
from penstock.dashboard.looking import Seen, StorageLooker
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
from penstock.dashboard.savepoints import savepoint_routes
from penstock.dashboard.state_reader import StateReader, lookup_routes
from penstock.dashboard.stream import Streams
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.version import __version__

_log = logging.getLogger(__name__)
_NOT_THE_TOKEN = "That is not the token of this dashboard."  # noqa: S105 - a sentence


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`/healthz`: that a Penstock dashboard is here. Shown without a token, so it says nothing of jobs."""

    penstock: str
    pid: int
    status: str = "ok"


def make_app(looker: StorageLooker, access: Access, *, streams: Streams | None = None) -> ASGIApp:
    """All routes, behind the gate. The looker is started with the application and ends with it."""
    streams = streams or Streams(looker)
    states, guesses = StateReader(), Guesses()
    shown = Pages(looker, access, states)

    def seen(request: Request) -> Seen:
        return seen_job(looker, request)

    routes = [
        Route("/healthz", _healthz),
        *_login_routes(access, guesses),
        StaticFiles().route(),
        *streams.routes(seen),
        *action_routes(seen, shown.refused_action, access.savepoints),
        *savepoint_routes(seen, access.savepoints),
        *lookup_routes(seen, states),
        *shown.twin_routes(),
        *shown.browser_routes(),
        *_flink(looker, access),
        *_metrics(looker),
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
        lifespan=_lifespan(looker),
    )
    return Gate(inside, access, looker, guesses)


def _lifespan(looker: StorageLooker) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looker.start()
        try:
            yield
        finally:
            await run_in_threadpool(looker.close)

    return lifespan


# ── what others have written ───────────────────────────────────────────────────────────────────────


def _flink(looker: StorageLooker, access: Access) -> list[Route]:
    """Flink's REST interface, under `/v1` and without."""
    return list(flink_routes(looker, read_only=access.read_only, savepoints=access.savepoints))


def _metrics(looker: StorageLooker) -> list[Route]:
    """`/metrics` for Prometheus."""
    return [metrics_route(looker)]


# ── small ones ─────────────────────────────────────────────────────────────────────────────────────


async def _healthz(_: Request) -> Response:
    return json_answer(Health(penstock=__version__, pid=os.getpid()))


def _login_routes(access: Access, guesses: Guesses) -> list[Route]:
    async def form(request: Request) -> Response:
        following = local_path(request.query_params.get("next", "/"))
        if not access.needs_token or access.is_logged_in(request.headers):
            return RedirectResponse(following, 303)
        given = request.query_params.get("token", "")
        if access.is_token(given):  # of the address that was printed
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


# ── what went wrong ────────────────────────────────────────────────────────────────────────────────


_WHY = {
    "Not Found": "there is nothing here; / shows all jobs, /index.json the same for programs",
    "Method Not Allowed": "this path cannot be asked like that; nothing was done",
}
"""Better than what Starlette says by itself."""


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = _WHY.get(error.detail, error.detail)
    return refused(request, error.status_code, why, error.headers)


async def _gone(request: Request, _: Exception) -> Response:
    """Nobody reads this: the client is gone, or was too slow."""
    return refused(request, 408, "the request did not come in time; nothing was done")


async def _too_large(request: Request, _: Exception) -> Response:
    return too_large(request)


async def _penstock_error(request: Request, error: Exception) -> Response:
    """What is wrong in the question, what does not answer, and what is damaged."""
    if isinstance(error, ConfigError):
        return refused(request, 400, str(error))
    if isinstance(error, UnavailableError):
        return refused(request, 503, str(error), {"Retry-After": "5"})
    return refused(request, 500, str(error))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s could not be answered: %r", request.method, request.url.path, error)
    why = f"{type(error).__name__} inside of the dashboard: this is a bug in Penstock, please report it. The job is not touched by it"
    return refused(request, 500, why)
