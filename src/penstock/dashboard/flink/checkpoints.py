"""Checkpoints in Flink's JSON. Pure.

In Flink, tasks acknowledge a checkpoint; here, operators with state do. A savepoint is made from a
checkpoint, so it has no entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.dashboard.flink.terms import Json, millis, node_of, nodes, vertex_id
from penstock.status.events import RunStarted, SavepointMade, SubtaskTimes
from penstock.status.job_history import percentiles
from penstock.status.view import CheckpointStatus, CheckpointView, JobView, Percentiles

_CLASSES = {
    CheckpointStatus.IN_PROGRESS: ("in_progress", "IN_PROGRESS"),
    CheckpointStatus.COMPLETED: ("completed", "COMPLETED"),
    CheckpointStatus.FAILED: ("failed", "FAILED"),
}
_NOTHING = {"alignment_buffered": 0, "processed_data": 0, "persisted_data": 0}
"""A barrier lies between two batches, so no row waits in memory before it."""
_MODES = {"at-least-once": "at_least_once", "at-most-once": "at_least_once"}


def checkpointing_statistics(view: JobView) -> Json:
    """`/jobs/:jobid/checkpoints`: counts and history, including earlier starts."""
    summary = view.summary
    return {
        "counts": {
            "restored": summary.restored,
            "total": summary.completed + summary.failed + summary.in_progress,
            "in_progress": summary.in_progress,
            "completed": summary.completed,
            "failed": summary.failed,
        },
        "summary": {
            "checkpointed_size": _statistics(summary.new_bytes),
            "state_size": _statistics(summary.state_bytes),
            "end_to_end_duration": _statistics(summary.duration_ms),
            **{name: _statistics(None) for name in _NOTHING},
        },
        "latest": {
            "completed": _newest(view, CheckpointStatus.COMPLETED),
            "savepoint": _latest_savepoint(view),
            "failed": _newest(view, CheckpointStatus.FAILED),
            "restored": _latest_restored(view),
        },
        "history": [_statistics_of(view, one, {}) for one in view.checkpoints],
    }


def checkpoint_details(view: JobView, number: int) -> Json | None:
    """`/jobs/:jobid/checkpoints/details/:checkpointid`; None if unknown. Of two with the same number, the later one."""
    one = find(view, number)
    return None if one is None else _statistics_of(view, one, _tasks(view, one))


def find(view: JobView, number: int) -> CheckpointView | None:
    """The newest checkpoint with this number."""
    return next((one for one in view.checkpoints if one.checkpoint == number), None)


def subtask_details(view: JobView, number: int, vertex: str) -> Json | None:
    """`.../details/:checkpointid/subtasks/:vertexid`; None if there is no such checkpoint or vertex."""
    one = find(view, number)
    of_it = [] if one is None else [task for task in one.subtasks if vertex_id(view, task.operator) == vertex]
    if one is None or not (of_it or node_of(view, vertex)):
        return None
    ends = [_end_to_end(one, task) for task in of_it]
    delays = [_start_delay(one, task) for task in of_it]
    return {
        **_task(one, of_it),
        "summary": {
            "checkpointed_size": _spread([float(task.new_bytes) for task in of_it]),
            "state_size": _spread([float(task.state_bytes) for task in of_it]),
            "end_to_end_duration": _spread([float(end) for end in ends]),
            "checkpoint_duration": {
                "sync": _spread([task.sync_ms for task in of_it]),
                "async": _spread([task.async_ms for task in of_it]),
            },
            "alignment": {
                "buffered": _statistics(None),
                "processed": _statistics(None),
                "persisted": _statistics(None),
                "duration": _spread([task.alignment_ms for task in of_it]),
            },
            "start_delay": _spread([float(delay) for delay in delays]),
        },
        "subtasks": [_subtask(one, task) for task in sorted(of_it, key=lambda task: task.index)],
    }


def checkpoint_config(view: JobView) -> Json | None:
    """`/jobs/:jobid/checkpoints/config`; None if no run has written its settings."""
    if view.plan is None:
        return None
    settings = view.plan.settings
    return {
        "mode": _MODES.get(settings.mode, "exactly_once"),
        "interval": millis(settings.interval_s),
        "timeout": millis(settings.timeout_s),
        "min_pause": millis(settings.min_pause_s),
        "max_concurrent": settings.max_concurrent,
        "externalization": {
            "enabled": True,
            "delete_on_cancellation": settings.on_cancel.startswith("delete"),
        },
        "state_backend": settings.backend,
        "checkpoint_storage": view.storage,
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": settings.tolerable_failures,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "none",
    }


# ── one checkpoint ─────────────────────────────────────────────────────────────────────────────


def _statistics_of(view: JobView, one: CheckpointView, tasks: Json) -> Json:
    kind, status = _CLASSES[one.status]
    found: Json = {
        "className": kind,
        "id": one.checkpoint,
        "status": status,
        "is_savepoint": False,
        "savepointFormat": None,
        "trigger_timestamp": millis(one.triggered_at),
        "latest_ack_timestamp": _latest_acknowledgement(one, one.subtasks),
        "checkpointed_size": one.new_bytes,
        "state_size": one.state_bytes,
        "end_to_end_duration": round(one.duration_ms)
        if one.status is not CheckpointStatus.IN_PROGRESS
        else max(0, millis(view.now - one.triggered_at)),
        **_NOTHING,
        "num_subtasks": one.subtasks_in_all,
        "num_acknowledged_subtasks": one.acknowledged,
        "checkpoint_type": "CHECKPOINT",
        "tasks": tasks,
    }
    if one.status is CheckpointStatus.COMPLETED:
        found |= {"external_path": _path(view, one.checkpoint, one.run), "discarded": not one.retained}
    elif one.status is CheckpointStatus.FAILED:
        why = ": ".join(part for part in (one.reason, one.detail) if part)
        found |= {"failure_timestamp": millis(one.completed_at), "failure_message": why}
    return found


def _path(view: JobView, number: int, run: int) -> str:
    return f"{view.storage}/chk-{number}-r{run}"


def _latest_acknowledgement(one: CheckpointView, subtasks: Iterable[SubtaskTimes]) -> int:
    """The time of the last acknowledgement; -1, as in Flink, if there is none."""
    latest = max((task.acknowledged_at for task in subtasks), default=0.0) or one.stored_at
    return millis(latest) if latest else -1


def _tasks(view: JobView, one: CheckpointView) -> Json:
    """Every vertex, as Flink's pages expect it; those without state have no subtasks here."""
    by_operator: dict[str, list[SubtaskTimes]] = {node.uid: [] for node in nodes(view)}
    for task in one.subtasks:
        by_operator.setdefault(task.operator, []).append(task)
    return {vertex_id(view, uid): _task(one, of_it) for uid, of_it in by_operator.items()}


