"""Where savepoints of a job go, and the one place where one is made of a completed checkpoint. Driver, and the command line."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.checkpoint.completed import Completed
from penstock.clock import Stopwatch
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.log_fields import about
from penstock.progress import working
from penstock.savepoint.beside import create_beside
from penstock.savepoint.folder import made_before
from penstock.savepoint.manifest import MANIFEST, Manifest
from penstock.storage import LocalStorage, Storage, open_storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

TOKEN_DIGITS = 8
ATTEMPT_DIGITS = 8


def make_savepoint(
    job_storage: Storage,
    completed: Completed,
    *,
    to: str | None,
    token: str,
    given_up: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Make one of a checkpoint that is committed and held; says where it is. The same token again finds what was made for it before.

    Each attempt has a name of its own, also where it makes a folder itself: there may be one of a run that was thought dead, and one of
    the run that replaced it. `given_up`: asked again and again whether there is no time to finish it.
    """
    check_folder(job_storage, to)
    watch = Stopwatch()
    place, made = _made_before(job_storage, completed.job, to, token)
    if made is None:
        attempt = f"{token}-{SYSTEM_RANDOMNESS.token(ATTEMPT_DIGITS)}"
        place = place or savepoint_place(job_storage, completed, to=None, token=attempt)
        try:
            with working("making the savepoint", unit="subtask", job=completed.job) as reached:
                made = create_beside(
                    job_storage,
                    completed,
                    place,
                    token=attempt,
                    committed=True,
                    told=reached,
                    given_up=given_up,
                )
        except Exception as error:
            made = _whole_all_the_same(place, token, error)
            if made is None:
                raise
    where = "" if place is None else shown(place)
    _log.info(
        "savepoint of checkpoint %d of job %s is in %s",
        *(made.checkpoint, completed.job, where),
        extra=about(checkpoint=made.checkpoint),
    )
    return {"savepoint": where, "checkpoint": made.checkpoint, "took": duration(watch.seconds)}


def _whole_all_the_same(place: Storage, token: str, error: Exception) -> Manifest | None:
    """What failed may have failed after the manifest was written: then there is a savepoint."""
    try:
        made = made_before(place, token)
        is_whole = made is not None and {file.path for file in made.files} <= set(place.names())
    except PenstockError as unread:
        raise UnavailableError(
            f"{error}; it is not known whether the savepoint {shown(place)} is whole, for that cannot be read: {unread}"
        ) from error
    if not is_whole:
        return None
    _log.warning("the savepoint %s is whole, although its making ended with: %s", shown(place), error)
    return made


def check_folder(job_storage: Storage, to: str | None) -> None:
    """Refuse a folder in the job's own storage, where the job deletes what no checkpoint names, and one that has it inside."""
    if to is None:
        return
    job, place = _location(job_storage), _location(open_storage(to))
    if job == place or job in place.parents or place in job.parents:
        how = "is" if job == place else "is inside of" if job in place.parents else "has inside"
        raise ConfigError(
            f"the folder {to} for a savepoint {how} the job's own storage {shown(job_storage)}, where the job deletes what is not its own; "
            "nothing was made; choose a folder beside it, or leave it out: then one is made beside it",
            folder=to,
        )


def refuse_outside(to: str, jobs: Iterable[tuple[Storage, str]], folders: Iterable[str]) -> None:
    """Refuse a folder that lies neither below one of `folders` nor beside one of these jobs, where a request without a folder goes."""
    place = _location(open_storage(to))
    allowed = [_location(open_storage(one)) for one in folders]
    allowed += [_location(open_storage(_beside(storage, job))) for storage, job in jobs]
    if not any(one in place.parents for one in allowed):
        raise ConfigError(
            f"{to} is not below a folder that this server may use for savepoints: {', '.join(map(str, allowed)) or 'there is none'}; "
            "nothing was done. Start the server with --savepoints FOLDER, leave the folder out, or use the penstock command",
            folder=to,
        )


def _location(storage: Storage) -> Path:
    """Where a storage really is, whatever links lead there."""
    if isinstance(storage, LocalStorage):
        return Path(os.path.realpath(storage.root))
    return Path("/", *storage.uri.split("/"))


def savepoint_place(job_storage: Storage, completed: Completed, *, to: str | None, token: str) -> Storage:
    """The folder that somebody has named, or a new one beside that of the job."""
    if to is not None:
        return open_storage(to)
    request, _, attempt = token.partition("-")
    name = "-".join(part[:TOKEN_DIGITS] for part in (request, attempt) if part)
    return open_storage(f"{_beside(job_storage, completed.job)}/{completed.checkpoint}-{name}")


def shown(place: Storage) -> str:
    """As a person would type it."""
    return str(place.root) if isinstance(place, LocalStorage) else place.uri


def _beside(job_storage: Storage, job: str) -> str:
    folder, _, _ = job_storage.uri.rpartition("/")
    return f"{folder}/{job}-savepoints"


def _made_before(
    job_storage: Storage, job: str, to: str | None, token: str
) -> tuple[Storage | None, Manifest | None]:
    """The place, where somebody named one, and what a run that died before it could say so has made for the same request."""
    places = [open_storage(to)] if to is not None else _made_beside(job_storage, job, token)
    for place in places:
        made = made_before(place, token)
        if made is not None:
            return place, made
    return (places[0] if to is not None else None), None


def _made_beside(job_storage: Storage, job: str, token: str) -> list[Storage]:
    beside = _beside(job_storage, job)
    folders = (
        name.removesuffix(f"/{MANIFEST}")
        for name in open_storage(beside).names()
        if name.endswith(f"/{MANIFEST}")
    )
    return [open_storage(f"{beside}/{folder}") for folder in folders if f"-{token[:TOKEN_DIGITS]}-" in folder]
