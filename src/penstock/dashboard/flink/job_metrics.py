"""A job's metrics under Flink's names: what `/jobs/:jobid/metrics` and Prometheus both show. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.dashboard.flink.words import Json, millis, started_at
from penstock.status.events import RunStarted
from penstock.status.view import JobState, JobView

Value = int | float

DESCRIBED = {
    "numRestarts": "Restarts of the job by itself, since it was started",
    "uptime": "Milliseconds that the job has been running without interruption",
    "downtime": "Milliseconds that a job which is failing or recovering has been down, 0 when it runs",
    "numberOfCompletedCheckpoints": "Checkpoints completed since the job was started",
    "numberOfFailedCheckpoints": "Checkpoints given up since the job was started",
    "numberOfInProgressCheckpoints": "Checkpoints under way",
    "totalNumberOfCheckpoints": "Checkpoints triggered since the job was started",
    "lastCheckpointDuration": "Milliseconds that the last completed checkpoint took",
    "lastCheckpointSize": "Bytes that the last completed checkpoint wrote anew",
    "lastCheckpointFullSize": "Bytes of all state in the last completed checkpoint",
    "lastCheckpointId": "The number of the last completed checkpoint",
    "lastCheckpointCompletedTimestamp": "When it was completed, in milliseconds since the epoch",
    "lastCheckpointRestoreTimestamp": "When the job last went back to a checkpoint, in milliseconds since the epoch",
    "lastCheckpointProcessedData": "Bytes processed while a barrier was aligned: none, it stands between two batches",
    "lastCheckpointPersistedData": "Bytes of rows under way that were stored: none, for the same reason",
}
"""Flink's names, and what they are here. -1, as with Flink: there is none yet."""


def job_metrics(view: JobView) -> dict[str, Value]:
    """Each of `DESCRIBED`."""
    last = view.last_completed
    return {
        "numRestarts": view.restarts,
        "uptime": _uptime_ms(view),
        "downtime": _downtime_ms(view),
        **_counts(view),
        "lastCheckpointDuration": -1 if last is None else round(last.duration_ms),
        "lastCheckpointSize": -1 if last is None else last.new_bytes,
        "lastCheckpointFullSize": -1 if last is None else last.state_bytes,
        "lastCheckpointId": -1 if last is None else last.checkpoint,
        "lastCheckpointCompletedTimestamp": -1 if last is None else millis(last.completed_at),
        "lastCheckpointRestoreTimestamp": _restored_ms(view),
        "lastCheckpointProcessedData": 0,
        "lastCheckpointPersistedData": 0,
    }


def listed(values: dict[str, Value], wanted: str | None) -> list[Json]:
    """As a call answers: the names of all, or the values of those that are asked for. What is unknown is left out, as with Flink."""
    if wanted is None:
        return [{"id": name} for name in values]
    return [{"id": name, "value": str(values[name])} for name in _names(wanted) if name in values]


def _names(wanted: str) -> Iterable[str]:
    return (name.strip() for name in wanted.split(","))


def _counts(view: JobView) -> dict[str, Value]:
    """Since this start of the job, as long as it says so; then of the history that is known."""
    live, summary = view.live, view.summary
    completed, failed = (
        (summary.completed, summary.failed)
        if live is None
        else (live.checkpoints_completed, live.checkpoints_failed)
    )
    return {
        "numberOfCompletedCheckpoints": completed,
        "numberOfFailedCheckpoints": failed,
        "numberOfInProgressCheckpoints": summary.in_progress,
        "totalNumberOfCheckpoints": completed + failed + summary.in_progress,
    }


def _uptime_ms(view: JobView) -> int:
    """-1 for a job that is over; 0 while it does not process."""
    if not view.state.is_alive:
        return -1
    if view.state is JobState.RESTARTING:
        return 0
    since = view.runs[0].started_at if view.runs else started_at(view)
    return max(0, millis(view.now - since)) if since else 0


def _downtime_ms(view: JobView) -> int:
    """Also of a job that died or failed: nobody wanted that, and it lasts."""
    down = view.state is JobState.RESTARTING or view.state.is_down
    if not down:
        return 0
    since = view.failures[0].at if view.failures else view.since
    return max(0, millis(view.now - since)) if since else 0


def _restored_ms(view: JobView) -> int:
    back = (event for event in view.events if isinstance(event, RunStarted) and event.restored_from >= 0)
    newest = next(back, None)
    return -1 if newest is None else millis(newest.at)
