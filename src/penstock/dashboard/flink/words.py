"""Flink's words for the states, ids and times of a job, and refusals as its client expects them. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

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
