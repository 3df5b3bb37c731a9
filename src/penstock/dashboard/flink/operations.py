"""What Flink's client asks of a running job, and how it is told what came of it. The dashboard's process; may wait for storage.

The server remembers nothing: the id of a request is the name of its files in the job's storage, so whoever knows it can ask any server that
reaches the storage, also after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from penstock.dashboard.flink.terms import Json, Refused
from penstock.dashboard.savepoints import opened
from penstock.errors import ConfigError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.requests.request_client import Outcome, ask, is_request_id, living_run, outcome
from penstock.requests.request_files import Done, Kind, answer, forget_requests, take_back
from penstock.savepoint.make import check_folder, refuse_outside
from penstock.status.jobs import FoundJob
from penstock.status.view import JobView
from penstock.storage import Storage

Format = Literal["CANONICAL", "NATIVE"]
"""Both give the one format that Penstock has."""
GRACE_S = 30.0
"""So long after a job has ended its answer may still be on the way."""
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
    """The body of `POST /jobs/:jobid/checkpoints`. What is new is all that a checkpoint ever writes, so the type makes no difference."""

    checkpoint_type: Literal["CONFIGURED", "FULL", "INCREMENTAL"] | None = msgspec.field(
        default=None, name="checkpointType"
    )
    trigger_id: _Id | None = msgspec.field(default=None, name="triggerId")


class DisposalRequest(msgspec.Struct, frozen=True):
    """The body of `POST /savepoint-disposal`."""

    path: _Path = msgspec.field(name="savepoint-path")


SAVEPOINT_REQUESTS = msgspec.json.Decoder(
    SavepointRequest
)  # made before there are threads, see `snapshot.mailbox`
STOP_REQUESTS = msgspec.json.Decoder(StopRequest)
CHECKPOINT_REQUESTS = msgspec.json.Decoder(CheckpointRequest)
DISPOSAL_REQUESTS = msgspec.json.Decoder(DisposalRequest)


def savepoint(
    job: FoundJob, wish: SavepointRequest, *, by: str, now: float, savepoints: Sequence[str]
) -> str:
    """Ask for a savepoint. With `cancel-job` that is a stop with a savepoint: one request, and no row between the two."""
    to = savepoint_folder(job, wish.target_directory, savepoints)
    if wish.cancel_job:
        return _ask(job, Kind.STOP, wish.trigger_id, by=by, now=now, savepoint=True, to=to)
    return _ask(job, Kind.SAVEPOINT, wish.trigger_id, by=by, now=now, to=to)


def stop(job: FoundJob, wish: StopRequest, *, by: str, now: float, savepoints: Sequence[str]) -> str:
    """Ask it to stop with a savepoint."""
    to = savepoint_folder(job, wish.target_directory, savepoints)
    return _ask(
        job, Kind.STOP, wish.trigger_id, by=by, now=now, savepoint=True, drain=bool(wish.drain), to=to
    )


def checkpoint(job: FoundJob, wish: CheckpointRequest, *, by: str, now: float) -> str:
    """Ask for a checkpoint now."""
    return _ask(job, Kind.CHECKPOINT, wish.trigger_id, by=by, now=now)


def cancel(job: FoundJob, *, by: str, now: float) -> None:
    """Ask it to end now. Flink does not say when that has happened, and nor does this: its state does."""
    _ask(job, Kind.CANCEL, None, by=by, now=now)


def _ask(job: FoundJob, kind: Kind, trigger: str | None, *, by: str, now: float, **options: Any) -> str:
    try:
        return ask(job.storage, kind, by=by, now=now, request=(trigger or "").lower(), **options)
    except ConfigError as error:
        raise Refused(409, str(error)) from error


def savepoint_folder(job: FoundJob, directory: str | None, savepoints: Sequence[str]) -> str | None:
    """A new folder in that directory, named as Flink would: the same directory can be given again and again. None: beside the job.

    `savepoints`: folders below which it may be, see `UiOptions`.
    """
    if directory is None:
        return None
    above = opened(directory).root
    name = f"savepoint-{job.id[:_SHORT_ID]}-{SYSTEM_RANDOMNESS.token(_RANDOM_DIGITS)}"
    folder = str(above / name)
    check_folder(job.storage, folder)
    refuse_outside(folder, [(job.storage, job.name)], savepoints)
    return folder


# ── what came of it ────────────────────────────────────────────────────────────────────────────

IN_PROGRESS: Json = {"status": {"id": "IN_PROGRESS"}, "operation": None}


def completed(operation: Json) -> Json:
    """The answer to whoever polls, when it is done."""
    return {"status": {"id": "COMPLETED"}, "operation": operation}


def savepoint_status(job: FoundJob, view: JobView, request: str, *, read_only: bool = False) -> Json:
    """`GET /jobs/:jobid/savepoints/:triggerid`: also for a stop."""
    found = _settled(job.storage, view, request, read_only=read_only)
    if not found.is_over:
        return IN_PROGRESS
    where = found.facts.get("savepoint")
    if not isinstance(where, str) or not where:
        raise Refused(404, f"request {request} was not for a savepoint")
    return completed({"location": opened(where).uri if where.startswith("/") else where})


def checkpoint_status(job: FoundJob, view: JobView, request: str, *, read_only: bool = False) -> Json:
    """`GET /jobs/:jobid/checkpoints/:triggerid`."""
    found = _settled(job.storage, view, request, read_only=read_only)
    if not found.is_over:
        return IN_PROGRESS
    number = found.facts.get("checkpoint")
    if not isinstance(number, int) or "savepoint" in found.facts:
        raise Refused(404, f"request {request} was not for a checkpoint")
    return completed({"checkpointId": number})


def _settled(storage: Storage, view: JobView, request: str, *, read_only: bool) -> Outcome:
    """What has become of it; raises where nothing will, because Flink's client would ask for ever."""
    if not is_request_id(request):
        raise Refused(404, f"{request[:40]!r} is no id of a request: 32 hexadecimal digits")
    found = outcome(storage, request)
    if not found.is_over and living_run(storage, view.now) is None and _is_long_over(view):
        found = outcome(storage, request)  # its answer may have come between the two
        if not found.is_over:
            raise _nobody_is_left(storage, view, found, read_only=read_only)
    if found.state == "unknown":
        raise Refused(
            404,
            f"job {view.name} knows no request {request}: it was never asked, or was answered more than an hour ago",
        )
    if found.state == "failed":
        raise Refused(500, found.error)
    return found


def _is_long_over(view: JobView) -> bool:
    return not view.state.is_alive and not view.supervised and view.now - view.since > GRACE_S


def _nobody_is_left(storage: Storage, view: JobView, found: Outcome, *, read_only: bool) -> Refused:
    """A request that nobody has taken on is taken back: a stop must not meet the next start of the job."""
    if read_only:
        return Refused(500, f"job {view.name} was {view.state}, and has not answered the request")
    if found.state == "waiting" and take_back(storage, found.request):
        why = f"job {view.name} was {view.state} before it took the request on; the request is taken back, nothing was done"
        answer(storage, found.request, Done.failed(why))
        forget_requests(storage, [found.request])
        return Refused(500, why)
    return Refused(
        500,
        f"job {view.name} was {view.state} while it was at it; when it is started again, it goes on with the request or answers it",
    )
