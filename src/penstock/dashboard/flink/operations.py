"""Flink's asynchronous operations: savepoint, checkpoint, stop, cancel, and their status. The dashboard's process; may wait for storage.

The server keeps nothing: the id of a request names its files in the job's storage, so any server with that storage can report the status,
even after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from penstock.dashboard.flink.terms import Json, Refused
from penstock.dashboard.savepoint_disposal import opened
from penstock.errors import ConfigError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.requests.request_client import Outcome, ask, is_request_id, living_run, outcome
from penstock.requests.request_files import Done, Kind, answer, forget_requests, take_back
from penstock.savepoint.request import check_folder, refuse_outside
from penstock.status.jobs import FoundJob
from penstock.status.view import JobView
from penstock.storage import Storage

Format = Literal["CANONICAL", "NATIVE"]
"""Both select the only format of Penstock."""
GRACE_S = 30.0
"""How long after the end of a job its answer may still arrive."""
_RANDOM_DIGITS = 12
_SHORT_ID = 6
_LONGEST_PATH = 4096

_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")]
_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_PATH)]


class SavepointRequest(msgspec.Struct, frozen=True):
    """The body of `POST /jobs/:jobid/savepoints`."""

    target_directory: _Path | None = msgspec.field(default=None, name="target-directory")
    cancel_job: bool | None = msgspec.field(default=False, name="cancel-job")
    format_type: Format | None = msgspec.field(default=None, name="formatType")
    trigger_id: _Id | None = msgspec.field(default=None, name="triggerId")


class StopRequest(msgspec.Struct, frozen=True):
    """The body of `POST /jobs/:jobid/stop`."""

    target_directory: _Path | None = msgspec.field(default=None, name="targetDirectory")
    drain: bool | None = False
    format_type: Format | None = msgspec.field(default=None, name="formatType")
    trigger_id: _Id | None = msgspec.field(default=None, name="triggerId")


class CheckpointRequest(msgspec.Struct, frozen=True):
    """The body of `POST /jobs/:jobid/checkpoints`. Every checkpoint writes only what is new, so the type makes no difference."""

    checkpoint_type: Literal["CONFIGURED", "FULL", "INCREMENTAL"] | None = msgspec.field(
        default=None, name="checkpointType"
    )
    trigger_id: _Id | None = msgspec.field(default=None, name="triggerId")


class DisposalRequest(msgspec.Struct, frozen=True):
    """The body of `POST /savepoint-disposal`."""

    path: _Path = msgspec.field(name="savepoint-path")


# made before there are threads, see `snapshot.mailbox`
SAVEPOINT_REQUESTS = msgspec.json.Decoder(SavepointRequest)
STOP_REQUESTS = msgspec.json.Decoder(StopRequest)
CHECKPOINT_REQUESTS = msgspec.json.Decoder(CheckpointRequest)
DISPOSAL_REQUESTS = msgspec.json.Decoder(DisposalRequest)


def savepoint(
    job: FoundJob, request: SavepointRequest, *, by: str, now: float, savepoints: Sequence[str]
) -> str:
    """Request a savepoint. With `cancel-job`, request a stop with a savepoint: no row is processed between the two."""
    to = savepoint_folder(job, request.target_directory, savepoints)
    if request.cancel_job:
        return _ask(job, Kind.STOP, request.trigger_id, by=by, now=now, savepoint=True, to=to)
    return _ask(job, Kind.SAVEPOINT, request.trigger_id, by=by, now=now, to=to)


def stop(job: FoundJob, request: StopRequest, *, by: str, now: float, savepoints: Sequence[str]) -> str:
    """Request a stop with a savepoint."""
    to = savepoint_folder(job, request.target_directory, savepoints)
    return _ask(
        job, Kind.STOP, request.trigger_id, by=by, now=now, savepoint=True, drain=bool(request.drain), to=to
    )


def checkpoint(job: FoundJob, request: CheckpointRequest, *, by: str, now: float) -> str:
    """Request a checkpoint of the job now."""
    return _ask(job, Kind.CHECKPOINT, request.trigger_id, by=by, now=now)


def cancel(job: FoundJob, *, by: str, now: float) -> None:
    """Request that the job ends now. As in Flink, only the state of the job shows when it has ended."""
    _ask(job, Kind.CANCEL, None, by=by, now=now)


def _ask(job: FoundJob, kind: Kind, trigger: str | None, *, by: str, now: float, **options: Any) -> str:
    try:
        return ask(job.storage, kind, by=by, now=now, request=(trigger or "").lower(), **options)
    except ConfigError as error:
        raise Refused(409, str(error)) from error


def savepoint_folder(job: FoundJob, directory: str | None, savepoints: Sequence[str]) -> str | None:
    """A new folder in that directory, named as in Flink, so that a directory can be used repeatedly. None: beside the job.

    `savepoints`: the allowed folders, see `UiOptions.savepoints`.
    """
    if directory is None:
        return None
    above = opened(directory).root
    name = f"savepoint-{job.id[:_SHORT_ID]}-{SYSTEM_RANDOMNESS.token(_RANDOM_DIGITS)}"
    folder = str(above / name)
    check_folder(job.storage, folder)
    refuse_outside(folder, [(job.storage, job.name)], savepoints)
    return folder


# ── status ─────────────────────────────────────────────────────────────────────────────────────────

IN_PROGRESS: Json = {"status": {"id": "IN_PROGRESS"}, "operation": None}


def completed(operation: Json) -> Json:
    """The status of a completed operation."""
    return {"status": {"id": "COMPLETED"}, "operation": operation}


def savepoint_status(job: FoundJob, view: JobView, request: str, *, read_only: bool = False) -> Json:
    """`GET /jobs/:jobid/savepoints/:triggerid`, also for a stop."""
    found = _settled(job.storage, view, request, read_only=read_only)
    if not found.is_over:
        return IN_PROGRESS
    where = found.facts.get("savepoint")
    if not isinstance(where, str) or not where:
        raise Refused(404, f"request {request} was not for a savepoint")
    return completed({"location": opened(where).uri if where.startswith("/") else where})


def checkpoint_status(job: FoundJob, view: JobView, request: str, *, read_only: bool = False) -> Json:
    """`GET /jobs/:jobid/checkpoints/:triggerid`: the status of a checkpoint request."""
    found = _settled(job.storage, view, request, read_only=read_only)
    if not found.is_over:
        return IN_PROGRESS
    number = found.facts.get("checkpoint")
    if not isinstance(number, int) or "savepoint" in found.facts:
        raise Refused(404, f"request {request} was not for a checkpoint")
    return completed({"checkpointId": number})


def _settled(storage: Storage, view: JobView, request: str, *, read_only: bool) -> Outcome:
    """The outcome of a request; raises if none will come, because Flink's client would poll forever."""
    if not is_request_id(request):
        raise Refused(404, f"{request[:40]!r} is not a request id: an id has 32 hexadecimal digits")
    found = outcome(storage, request)
    if not found.is_over and living_run(storage, view.now) is None and _is_long_over(view):
        found = outcome(storage, request)  # the answer may have arrived meanwhile
        if not found.is_over:
            raise _no_answer(storage, view, found, read_only=read_only)
    if found.state == "unknown":
        raise Refused(
            404,
            f"job {view.name} has no request {request}: it was never made, or the job answered it more than an hour ago",
        )
    if found.state == "failed":
        raise Refused(500, found.error)
    return found


def _is_long_over(view: JobView) -> bool:
    return not view.state.is_alive and not view.supervised and view.now - view.since > GRACE_S


def _no_answer(storage: Storage, view: JobView, found: Outcome, *, read_only: bool) -> Refused:
    """Withdraw a request that no run accepted: a stop must not hit the next start of the job."""
    if read_only:
        return Refused(500, f"job {view.name} was {view.state} and did not answer the request")
    if found.state == "waiting" and take_back(storage, found.request):
        why = f"job {view.name} was {view.state} before it accepted the request; the request is withdrawn, nothing was done"
        answer(storage, found.request, Done.failed(why))
        forget_requests(storage, [found.request])
        return Refused(500, why)
    return Refused(
        500,
        f"job {view.name} was {view.state} during the request; after its next start, it continues the request or answers it",
    )
