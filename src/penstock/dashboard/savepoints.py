"""Deleting a savepoint, for `flink savepoint -dispose`. The dashboard's process.

What always holds:
1. Only what has a readable manifest of ours is a savepoint, and only the files that it names are deleted, then the manifest
   itself, and the folder if nothing else is in it.
2. Nothing is deleted in the storage of a job, nor behind a link inside the folder. The folder is held open from the first look to the
   last deed: whatever takes its place meanwhile is not touched.
3. The manifest goes last: a disposal that was interrupted can be repeated.
4. Whoever can write a manifest can name any file beside it. So the folder, the manifest and every file must have one owner, and each
   file that is there the size and checksum that the manifest says.
5. Only what lies below a folder that this server may use is deleted, and what was deleted for whom is recorded before, in the journal of
   the job and in the log.
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

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.dashboard.looking import Seen
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.ownership.claim import JOB_FILE
from penstock.savepoint.contents import Contents, savepoint_contents
from penstock.savepoint.make import check_folder, refuse_outside, shown
from penstock.savepoint.manifest import (
    MANIFEST,
    MOST_BYTES,
    Manifest,
    SavedFile,
    checked_manifest,
    read_manifest,
)
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
    """Delete the savepoint at a path or `file:` URI; says how many files that were. `jobs`: all that are known.

    `folders`: below these, and beside a job, savepoints may be deleted. Raises `ConfigError`, `CorruptStateError` or
    `IncompatibleStateError` when it is none, or none that may be deleted; nothing is deleted then.
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
            told = SavepointDeleted(at=now, run=_NO_RUN, folder=shown(folder), by=by, files=len(names))
            _record(told, [job for job in jobs if job.name == manifest.origin.job])
            return _deleted(held, folder, names)
    except OSError as error:
        raise UnavailableError(
            f"the savepoint {shown(folder)} could not be deleted, or not all of it: {error}; its manifest goes last, so see to it that it "
            "can be written there, and ask again",
            folder=shown(folder),
        ) from error


def _refuse_of_others(held: HeldFolder, folder: LocalStorage, files: Iterable[SavedFile]) -> None:
    """A manifest that somebody else has put there, or that names what the savepoint did not have, deletes nothing."""
    with held.opened(MANIFEST) as manifest:
        if os.fstat(manifest.fileno()).st_uid != held.owner:
            raise _not_its_own(folder, MANIFEST, "it belongs to another user than its folder")
    for file in files:
        try:
            with held.opened(file.path) as found:
                if os.fstat(found.fileno()).st_uid != held.owner:
                    raise _not_its_own(folder, file.path, "it belongs to another user than its folder")
                if os.fstat(found.fileno()).st_size != file.size or _checksum(found) != file.checksum:
                    raise _not_its_own(folder, file.path, "it has not the size and checksum of the manifest")
        except FileNotFoundError:
            continue  # a disposal that was interrupted
        except BehindLinkError as error:
            raise _behind_a_link(folder, file.path) from error


def _checksum(file: BinaryIO) -> str:
    digest = xxhash.xxh3_64()
    while part := file.read(_READ_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _not_its_own(folder: LocalStorage, name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{name} in {shown(folder)} is not of the savepoint: {why}; nothing was deleted; look at what it is, and delete it by hand",
        name=name,
    )


def _record(told: SavepointDeleted, jobs: Iterable[FoundJob]) -> None:
    """Before anything is deleted: where this fails, nothing is."""
    _log.warning("savepoint %r is deleted, %s, for %s", told.folder, counted(told.files, "file"), told.by)
    for job in jobs:
        name = segment_name(told.at, SYSTEM_RANDOMNESS.token(_TOKEN_DIGITS), budget_of(told), 1)
        job.storage.put(name, msgspec.json.encode(told) + b"\n")


def _held(folder: LocalStorage) -> HeldFolder:
    try:
        return HeldFolder(folder.root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{folder.uri} is no savepoint: nothing is there; check the path", folder=folder.uri
        ) from error


def _manifest(held: HeldFolder, folder: LocalStorage) -> Manifest:
    """That of the folder which is held; what the path leads to by now only says in words why there is none."""
    _refuse_behind_a_link(held, folder, MANIFEST)
    if held.is_file(MANIFEST):
        return checked_manifest(held.read(MANIFEST, MOST_BYTES), folder)
    read_manifest(folder)
    raise ConfigError(
        f"{folder.uri} has become another folder; nothing was deleted; ask again", folder=folder.uri
    )


def _deleted(held: HeldFolder, folder: LocalStorage, names: Sequence[str]) -> int:
    for done, name in enumerate(names):
        try:
            held.delete(name)
        except BehindLinkError as error:
            raise ConfigError(
                f"{name} in {shown(folder)} lies behind a link that has come in this moment: {counted(done, 'file')} of the savepoint "
                "were deleted, and nothing behind the link; see who makes links there, then ask again",
                name=name,
            ) from error
    held.remove_if_empty()  # unless somebody else's files are in it
    return len(names)


def opened(path: str) -> LocalStorage:
    """The folder at an absolute path, or a `file:` URI."""
    if not path.startswith(("/", "file:/")):
        raise ConfigError(
            f"{path!r} is no absolute path: what it means depends on where a process was started; nothing was done; give a path that "
            "begins with /, or a file: URI",
            path=path,
        )
    try:
        folder = open_storage(path)
        folder.size(MANIFEST)
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero in it
        raise ConfigError(
            f"{path[:100]!r} cannot be a folder: {error}; nothing was done; choose another path"
        ) from error
    assert isinstance(folder, LocalStorage)  # there is no other kind behind these
    return folder


def _refuse_in_a_job(held: HeldFolder, path: str) -> None:
    """Also in one that nobody has told this server of."""
    if held.lies_below(JOB_FILE):
        raise ConfigError(
            f"{path} lies in the storage of a job: nothing was deleted; what lies there is the job's own business",
            path=path,
        )


def _refuse_behind_a_link(held: HeldFolder, folder: LocalStorage, name: str) -> None:
    """Before anything is deleted; should a link come later, the deed refuses."""
    try:
        held.is_file(name)
    except BehindLinkError as error:
        raise _behind_a_link(folder, name) from error


def _behind_a_link(folder: LocalStorage, name: str) -> ConfigError:
    return ConfigError(
        f"{name} in {shown(folder)} is a link, or lies behind one: nothing was deleted; Penstock makes no links in savepoints, so look at "
        "what it is, and delete it by hand",
        name=name,
    )


# ── the page of savepoints ─────────────────────────────────────────────────────────────────────────

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
