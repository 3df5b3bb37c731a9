"""Shows savepoints, and deletes them for the Savepoints page and for `flink savepoint -dispose`. The dashboard's process.

Invariants:
1. Only a folder with a readable manifest of Penstock is a savepoint. Only the files that it names are deleted, then the manifest, and then
   the folder if it is empty.
2. Nothing is deleted in the storage of a job, nor through a link inside the folder. The folder is held open from the first check to the
   last deletion: a folder that takes its place meanwhile is not touched.
3. The manifest is deleted last, so an interrupted disposal can be repeated.
4. A forged manifest could name any file beside it. So the folder, the manifest and every file must have the same owner, and each existing
   file must have the size and checksum of the manifest.
5. Only savepoints below a folder that this server may use are deleted. The journal of the job and the log record what is deleted and for
   whom, before it happens.
6. A folder is only read or deleted for a page if the job's journal names it.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO
from urllib.parse import parse_qsl, quote

import msgspec
import xxhash
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.status_poller import Seen
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.ownership.claim import JOB_FILE
from penstock.savepoint.contents import Contents, savepoint_contents
from penstock.savepoint.manifest import (
    MANIFEST,
    MOST_BYTES,
    Manifest,
    SavedFile,
    checked_manifest,
    read_manifest,
)
from penstock.savepoint.request import check_folder, refuse_outside, shown
from penstock.status.events import SavepointDeleted
from penstock.status.jobs import FoundJob
from penstock.status.journal import budget_of, segment_name
from penstock.storage import LocalStorage, open_storage
from penstock.storage.held_folder import BehindLinkError, HeldFolder
from penstock.wording import counted, size

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_TOKEN_DIGITS = 16
_NO_RUN = 0


def dispose(path: str, jobs: Sequence[FoundJob], *, folders: Sequence[str], by: str, now: float) -> int:
    """Delete the savepoint at a path or `file:` URI; returns the number of files. `jobs`: all known jobs.

    `folders`: savepoints below these, and beside a job, may be deleted. Raises `ConfigError`, `CorruptStateError` or
    `IncompatibleStateError` if it is no savepoint or may not be deleted; then nothing is deleted.
    """
    folder = opened(path)
    try:
        with _held(folder) as held:
            _refuse_in_a_job(held, path)
            for job in jobs:
                check_folder(job.storage, path)
            refuse_outside(path, [(job.storage, job.name) for job in jobs], folders)
            manifest = _manifest(held, folder)
            files = list(manifest.files)
            _refuse_of_others(held, folder, files)
            names = [*(file.path for file in files), MANIFEST]
            event = SavepointDeleted(at=now, run=_NO_RUN, folder=shown(folder), by=by, files=len(names))
            _record(event, [job for job in jobs if job.name == manifest.origin.job])
            return _deleted(held, folder, names)
    except OSError as error:
        raise UnavailableError(
            f"the savepoint {shown(folder)} could not be deleted completely: {error}; its manifest is deleted last, so make the folder "
            "writable and try again",
            folder=shown(folder),
        ) from error


def _refuse_of_others(held: HeldFolder, folder: LocalStorage, files: Iterable[SavedFile]) -> None:
    """Refuse a manifest of another user, and files that do not belong to the savepoint."""
    with held.opened(MANIFEST) as manifest:
        if os.fstat(manifest.fileno()).st_uid != held.owner:
            raise _not_its_own(folder, MANIFEST, "its owner is not the owner of the folder")
    for file in files:
        try:
            with held.opened(file.path) as found:
                if os.fstat(found.fileno()).st_uid != held.owner:
                    raise _not_its_own(folder, file.path, "its owner is not the owner of the folder")
                if os.fstat(found.fileno()).st_size != file.size or _checksum(found) != file.checksum:
                    raise _not_its_own(folder, file.path, "its size or checksum differs from the manifest")
        except FileNotFoundError:
            continue  # an interrupted disposal deleted it already
        except BehindLinkError as error:
            raise _behind_a_link(folder, file.path) from error


def _checksum(file: BinaryIO) -> str:
    digest = xxhash.xxh3_64()
    while part := file.read(_READ_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _not_its_own(folder: LocalStorage, name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{name} in {shown(folder)} does not belong to the savepoint: {why}; nothing was deleted; check the file, and delete it by hand",
        name=name,
    )


def _record(event: SavepointDeleted, jobs: Iterable[FoundJob]) -> None:
    """Log the deletion and write it to the journal. If this fails, nothing is deleted."""
    _log.warning("deleting savepoint %r, %s, for %s", event.folder, counted(event.files, "file"), event.by)
    for job in jobs:
        name = segment_name(event.at, SYSTEM_RANDOMNESS.token(_TOKEN_DIGITS), budget_of(event), 1)
        job.storage.put(name, msgspec.json.encode(event) + b"\n")


def _held(folder: LocalStorage) -> HeldFolder:
    try:
        return HeldFolder(folder.root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{folder.uri} is no savepoint: the folder does not exist; check the path", folder=folder.uri
        ) from error


def _manifest(held: HeldFolder, folder: LocalStorage) -> Manifest:
    """The manifest of the held folder. The path may lead elsewhere by now, so it is only read to explain a missing manifest."""
    _refuse_behind_a_link(held, folder, MANIFEST)
    if held.is_file(MANIFEST):
        return checked_manifest(held.read(MANIFEST, MOST_BYTES), folder)
    read_manifest(folder)
    raise ConfigError(
        f"{folder.uri} was replaced by another folder; nothing was deleted; try again", folder=folder.uri
    )


def _deleted(held: HeldFolder, folder: LocalStorage, names: Sequence[str]) -> int:
    for done, name in enumerate(names):
        try:
            held.delete(name)
        except BehindLinkError as error:
            raise ConfigError(
                f"{name} in {shown(folder)} is reached through a link that appeared just now: {counted(done, 'file')} of the savepoint "
                "were deleted, and nothing beyond the link; find out what makes links there, then try again",
                name=name,
            ) from error
    held.remove_if_empty()  # unless it has other files
    return len(names)


def opened(path: str) -> LocalStorage:
    """The folder at an absolute path or `file:` URI."""
    if not path.startswith(("/", "file:/")):
        raise ConfigError(
            f"{path!r} is not an absolute path; nothing was done; give a path that "
            "starts with /, or a file: URI",
            path=path,
        )
    try:
        folder = open_storage(path)
        folder.size(MANIFEST)
    except (OSError, ValueError) as error:  # the name is too long, or contains a null byte
        raise ConfigError(
            f"{path[:100]!r} cannot be a folder: {error}; nothing was done; choose another path"
        ) from error
    assert isinstance(folder, LocalStorage)  # these paths have no other kind of storage
    return folder


def _refuse_in_a_job(held: HeldFolder, path: str) -> None:
    """Refuse a folder in the storage of any job, even one that this server does not show."""
    if held.lies_below(JOB_FILE):
        raise ConfigError(
            f"{path} is in the storage of a job, and only the job deletes files there; nothing was deleted",
            path=path,
        )


def _refuse_behind_a_link(held: HeldFolder, folder: LocalStorage, name: str) -> None:
    """Refuse links before anything is deleted; `_deleted` refuses links that appear later."""
    try:
        held.is_file(name)
    except BehindLinkError as error:
        raise _behind_a_link(folder, name) from error


def _behind_a_link(folder: LocalStorage, name: str) -> ConfigError:
    return ConfigError(
        f"{name} in {shown(folder)} is a link, or is reached through one; nothing was deleted; Penstock makes no links in savepoints, "
        "so check the file, and delete it by hand",
        name=name,
    )


# ── the page of savepoints ─────────────────────────────────────────────────────────────────────────

LARGEST_MANIFEST_BYTES = 16 << 20
"""A larger manifest is not read here; `penstock inspect` reads it."""


def known_folder(seen: Seen, folder: str) -> str:
    """The folder, if the job's journal names it; else 404."""
    if folder in seen.view.savepoints:
        return folder
    raise HTTPException(
        404, f"the journal of job {seen.view.name} names no savepoint {folder[:200]!r}; nothing was done"
    )


