"""A request for a savepoint: the folder where it goes, and the child process that creates it. Driver, and the command line.

A request may be performed by several attempts; `create` makes sure that only one of them creates the savepoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock import child_process
from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.checkpoint.model import Completed
from penstock.clock import Stopwatch
from penstock.errors import ConfigError, PenstockError, UnavailableError, error_named
from penstock.ids import SYSTEM_RANDOMNESS, CheckpointId, RunId
from penstock.log_fields import about
from penstock.long_work import working
from penstock.savepoint.create import ReportProgress, create_savepoint, made_before
from penstock.savepoint.manifest import MANIFEST, Manifest, read_manifest
from penstock.storage import HdfsStorage, LocalStorage, ObjectStorage, Storage, open_storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

OPENED_BY_ADDRESS = (LocalStorage, ObjectStorage, HdfsStorage)
"""Storages that another process of this machine can open: their address and its environment are enough."""
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
    """Make a savepoint of a checkpoint that is committed and held. A repeated token finds the savepoint that was made for it before.

    Each attempt has its own name, also in the folders that it creates: a run that was thought dead and the run that replaced it may both
    make one. `given_up` is polled: it returns true if there is no time to finish.
    """
    check_folder(job_storage, to)
    watch = Stopwatch()
    place, made = _made_before(job_storage, completed.job, to, token)
    if made is None:
        attempt = f"{token}-{SYSTEM_RANDOMNESS.token(ATTEMPT_DIGITS)}"
        place = place or savepoint_place(job_storage, completed, to=None, token=attempt)
        try:
            with working("making the savepoint", unit="subtask", job=completed.job) as reached:
                made = create_in_child_process(
                    job_storage,
                    completed,
                    place,
                    token=attempt,
                    committed=True,
                    report=reached,
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
    """Find the savepoint if the failure came after its manifest was written."""
    try:
        made = made_before(place, token)
        is_whole = made is not None and {file.path for file in made.files} <= set(place.names())
    except PenstockError as unread:
        raise UnavailableError(
            f"{error}; it is not known whether the savepoint {shown(place)} is complete, because it cannot be read: {unread}"
        ) from error
    if not is_whole:
        return None
    _log.warning("the savepoint %s is complete, although making it ended with: %s", shown(place), error)
    return made


def check_folder(job_storage: Storage, to: str | None) -> None:
    """Refuse a folder inside the job's own storage, where the job deletes files that no checkpoint names, and a folder that contains it."""
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
    """Refuse a folder that is neither below one of `folders` nor in the default folder of one of these jobs."""
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
    """The real location of a storage, with links resolved."""
    if isinstance(storage, LocalStorage):
        return Path(os.path.realpath(storage.root))
    return Path("/", *storage.uri.split("/"))


def savepoint_place(job_storage: Storage, completed: Completed, *, to: str | None, token: str) -> Storage:
    """The requested folder, or a new one next to the job's storage."""
    if to is not None:
        return open_storage(to)
    request, _, attempt = token.partition("-")
    name = "-".join(part[:TOKEN_DIGITS] for part in (request, attempt) if part)
    return open_storage(f"{_beside(job_storage, completed.job)}/{completed.checkpoint}-{name}")


def shown(place: Storage) -> str:
    """The path or URI of a storage, as a person would type it."""
    return str(place.root) if isinstance(place, LocalStorage) else place.uri


def _beside(job_storage: Storage, job: str) -> str:
    folder, _, _ = job_storage.uri.rpartition("/")
    return f"{folder}/{job}-savepoints"


def _made_before(
    job_storage: Storage, job: str, to: str | None, token: str
) -> tuple[Storage | None, Manifest | None]:
    """The requested folder, if any, and the savepoint that a run made for the same request before it died without answering."""
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


# ── the child process ─────────────────────────────────────────────────────────────────────────────


class ChildRequest(msgspec.Struct, frozen=True):
    """What the child process is to create."""

    storage: str
    checkpoint: int
    run: int
    to: str
    token: str
    committed: bool = False


class ChildReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of the child process, or why it failed."""

    done: int = 0
    of: int = 0
    failed: str = ""
    error: str = ""


_POLL_S = 0.2
_REQUESTS = msgspec.json.Decoder(ChildRequest)
_REPORTS = msgspec.json.Decoder(ChildReport)


def create_in_child_process(
    job_storage: Storage,
    completed: Completed,
    to: Storage,
    *,
    token: str,
    committed: bool = False,
    report: ReportProgress = lambda _done, _of: None,
    given_up: Callable[[], bool] = lambda: False,
) -> Manifest:
    """`create_savepoint` in a child process, if another process can reach both storages. `given_up`: whether to stop unfinished.

    The driver's Python has batches to plan, so another process with a low priority does the work. It ends with the driver: a savepoint
    whose driver is gone stays unfinished.
    """

    def report_unless_given_up(done: int, of: int) -> None:
        _refuse_if(given_up())
        report(done, of)

    if not (isinstance(job_storage, OPENED_BY_ADDRESS) and isinstance(to, OPENED_BY_ADDRESS)):
        return create_savepoint(
            job_storage, completed, to, token=token, committed=committed, report=report_unless_given_up
        )
    request = ChildRequest(job_storage.uri, completed.checkpoint, completed.run, to.uri, token, committed)
    with child_process.start_module(__name__, request) as child:
        for line in child.lines(_POLL_S):
            _refuse_if(given_up())
            with contextlib.suppress(msgspec.DecodeError):  # other output of a new Python is ignored
                _take(_REPORTS.decode(line or b""), report)
        if (status := child.wait()) != 0:
            raise UnavailableError(
                f"the process that makes the savepoint {to.uri} ended with {status}: {child.last_words()}",
                status=status,
            )
    return read_manifest(to)


def _refuse_if(given_up: bool) -> None:
    if given_up:
        raise UnavailableError("the job was cancelled while its savepoint was made, so there is no savepoint")


def _take(said: ChildReport, report: ReportProgress) -> None:
    if said.failed:
        raise error_named(said.error, said.failed)
    report(said.done, said.of)


def main(line: bytes) -> None:
    """In the child process: create the savepoint, and report progress."""
    request = _REQUESTS.decode(line)
    pa.set_cpu_count(1)  # leave the other cores to the job
    try:
        storage = open_storage(request.storage)
        name = CheckpointName(CheckpointId(request.checkpoint), RunId(request.run))
        create_savepoint(
            storage,
            read_metadata(storage, name),
            open_storage(request.to),
            token=request.token,
            committed=request.committed,
            report=lambda done, of: child_process.report(ChildReport(done, of)),
        )
    except Exception as error:  # noqa: BLE001 - raised again in the driver
        failed = ChildReport(failed=str(error) or type(error).__name__, error=type(error).__name__)
        child_process.report(failed)
