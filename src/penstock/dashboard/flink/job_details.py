"""Jobs, their graph, settings and exceptions, in Flink's JSON. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from penstock.dashboard.flink.terms import (
    JOB_STATES,
    TASK_STATES,
    Json,
    is_over,
    job_state,
    millis,
    nodes,
    span,
    started_at,
    task_state,
    tasks_of,
    vertex_id,
)
from penstock.status.live import Progress
from penstock.status.plan import PlanNode
from penstock.status.view import FailureView, JobView


def jobs_overview(views: Iterable[JobView]) -> Json:
    """`/jobs/overview`: what `flink list` prints."""
    return {"jobs": [overview_item(view) for view in views]}


def overview_item(view: JobView) -> Json:
    """One job in the overview."""
    counts = task_counts(view)
    return {
        "jid": view.id,
        "name": view.name,
        "jobType": _job_type(view),
        "schedulerType": "Default",
        **span(view),
        "state": job_state(view),
        "last-modification": millis(view.since or started_at(view)),
        "tasks": {
            "total": sum(counts.values()),
            **{state.lower(): count for state, count in counts.items()},
        },
        "pending-operators": 0,
    }


def job_ids(views: Iterable[JobView]) -> Json:
    """`/jobs`: the ids and states of all jobs."""
    return {"jobs": [{"id": view.id, "status": job_state(view)} for view in views]}


def job_detail(view: JobView) -> Json:
    """`/jobs/:jobid`: one job with its vertices and plan."""
    return {
        "jid": view.id,
        "name": view.name,
        "isStoppable": True,
        "state": job_state(view),
        "job-type": _job_type(view),
        **span(view),
        "maxParallelism": _most(view),
        "now": millis(view.now),
        "timestamps": timestamps(view),
        "vertices": [vertex(view, node) for node in nodes(view)],
        "status-counts": task_counts(view),
        "plan": plan(view),
        "pending-operators": 0,
        "schedulerType": "Default",
    }


def timestamps(view: JobView) -> Json:
    """When the job entered each state; 0: never, or unknown."""
    known = {"INITIALIZING": millis(started_at(view)), "CREATED": millis(started_at(view))}
    if view.state.is_alive:
        known["RUNNING"] = millis(started_at(view))
    known[job_state(view)] = millis(view.since or started_at(view))
    return {state: known.get(state, 0) for state in JOB_STATES}


def task_counts(view: JobView) -> dict[str, int]:
    """The number of tasks in each state."""
    total = sum(tasks_of(node) for node in nodes(view))
    return {state: total if state == task_state(view) else 0 for state in TASK_STATES}


def vertex(view: JobView, node: PlanNode) -> Json:
    """A source, operator or sink in the list of a job."""
    state = task_state(view)
    return {
        "id": vertex_id(view, node.uid),
        "slotSharingGroupId": vertex_id(view, ""),
        "name": node_name(node),
        "maxParallelism": _most(view),
        "parallelism": tasks_of(node),
        "status": state,
        **span(view),
        "tasks": {one: tasks_of(node) if one == state else 0 for one in TASK_STATES},
        "metrics": io_metrics(*rows_through(view, node)),
    }


def node_name(node: PlanNode) -> str:
    """The name for people: the uid and a description."""
    return f"{node.uid}: {node.what}" if node.what else node.uid


def rows_through(view: JobView, node: PlanNode) -> tuple[int, int]:
    """Rows in and out of a vertex since this start. For a source, Flink counts only rows out."""
    if view.live is None:
        return 0, 0
    if node.kind == "source":
        return 0, _rows(view.live, node)
    takers = [one for one in nodes(view) if node.uid in one.inputs]
    alone = len(takers) == 1 and len(takers[0].inputs) == 1
    return _rows(view.live, node), _rows(view.live, takers[0]) if alone else 0


def _rows(live: Progress, node: PlanNode) -> int:
    found = (
        live.sources.get(node.uid)
        if node.kind == "source"
        else live.operators.get(node.uid)
        if node.kind == "operator"
        else live.sinks.get(node.uid)
    )
    return 0 if found is None else found.rows


def io_metrics(rows_in: int, rows_out: int) -> Json:
    """Rows in and out; the bytes between operators are Spark's and not counted."""
    return {
        "read-bytes": 0,
        "read-bytes-complete": False,
        "write-bytes": 0,
        "write-bytes-complete": False,
        "read-records": rows_in,
        "read-records-complete": True,
        "write-records": rows_out,
        "write-records-complete": True,
        "accumulated-backpressured-time": 0,
        "accumulated-idle-time": 0,
        "accumulated-busy-time": 0.0,
    }


