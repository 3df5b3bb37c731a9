"""Savepoints that a job's journal knows: what is in one, and deleting it. The dashboard's process.

Only a folder that the journal names and that this server may use for savepoints is looked into or deleted: see `UiOptions.savepoints`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.flink.disposal import dispose, opened
from penstock.dashboard.looking import Seen
from penstock.errors import ConfigError, PenstockError
from penstock.savepoint.contents import Contents, savepoint_contents
from penstock.savepoint.make import refuse_outside
from penstock.savepoint.manifest import MANIFEST
from penstock.wording import size

LARGEST_MANIFEST_BYTES = 16 << 20
"""A larger one is not looked into here: `penstock state` does that."""


def known_folder(seen: Seen, folder: str) -> str:
    """The folder, if the job's journal names it; 404 if not."""
    if folder in seen.view.savepoints:
        return folder
    raise HTTPException(
        404, f"the journal of job {seen.view.name} knows no savepoint {folder[:200]!r}; nothing was done"
    )


def look_into(seen: Seen, folder: str, folders: Sequence[str]) -> Contents | str:
    """What is in a savepoint, or why that cannot be shown."""
    try:
        refuse_outside(folder, [(seen.job.storage, seen.job.name)], folders)
        found = opened(folder).size(MANIFEST) or 0
        if found > LARGEST_MANIFEST_BYTES:
            return f"{MANIFEST} has {size(found)}, too much for this page; use penstock state {folder}"
        return savepoint_contents(folder)
    except PenstockError as error:
        return str(error)


def savepoint_routes(
    seen_job: Callable[[Request], Seen], folders: Sequence[str], clock: Clock = SYSTEM_CLOCK
) -> list[Route]:
    """`POST /jobs/{job}/savepoints/delete`, with the field `folder`."""

    async def delete(request: Request) -> Response:
        seen = seen_job(request)
        try:
            fields = dict(parse_qsl((await request.body()).decode(), max_num_fields=10))
        except ValueError as error:
            raise HTTPException(400, f"what was sent cannot be understood: {error}") from error
        folder = known_folder(seen, fields.get("folder", ""))
        by = f"dashboard on {platform.node()}, from {request.client.host if request.client else 'somewhere'}"
        try:
            await run_in_threadpool(dispose, folder, [seen.job], folders=folders, by=by, now=clock.wall())
        except ConfigError as error:
            raise HTTPException(409, str(error)) from error
        return RedirectResponse(f"/jobs/{quote(request.path_params['job'], safe='')}/savepoints", 303)

    return [Route("/jobs/{job}/savepoints/delete", delete, methods=["POST"])]
