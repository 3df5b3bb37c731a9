"""One source, operator or sink and its subtasks, in Flink's JSON. Pure.

The numbers of a subtask come from the newest completed checkpoint. Stateless operators, sources and sinks have no numbers for single
subtasks: Spark creates new tasks for them in each batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dashboard.flink.job_details import io_metrics, node_name, rows_through
from penstock.dashboard.flink.terms import (
    TASK_STATES,
    Json,
    Value,
    millis,
    span,
    started_at,
    task_state,
    tasks_of,
    vertex_id,
)
from penstock.status.events import SubtaskTimes
from penstock.status.plan import PlanNode
from penstock.status.view import JobView, source_behind


def vertex_detail(view: JobView, node: PlanNode) -> Json:
    """`/jobs/:jobid/vertices/:vertexid`: one vertex with all its subtasks."""
    subtasks = [_subtask(view, node, index) for index in range(tasks_of(node))]
    return {
        **_named(view, node),
        "parallelism": tasks_of(node),
        "maxParallelism": 1 if view.plan is None else max(1, view.plan.settings.max_parallelism),
        "aggregated": _aggregated(subtasks),
        "subtasks": subtasks,
    }


def subtask_times(view: JobView, node: PlanNode) -> Json:
    """`.../subtasktimes`: when each subtask started, and on which host."""
    times = dict.fromkeys(TASK_STATES, 0) | {task_state(view): millis(started_at(view))}
    return {
        **_named(view, node),
        "subtasks": [
            {
                "subtask": index,
                "host": _host(view, node, index),
                "endpoint": _host(view, node, index),
                "duration": span(view)["duration"],
                "timestamps": times,
            }
            for index in range(tasks_of(node))
        ],
    }


def vertex_hosts(view: JobView, node: PlanNode) -> Json:
    """`.../taskmanagers`: the hosts of Spark's executors, as far as subtasks reported them."""
    hosts: dict[str, list[int]] = {}
    for index in range(tasks_of(node)):
        hosts.setdefault(_host(view, node, index), []).append(index)
    state = task_state(view)
    return {
        **_named(view, node),
        "taskmanagers": [
            {
                "host": host,
                "endpoint": host,
                "status": state,
                **span(view),
                "metrics": io_metrics(*(rows_through(view, node) if len(hosts) == 1 else (0, 0))),
                "status-counts": {one: len(on_it) if one == state else 0 for one in TASK_STATES},
                "taskmanager-id": host,
                "aggregated": _aggregated([_subtask(view, node, index) for index in on_it]),
            }
            for host, on_it in hosts.items()
        ],
    }


def watermarks(view: JobView, node: PlanNode) -> list[Json]:
    """`.../watermarks`, in milliseconds; empty without event time."""
    found = _watermark_us(view, node)
    if found is None:
        return []
    return [
        {"id": f"{index}.currentInputWatermark", "value": str(found // 1000)}
        for index in range(tasks_of(node))
    ]


def backpressure(node: PlanNode) -> Json:
    """`.../backpressure`. A batch ends before the next one begins, so there is none: the source waits."""
    return {
        "status": "ok",
        "backpressureLevel": "ok",
        "backpressure-level": "ok",
        "end-timestamp": 0,
        "subtasks": [
            {
                "subtask": index,
                "backpressureLevel": "ok",
                "backpressure-level": "ok",
                "ratio": 0.0,
                "idleRatio": 0.0,
                "busyRatio": 0.0,
            }
            for index in range(tasks_of(node))
        ],
    }


def accumulators(view: JobView, node: PlanNode) -> Json:
    """`.../accumulators`: Penstock has no accumulators."""
    return {"id": vertex_id(view, node.uid), "user-accumulators": []}


def subtask_accumulators(view: JobView, node: PlanNode) -> Json:
    """`.../subtasks/accumulators`: Penstock has no accumulators."""
    return {"id": vertex_id(view, node.uid), "parallelism": tasks_of(node), "subtasks": []}


def vertex_metrics(view: JobView, node: PlanNode) -> dict[str, Value]:
    """The metrics of the whole vertex under Flink's names. The prefix `0.` names the first subtask, which stands for all."""
    rows_in, rows_out = rows_through(view, node)
    found: dict[str, Value] = {"0.numRecordsIn": rows_in, "0.numRecordsOut": rows_out}
    watermark = _watermark_us(view, node)
    if watermark is not None:
        found["0.currentInputWatermark"] = watermark // 1000
    live = view.live
    if live is not None and node.uid in live.operators:
        operator = live.operators[node.uid]
        found |= {
            "0.numRecordsInPerSecond": operator.rows_per_s if view.is_up else 0.0,
            "0.numLateRecordsDropped": operator.late_rows,
        }
    if live is not None and node.uid in live.sources:
        source = live.sources[node.uid]
        found["0.numRecordsOutPerSecond"] = source.rows_per_s if view.is_up else 0.0
        if (behind := source_behind(view, source).now) is not None:
            found["0.pendingRecords"] = behind
    return found


def _named(view: JobView, node: PlanNode) -> Json:
    return {"id": vertex_id(view, node.uid), "name": node_name(node), "now": millis(view.now)}


def _subtask(view: JobView, node: PlanNode, index: int) -> Json:
    measured, state = _measured(view, node, index), task_state(view)
    alone = tasks_of(node) == 1
    rows_in, rows_out = rows_through(view, node) if alone else (measured.rows if measured else 0, 0)
    host = _host(view, node, index)
    return {
        "subtask": index,
        "status": state,
        "attempt": max(0, view.run - 1),
        "endpoint": host,
        "host": host,
        **span(view),
        "start_time": millis(started_at(view)),
        "metrics": io_metrics(rows_in, rows_out),
        "taskmanager-id": host,
        "status-duration": {one: span(view)["duration"] if one == state else 0 for one in _LIVED},
        "other-concurrent-attempts": None,
    }


_LIVED = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")


def _aggregated(subtasks: Sequence[Json]) -> Json:
    """Statistics over subtasks: their metrics, and their time in each state."""
    metrics = [
        {name: one for name, one in task["metrics"].items() if one is not True and one is not False}
        for task in subtasks
    ]
    durations: list[Json] = [task["status-duration"] for task in subtasks]
    return {"metrics": _spreads(metrics), "status-duration": _spreads(durations)}


def _spreads(found: Sequence[Json]) -> Json:
    return {name: _spread(sorted(one[name] for one in found)) for name in found[0]} if found else {}


def _spread(ordered: Sequence[float]) -> Json:
    """Percentiles by nearest rank, as in `checkpoint_history.percentiles`."""
    last = len(ordered) - 1
    parts = {"median": 0.5, "p25": 0.25, "p75": 0.75, "p95": 0.95}
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": round(sum(ordered) / len(ordered)),
        "sum": sum(ordered),
        **{name: float(ordered[round(part * last)]) for name, part in parts.items()},
    }


def _measured(view: JobView, node: PlanNode, index: int) -> SubtaskTimes | None:
    last = view.last_completed
    of_it = () if last is None else last.subtasks
    return next((task for task in of_it if (task.operator, task.index) == (node.uid, index)), None)


def _host(view: JobView, node: PlanNode, index: int) -> str:
    measured = _measured(view, node, index)
    return (measured.host if measured is not None else "") or view.host or "unknown"


def _watermark_us(view: JobView, node: PlanNode) -> int | None:
    if view.live is None:
        return None
    found = view.live.sources.get(node.uid) or view.live.operators.get(node.uid)
    return None if found is None else found.watermark_us
