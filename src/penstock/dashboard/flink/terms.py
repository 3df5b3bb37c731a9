"""A job in Flink's terms: states, ids, times, metrics, and refusals as its client expects them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from penstock.status.events import RunStarted
from penstock.status.jobs import ID_DIGITS
from penstock.status.plan import PlanNode
from penstock.status.view import JobState, JobView

Json = dict[str, Any]

_STATES = {
    JobState.NEW: "CREATED",
    JobState.STARTING: "INITIALIZING",
    JobState.RUNNING: "RUNNING",
    JobState.STOPPING: "RUNNING",  # as in Flink, until the savepoint of the stop exists
    JobState.RESTARTING: "RESTARTING",
    JobState.FINISHED: "FINISHED",
    JobState.STOPPED: "FINISHED",  # as in Flink
    JobState.CANCELLED: "CANCELED",
    JobState.FAILED: "FAILED",
    JobState.DIED: "FAILED",
    JobState.UNREADABLE: "FAILED",
}
_TASKS = {"RUNNING": "RUNNING", "INITIALIZING": "INITIALIZING", "RESTARTING": "CREATED"}
TASK_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
    "INITIALIZING",
)
JOB_STATES = (
    "INITIALIZING",
    "CREATED",
    "RUNNING",
    "FAILING",
    "FAILED",
    "CANCELLING",
    "CANCELED",
    "FINISHED",
    "RESTARTING",
    "SUSPENDED",
    "RECONCILING",
)


def job_state(view: JobView) -> str:
    """One of `JOB_STATES`. A dead job with a supervisor is restarting."""
    if view.state is JobState.DIED and view.supervised:
        return "RESTARTING"
    return _STATES[view.state]


def task_state(view: JobView) -> str:
    """The state of all tasks: Spark creates new tasks in each batch, so they have no own state."""
    state = job_state(view)
    return _TASKS.get(state, state)


def is_over(view: JobView) -> bool:
    """Whether the job is in a terminal state of Flink."""
    return job_state(view) in ("FINISHED", "CANCELED", "FAILED")


def vertex_id(view: JobView, uid: str) -> str:
    """The id of a source, operator or sink: 32 hexadecimal digits."""
    return hashlib.sha256(f"{view.id}\0{uid}".encode()).hexdigest()[:ID_DIGITS]


def nodes(view: JobView) -> tuple[PlanNode, ...]:
    """The nodes of the newest plan; none if no run has written one."""
    return () if view.plan is None else view.plan.nodes


def node_of(view: JobView, vertex: str) -> PlanNode | None:
    """The node with this vertex id."""
    return next((node for node in nodes(view) if vertex_id(view, node.uid) == vertex), None)


def tasks_of(node: PlanNode) -> int:
    """The parallelism, at least 1: for a source, Spark decides in each batch."""
    return max(1, node.parallelism)


def millis(seconds: float) -> int:
    """Convert seconds to Flink's milliseconds."""
    return round(seconds * 1000)


def started_at(view: JobView) -> float:
    """When this start of the job began; 0 if never."""
    if view.live is not None and view.live.started_at:
        return view.live.started_at
    return view.runs[0].started_at if view.runs else 0.0


def span(view: JobView) -> Json:
    """The start, end (-1: not yet) and duration of a job."""
    begin, end = started_at(view), view.since if is_over(view) else view.now
    return {
        "start-time": millis(begin),
        "end-time": millis(end) if is_over(view) else -1,
        "duration": max(0, millis(end - begin)) if begin else 0,
    }


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """A refused request with the reason and the HTTP status.

    404: there is no such thing. 409: the job is not running. 500: the request failed.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


Value = int | float

DESCRIBED = {
    "numRestarts": "Automatic restarts of the job, since it was started",
    "uptime": "Milliseconds that the job has been running without interruption",
    "downtime": "Milliseconds that a failing or recovering job has been down, 0 while it runs",
    "numberOfCompletedCheckpoints": "Checkpoints completed since the job was started",
    "numberOfFailedCheckpoints": "Checkpoints given up since the job was started",
    "numberOfInProgressCheckpoints": "Checkpoints in progress",
    "totalNumberOfCheckpoints": "Checkpoints triggered since the job was started",
    "lastCheckpointDuration": "Milliseconds that the last completed checkpoint took",
    "lastCheckpointSize": "New bytes that the last completed checkpoint wrote",
    "lastCheckpointFullSize": "Bytes of all state in the last completed checkpoint",
    "lastCheckpointId": "The number of the last completed checkpoint",
    "lastCheckpointCompletedTimestamp": "When the last checkpoint was completed, in milliseconds since the epoch",
    "lastCheckpointRestoreTimestamp": "When the job last restored a checkpoint, in milliseconds since the epoch",
    "lastCheckpointProcessedData": "Bytes processed during alignment: none, since a barrier lies between two batches",
    "lastCheckpointPersistedData": "Bytes of in-flight rows that were stored: none, for the same reason",
}
"""Flink's metrics of a job and their meaning here. -1, as in Flink: there is none yet."""


def job_metrics(view: JobView) -> dict[str, Value]:
    """The value of each metric in `DESCRIBED`."""
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
    """All names, or the values of the requested metrics. As in Flink, unknown names are left out."""
    if wanted is None:
        return [{"id": name} for name in values]
    return [{"id": name, "value": str(values[name])} for name in _names(wanted) if name in values]


def _names(wanted: str) -> Iterable[str]:
    return (name.strip() for name in wanted.split(","))


def _counts(view: JobView) -> dict[str, Value]:
    """The counts since this start of the job; without live status, of the known history."""
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
    """-1 for a job that ended; 0 while it restarts."""
    if not view.state.is_alive:
        return -1
    if view.state is JobState.RESTARTING:
        return 0
    since = view.runs[0].started_at if view.runs else started_at(view)
    return max(0, millis(view.now - since)) if since else 0


def _downtime_ms(view: JobView) -> int:
    """How long the job has been down, also if it died or failed for good."""
    down = view.state is JobState.RESTARTING or view.state.is_down
    if not down:
        return 0
    since = view.failures[0].at if view.failures else view.since
    return max(0, millis(view.now - since)) if since else 0


def _restored_ms(view: JobView) -> int:
    back = (event for event in view.events if isinstance(event, RunStarted) and event.restored_from >= 0)
    newest = next(back, None)
    return -1 if newest is None else millis(newest.at)