def plan(view: JobView) -> Json:
    """The graph. Texts are escaped for HTML, as Flink's pages expect."""
    known = {node.uid for node in nodes(view)}
    return {
        "jid": view.id,
        "name": view.name,
        "type": _job_type(view),
        "nodes": [
            {
                "id": vertex_id(view, node.uid),
                "parallelism": tasks_of(node),
                "maxParallelism": _most(view),
                "operator": "",
                "operator_strategy": "",
                "description": html.escape(node_name(node)),
                "inputs": [
                    _edge(view, node, number, uid) for number, uid in enumerate(node.inputs) if uid in known
                ],
                "optimizer_properties": {},
            }
            for node in nodes(view)
        ],
    }


def _edge(view: JobView, node: PlanNode, number: int, uid: str) -> Json:
    return {
        "num": number,
        "id": vertex_id(view, uid),
        "ship_strategy": "HASH" if node.keys else "FORWARD",
        "exchange": "pipelined_bounded",
    }


def job_config(view: JobView) -> Json:
    """`/jobs/:jobid/config`: restart strategy, parallelism and guarantee."""
    settings = None if view.plan is None else view.plan.settings
    user = {
        "guarantee": view.guarantee,
        "reason": "" if view.plan is None else view.plan.reason,
        "storage": view.storage,
        "penstock": "" if view.plan is None else view.plan.penstock,
        "spark": "" if view.plan is None else view.plan.spark,
    }
    return {
        "jid": view.id,
        "name": view.name,
        "execution-config": {
            "execution-mode": "PIPELINED",
            "restart-strategy": "" if settings is None else settings.restart,
            "job-parallelism": 1 if settings is None else max(1, settings.parallelism),
            "object-reuse-mode": False,
            "user-config": {name: value for name, value in user.items() if value},
        },
    }


def applications(views: Iterable[JobView]) -> Json:
    """`/applications/overview` of Flink 2.3: here each job is one application."""
    return {"applications": [application(view) for view in views]}


def application(view: JobView) -> Json:
    """One application, which is one job."""
    state = job_state(view)
    return {
        "id": view.id,
        "name": view.name,
        "status": state if is_over(view) else "RUNNING",
        **span(view),
        "jobs": {one: int(one == state) for one in JOB_STATES},
    }


def application_detail(view: JobView) -> Json:
    """`/applications/:id`: one application with its job."""
    detail = application(view)
    return {
        **detail,
        "timestamps": timestamps(view),
        "jobs": [overview_item(view)],
        "status-counts": detail["jobs"],
    }


def cluster_overview(views: Sequence[JobView], version: str) -> Json:
    """`/overview`. There are no task managers: Spark has executors instead."""
    states = [job_state(view) for view in views]
    over = {"finished": "FINISHED", "cancelled": "CANCELED", "failed": "FAILED"}
    return {
        "taskmanagers": 0,
        "taskmanagers-blocked": 0,
        "slots-total": 0,
        "slots-available": 0,
        "slots-free-and-blocked": 0,
        "jobs-running": sum(not is_over(view) for view in views),
        **{f"jobs-{name}": states.count(state) for name, state in over.items()},
        "flink-version": version,
        "flink-commit": "",
    }


def _most(view: JobView) -> int:
    return -1 if view.plan is None else max(1, view.plan.settings.max_parallelism)


def _job_type(view: JobView) -> str:
    return "BATCH" if view.plan is not None and view.plan.available_now else "STREAMING"


MOST = 20
"""The default number of exceptions, as in Flink."""


def exceptions(view: JobView, most: int = MOST) -> Json:
    """`/jobs/:jobid/exceptions`, newest first. The first two fields are for clients of older Flinks."""
    newest = view.failures[0] if view.failures else None
    return {
        "root-exception": None if newest is None else account(newest),
        "timestamp": None if newest is None else millis(newest.at),
        "all-exceptions": [],
        "truncated": False,
        "exceptionHistory": {
            "entries": [_entry(view, failure) for failure in view.failures[:most]],
            "truncated": len(view.failures) > most,
        },
    }


def _entry(view: JobView, failure: FailureView) -> Json:
    hosts = {run.run: run.host for run in view.runs}
    return {
        "exceptionName": failure.error,
        "stacktrace": account(failure),
        "timestamp": millis(failure.at),
        "failureLabels": {},
        "taskName": None,
        "endpoint": hosts.get(failure.run),
        "taskManagerId": None,
        "concurrentExceptions": [],
    }


def account(failure: FailureView) -> str:
    """All known facts about a failure as text, root cause first."""
    head = f"{failure.error}: {failure.why}"
    lines = [f"{failure.root}\nwhich led to {head}" if failure.root else head, *failure.notes]
    if failure.decision:
        lines.append(f"decided: {failure.decision}")
    if failure.restored_from is not None:
        back = (
            "nothing: it began again" if failure.restored_from < 0 else f"checkpoint {failure.restored_from}"
        )
        lines.append(f"went back to {back}")
    if failure.down_s is not None:
        lines.append(f"nothing was processed for {failure.down_s:.1f} s")
    if failure.rows_again is not None:
        lines.append(f"rows processed again: {failure.rows_again}")
    return "\n".join([*lines, *([failure.trace] if failure.trace else [])])