def look_into(seen: Seen, folder: str, folders: Sequence[str]) -> Contents | str:
    """The contents of a savepoint, or why they cannot be shown."""
    try:
        refuse_outside(folder, [(seen.job.storage, seen.job.name)], folders)
        found = opened(folder).size(MANIFEST) or 0
        if found > LARGEST_MANIFEST_BYTES:
            return f"{MANIFEST} has {size(found)}, too much for this page; use penstock inspect {folder}"
        return savepoint_contents(folder)
    except PenstockError as error:
        return str(error)


def savepoint_routes(seen_job: Callable[[Request], Seen], folders: Sequence[str]) -> list[Route]:
    """`POST /jobs/{job}/savepoints/delete`, with the field `folder`."""

    async def delete(request: Request) -> Response:
        seen = seen_job(request)
        try:
            fields = dict(parse_qsl((await request.body()).decode(), max_num_fields=10))
        except ValueError as error:
            raise HTTPException(400, f"the body cannot be decoded: {error}; nothing was done") from error
        folder = known_folder(seen, fields.get("folder", ""))
        by = f"dashboard on {platform.node()}, from {request.client.host if request.client else 'somewhere'}"
        try:
            await run_in_threadpool(
                dispose, folder, [seen.job], folders=folders, by=by, now=SYSTEM_CLOCK.wall()
            )
        except ConfigError as error:
            raise HTTPException(409, str(error)) from error
        return RedirectResponse(f"/jobs/{quote(request.path_params['job'], safe='')}/savepoints", 303)

    return [Route("/jobs/{job}/savepoints/delete", delete, methods=["POST"])]
