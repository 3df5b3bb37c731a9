"""What can be asked of a running job from here: savepoint, checkpoint, stop, cancel. The dashboard's process.

A request is left in the job's storage, and answered at once with its id; what has become of it is asked for later. A browser is sent on
to the page of actions, which shows it; a wish that is refused comes back as that page, too, with the reason on top.
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

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.looking import Seen
from penstock.dashboard.responses import json_answer, wants_page
from penstock.decoding import decoded
from penstock.errors import ConfigError
from penstock.requests.request_client import ask, is_request_id, outcome
from penstock.requests.request_files import Kind
from penstock.savepoint.make import check_folder, refuse_outside
from penstock.status.view import JobView

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_MOST_FIELDS = 10
FORM = "application/x-www-form-urlencoded"


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What comes with an action."""

    to: str | None = None
    """Of a savepoint: its folder. None: a new one beside the job."""
    savepoint: bool = False
    """Of a stop: with a savepoint."""
    drain: bool = False
    """Of a stop: close all windows and fire all timers by event time before."""


class AskedFor(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: what has become of it is told at `outcome`."""

    request: str
    job: str
    kind: Kind
    outcome: str


_WANTED = msgspec.json.Decoder(Wanted)


def allowed_actions(view: JobView) -> tuple[Kind, ...]:
    """What makes sense to ask of a job as it is."""
    return tuple(Kind) if view.state.is_alive else ()


Refused = Callable[[Request, Seen, HTTPException], Response]
"""The page that says to a person what was refused, and why."""


def action_routes(
    seen_job: Callable[[Request], Seen],
    refused: Refused,
    savepoints: Sequence[str] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> list[Route]:
    """Asking, and what has become of it. `savepoints`: folders below which they may be made, see `UiOptions`."""

    async def act(request: Request) -> Response:
        seen = seen_job(request)
        kind = _kind(request.path_params["kind"])
        is_person = wants_page(request.method, request.scope["path"], request.headers.get("accept", ""))
        try:
            wanted = checked(kind, await read_wanted(request))
            by = f"dashboard on {platform.node()}, from {request.client.host if request.client else 'somewhere'}"
            asked = await run_in_threadpool(
                _ask, seen, kind, wanted, by=by, savepoints=savepoints, now=clock.wall()
            )
        except HTTPException as error:
            if not is_person:
                raise
            return refused(request, seen, error)
        path = f"/jobs/{quote(request.path_params['job'], safe='')}"
        if is_person:
            return RedirectResponse(f"{path}/actions?request={asked}", 303)
        told = AskedFor(request=asked, job=seen.view.name, kind=kind, outcome=f"{path}/requests/{asked}.json")
        return json_answer(told, 202, {"Location": told.outcome})

    async def told(request: Request) -> Response:
        asked = request.path_params["request"]
        if not is_request_id(asked):
            raise HTTPException(404, f"{asked[:80]!r} is no request: an id has 32 hexadecimal digits")
        return json_answer(await run_in_threadpool(outcome, seen_job(request).job.storage, asked))

    return [
        Route("/jobs/{job}/actions/{kind}", act, methods=["POST"]),
        Route("/jobs/{job}/requests/{request}.json", told),
    ]


def _kind(text: str) -> Kind:
    try:
        return Kind(text)
    except ValueError:
        there = ", ".join(Kind)
        raise HTTPException(404, f"a job cannot be asked for {text[:40]!r}; there are: {there}") from None


def checked(kind: Kind, wanted: Wanted) -> Wanted:
    """Refuse what does not belong together: it may be what the asker cares about."""
    if wanted.drain and kind is not Kind.STOP:
        raise HTTPException(400, f"drain belongs to a stop, not to a {kind}; nothing was done")
    if wanted.savepoint and kind is not Kind.STOP:
        raise HTTPException(400, f"savepoint=true belongs to a stop, not to a {kind}; nothing was done")
    with_savepoint = kind is Kind.SAVEPOINT or wanted.savepoint
    if wanted.to is not None and not with_savepoint:
        raise HTTPException(
            400, f"to={wanted.to!r} is a folder for a savepoint, and none was asked for; nothing was done"
        )
    return wanted


def _ask(seen: Seen, kind: Kind, wanted: Wanted, *, by: str, savepoints: Sequence[str], now: float) -> str:
    """Raises 400 for a folder that is not allowed, 409 when the job does not run."""
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
    """Relative to what? The job and this server run in different folders."""
    if to is not None and not to.startswith("/") and ":/" not in to:
        raise ConfigError(
            f"the folder {to!r} is not a whole path, and the job runs in another folder than this server; nothing was done; write it from "
            "/ on",
            folder=to,
        )


async def read_wanted(request: Request) -> Wanted:
    """The fields of a form, or of a JSON object; nothing at all is an empty one."""
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
            f"what was sent cannot be understood: {error}; nothing was done. Fields are to, savepoint, drain",
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