def _task(one: CheckpointView, of_it: Sequence[SubtaskTimes]) -> Json:
    return {
        "id": one.checkpoint,
        "status": _CLASSES[one.status][1],
        "latest_ack_timestamp": _latest_acknowledgement(one, of_it) if of_it else -1,
        "checkpointed_size": sum(task.new_bytes for task in of_it),
        "state_size": sum(task.state_bytes for task in of_it),
        "end_to_end_duration": max((_end_to_end(one, task) for task in of_it), default=0),
        **_NOTHING,
        "num_subtasks": len(of_it),
        "num_acknowledged_subtasks": len(of_it),
    }


def _subtask(one: CheckpointView, task: SubtaskTimes) -> Json:
    return {
        "className": "completed",
        "index": task.index,
        "status": "completed",
        "ack_timestamp": millis(task.acknowledged_at),
        "end_to_end_duration": _end_to_end(one, task),
        "checkpointed_size": task.new_bytes,
        "state_size": task.state_bytes,
        "checkpoint": {"sync": round(task.sync_ms), "async": round(task.async_ms)},
        "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": round(task.alignment_ms)},
        "start_delay": _start_delay(one, task),
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def _end_to_end(one: CheckpointView, task: SubtaskTimes) -> int:
    """The milliseconds from the trigger to the acknowledgement."""
    return (
        max(0, millis(task.acknowledged_at - one.triggered_at))
        if task.acknowledged_at
        else round(one.duration_ms)
    )


def _start_delay(one: CheckpointView, task: SubtaskTimes) -> int:
    """The time before the subtask's own work: its batch."""
    own = task.alignment_ms + task.sync_ms + task.async_ms
    return max(0, round(_end_to_end(one, task) - own))


# ── the newest of each kind ────────────────────────────────────────────────────────────────────


def _newest(view: JobView, status: CheckpointStatus) -> Json | None:
    one = next((one for one in view.checkpoints if one.status is status), None)
    return None if one is None else _statistics_of(view, one, {})


def _latest_savepoint(view: JobView) -> Json | None:
    made = next((event for event in view.events if isinstance(event, SavepointMade)), None)
    of = None if made is None else find(view, made.checkpoint)
    if made is None or of is None:
        return None
    return {
        **_statistics_of(view, of, {}),
        "is_savepoint": True,
        "savepointFormat": "CANONICAL",
        "checkpoint_type": "SAVEPOINT",
        "external_path": made.folder,
        "discarded": False,
    }


def _latest_restored(view: JobView) -> Json | None:
    back = (event for event in view.events if isinstance(event, RunStarted) and event.restored_from >= 0)
    started = next(back, None)
    if started is None:
        return None
    return {
        "id": started.restored_from,
        "restore_timestamp": millis(started.at),
        "is_savepoint": bool(started.savepoint),
        "external_path": started.savepoint
        or _path(view, started.restored_from, started.restored_from_run or started.run),
    }


def _spread(values: Sequence[float]) -> Json:
    return _statistics(percentiles(values))


def _statistics(found: Percentiles | None) -> Json:
    """Flink's client expects numbers even if nothing was measured."""
    if found is None:
        found = Percentiles(0, 0, 0, 0, 0, 0, 0, 0)
    return {
        "min": round(found.minimum),
        "max": round(found.maximum),
        "avg": round(found.average),
        "p50": float(found.p50),
        "p90": float(found.p90),
        "p95": float(found.p95),
        "p99": float(found.p99),
        "p999": float(found.p999),
    }
