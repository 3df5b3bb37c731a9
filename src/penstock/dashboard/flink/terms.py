"""Flink's words for the states, ids and times of a job, and refusals as its client expects them. Pure."""

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
    JobState.STOPPING: "RUNNING",  # so it is with Flink too, until the savepoint of the stop is there
    JobState.RESTARTING: "RESTARTING",
    JobState.FINISHED: "FINISHED",
    JobState.STOPPED: "FINISHED",  # a stop of Flink's ends so
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
    """One of `JOB_STATES`. A job whose process died, and is going to be started again by its supervisor, restarts."""
    if view.state is JobState.DIED and view.supervised:
        return "RESTARTING"
    return _STATES[view.state]


def task_state(view: JobView) -> str:
    """That of all its tasks: Spark makes them anew in each batch, so they have no life of their own."""
    state = job_state(view)
    return _TASKS.get(state, state)


def is_over(view: JobView) -> bool:
    """Whether Flink would say that nothing more comes."""
    return job_state(view) in ("FINISHED", "CANCELED", "FAILED")


def vertex_id(view: JobView, uid: str) -> str:
    """32 hexadecimal digits for a source, operator or sink."""
    return hashlib.sha256(f"{view.id}\0{uid}".encode()).hexdigest()[:ID_DIGITS]


def nodes(view: JobView) -> tuple[PlanNode, ...]:
    """Of the newest plan; none where no run has said it."""
    return () if view.plan is None else view.plan.nodes


def node_of(view: JobView, vertex: str) -> PlanNode | None:
    """The one with this id."""
    return next((node for node in nodes(view) if vertex_id(view, node.uid) == vertex), None)


def tasks_of(node: PlanNode) -> int:
    """At least one: of a source, Spark decides in each batch."""
    return max(1, node.parallelism)


def millis(seconds: float) -> int:
    """As Flink counts time."""
    return round(seconds * 1000)


def started_at(view: JobView) -> float:
    """When this start of the job began; 0: never."""
    if view.live is not None and view.live.started_at:
        return view.live.started_at
    return view.runs[0].started_at if view.runs else 0.0


def span(view: JobView) -> Json:
    """When it began, when it ended (-1: not yet), and how long that is."""
    begin, end = started_at(view), view.since if is_over(view) else view.now
    return {
        "start-time": millis(begin),
        "end-time": millis(end) if is_over(view) else -1,
        "duration": max(0, millis(end - begin)) if begin else 0,
    }


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure of ours
    """What was asked for is not done, and why; `status` is that of HTTP.

    404: there is no such thing. 409: the job is not running. 500: it was tried, and came to nothing.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


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
