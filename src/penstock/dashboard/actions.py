"""Actions on a running job: savepoint, checkpoint, stop, cancel. The dashboard's process.

The server writes a request into the job's storage and answers at once with its id; clients ask for the outcome later. A browser is
redirected to the Actions page, which shows the outcome, or the reason of a refusal.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.responses import json_answer, wants_page
from penstock.dashboard.status_poller import Seen
from penstock.decoding import decoded
from penstock.errors import ConfigError
from penstock.requests.request_client import ask, is_request_id, outcome
from penstock.requests.request_files import Kind
from penstock.savepoint.request import check_folder, refuse_outside
from penstock.status.view import JobView

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_MOST_FIELDS = 10
FORM = "application/x-www-form-urlencoded"


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of an action."""

    to: str | None = None
    """The folder of a savepoint; None: a new one beside the job."""
    savepoint: bool = False
    """Whether a stop makes a savepoint."""
    drain: bool = False
    """Whether a stop first closes all windows and fires all event-time timers."""


_WANTED = msgspec.json.Decoder(Wanted)


def allowed_actions(view: JobView) -> tuple[Kind, ...]:
    """The actions that the job accepts in its state."""
    return tuple(Kind) if view.state.is_alive else ()


Refused = Callable[[Request, Seen, HTTPException], Response]
"""Makes the page that shows why an action was refused."""


def action_routes(
    seen_job: Callable[[Request], Seen],
    refused: Refused,
    savepoints: Sequence[str] = (),
) -> list[Route]:
    """The routes for requests and their outcomes. `savepoints`: see `UiOptions.savepoints`."""

    async def act(request: Request) -> Response:
        seen = seen_job(request)
        kind = _kind(request.path_params["kind"])
        is_person = wants_page(request.method, request.scope["path"], request.headers.get("accept", ""))
        try:
            wanted = checked(kind, await read_wanted(request))
            by = f"dashboard on {platform.node()}, from {request.client.host if request.client else 'somewhere'}"
            asked = await run_in_threadpool(
                _ask, seen, kind, wanted, by=by, savepoints=savepoints, now=SYSTEM_CLOCK.wall()
            )
        except HTTPException as error:
            if not is_person:
                raise
            return refused(request, seen, error)
        path = f"/jobs/{quote(request.path_params['job'], safe='')}"
        if is_person:
            return RedirectResponse(f"{path}/actions?request={asked}", 303)
        result_path = f"{path}/requests/{asked}.json"
        answer = {"request": asked, "job": seen.view.name, "kind": kind, "outcome": result_path}
        return json_answer(answer, 202, {"Location": result_path})

    async def result(request: Request) -> Response:
        asked = request.path_params["request"]
        if not is_request_id(asked):
            raise HTTPException(404, f"{asked[:80]!r} is not a request id: an id has 32 hexadecimal digits")
        return json_answer(await run_in_threadpool(outcome, seen_job(request).job.storage, asked))

    return [
        Route("/jobs/{job}/actions/{kind}", act, methods=["POST"]),
        Route("/jobs/{job}/requests/{request}.json", result),
    ]


def _kind(text: str) -> Kind:
    try:
        return Kind(text)
    except ValueError:
        there = ", ".join(Kind)
        raise HTTPException(404, f"there is no action {text[:40]!r}; choose one of: {there}") from None


def checked(kind: Kind, wanted: Wanted) -> Wanted:
    """Refuse options that do not apply to this action, instead of ignoring them."""
    if wanted.drain and kind is not Kind.STOP:
        raise HTTPException(400, f"drain applies to a stop, not to a {kind}; nothing was done")
    if wanted.savepoint and kind is not Kind.STOP:
        raise HTTPException(400, f"savepoint=true applies to a stop, not to a {kind}; nothing was done")
    with_savepoint = kind is Kind.SAVEPOINT or wanted.savepoint
    if wanted.to is not None and not with_savepoint:
        raise HTTPException(
            400,
            f"to={wanted.to!r} is the folder of a savepoint, but the request makes none; nothing was done",
        )
    return wanted


def _ask(seen: Seen, kind: Kind, wanted: Wanted, *, by: str, savepoints: Sequence[str], now: float) -> str:
    """Raises 400 for a folder that is not allowed, 409 if the job is not running."""
    storage = seen.job.storage
    try:
        _refuse_relative(wanted.to)
        check_folder(storage, wanted.to)
        if wanted.to is not None:
            refuse_outside(wanted.to, [(storage, seen.job.name)], savepoints)
    except (ConfigError, ValueError, OSError) as error:
        raise HTTPException(400, str(error)) from error
    try:
        return ask(
            storage,
            kind,
            by=by,
            now=now,
            to=wanted.to,
            savepoint=wanted.savepoint,
            drain=wanted.drain,
        )
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error


def _refuse_relative(to: str | None) -> None:
    """Refuse a relative folder: the job and this server run in different folders."""
    if to is not None and not to.startswith("/") and ":/" not in to:
        raise ConfigError(
            f"the folder {to!r} is not an absolute path, and the job runs in another folder than this server; nothing was done; "
            "write a path that starts with /",
            folder=to,
        )


async def read_wanted(request: Request) -> Wanted:
    """The options from a form or a JSON object; an empty body has none."""
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == FORM:
            return _from_form(body)
        if body.strip():
            return decoded(_WANTED, body)
    except ValueError as error:
        raise HTTPException(
            400,
            f"the body cannot be decoded: {error}; nothing was done. The fields are to, savepoint, drain",
        ) from error
    return Wanted()


def _from_form(body: bytes) -> Wanted:
    pairs = parse_qsl(
        body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, encoding="utf-8", errors="strict"
    )
    fields: dict[str, Any] = dict(pairs)
    for name in ("savepoint", "drain"):
        if name in fields:
            fields[name] = _truth(name, fields[name])
    fields["to"] = fields.get("to") or None
    return msgspec.convert(fields, Wanted)


def _truth(name: str, text: str) -> bool:
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise ValueError(f"{name}={text[:40]!r} is neither true nor false")
