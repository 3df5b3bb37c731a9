"""The checkpoints of a job, from three accounts of them: the journal, the metadata in storage, and what the running job says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.checkpoint.completed import Completed
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    RunStarted,
)
from penstock.status.live import PendingLive
from penstock.status.make_events import subtask_times
from penstock.status.view import CheckpointStatus, CheckpointSummary, CheckpointView, Percentiles

Name = tuple[int, int]
"""Number and run: the same number may be completed by two runs, of which one counts."""


def history(
    events: Iterable[Event],
    stored: Mapping[Name, Completed],
    committed: Iterable[Name],
    pending: Sequence[PendingLive] = (),
    run: int = 0,
) -> tuple[CheckpointView, ...]:
    """All that is known, newest first. `stored`: what lies in storage; `pending`: what `run` has under way."""
    known: dict[Name, CheckpointView] = {}
    failed: list[CheckpointView] = []
    for event in events:
        match event:
            case CheckpointCompleted():
                known[event.checkpoint, event.run] = _completed(event)
            case CheckpointCommitted() if (event.checkpoint, event.run) in known:
                one = known[event.checkpoint, event.run]
                known[event.checkpoint, event.run] = msgspec.structs.replace(
                    one, committed_at=event.at, commit_ms=event.commit_ms
                )
            case CheckpointFailed():
                failed.append(_failed(event))
    for name, completed in stored.items():
        known[name] = msgspec.structs.replace(known.get(name) or of_metadata(completed), retained=True)
    for name in committed:
        if name in known and not known[name].committed_at:
            known[name] = msgspec.structs.replace(known[name], committed_at=known[name].completed_at)
    under_way = [_pending(one, run) for one in pending if (one.checkpoint, run) not in known]
    everything = [*known.values(), *failed, *under_way]
    return tuple(sorted(everything, key=lambda one: (one.triggered_at, one.checkpoint), reverse=True))


def _completed(event: CheckpointCompleted) -> CheckpointView:
    return CheckpointView(
        checkpoint=event.checkpoint,
        run=event.run,
        status=CheckpointStatus.COMPLETED,
        triggered_at=event.triggered_at,
        completed_at=event.at,
        barrier_at=event.barrier_at,
        stored_at=event.stored_at,
        duration_ms=event.duration_ms,
        batch_ms=event.batch_ms,
        alignment_ms=event.alignment_ms,
        sync_ms=event.sync_ms,
        async_ms=event.async_ms,
        complete_ms=event.complete_ms,
        state_bytes=event.state_bytes,
        new_bytes=event.new_bytes,
        transactions=event.transactions,
        rows=event.rows,
        subtasks=event.subtasks,
        subtasks_in_all=event.subtasks_in_all,
        acknowledged=event.subtasks_in_all,
        wanted=event.wanted,
    )


def of_metadata(completed: Completed) -> CheckpointView:
    """One that the journal does not know, or does not know any more: what its metadata says."""
    reports = completed.subtasks
    return CheckpointView(
        checkpoint=completed.checkpoint,
        run=completed.run,
        status=CheckpointStatus.COMPLETED,
        triggered_at=completed.triggered_at,
        completed_at=completed.completed_at,
        stored_at=completed.completed_at,
        barrier_at=completed.barrier_at,
        duration_ms=completed.duration_ms,
        batch_ms=max(0.0, completed.barrier_at - completed.triggered_at) * 1000
        if completed.barrier_at
        else 0.0,
        alignment_ms=max((one.alignment_ms for one in reports), default=0.0),
        sync_ms=max((one.sync_ms for one in reports), default=0.0),
        async_ms=max((one.async_ms for one in reports), default=0.0),
        state_bytes=completed.state_bytes,
        new_bytes=completed.new_bytes,
        transactions=len(completed.transactions),
        subtasks=tuple(subtask_times(one) for one in reports),
        subtasks_in_all=len(reports),
        acknowledged=len(reports),
    )


def _failed(event: CheckpointFailed) -> CheckpointView:
    return CheckpointView(
        checkpoint=event.checkpoint,
        run=event.run,
        status=CheckpointStatus.FAILED,
        triggered_at=event.triggered_at or event.at,
        completed_at=event.at,
        reason=event.text,
        detail=event.detail,
        counts=event.counts,
        duration_ms=max(0.0, event.at - (event.triggered_at or event.at)) * 1000,
    )


def _pending(one: PendingLive, run: int) -> CheckpointView:
    return CheckpointView(
        checkpoint=one.checkpoint,
        run=run,
        status=CheckpointStatus.IN_PROGRESS,
        triggered_at=one.triggered_at,
        barrier_at=one.barrier_at,
        acknowledged=one.acknowledged,
        subtasks_in_all=one.subtasks,
        missing=one.missing,
    )


def summary(checkpoints: Sequence[CheckpointView], events: Iterable[Event]) -> CheckpointSummary:
    """Over what is known."""
    completed = [one for one in checkpoints if one.status is CheckpointStatus.COMPLETED]
    restored = sum(isinstance(event, RunStarted) and event.restored_from >= 0 for event in events)
    return CheckpointSummary(
        completed=len(completed),
        failed=sum(one.status is CheckpointStatus.FAILED for one in checkpoints),
        in_progress=sum(one.status is CheckpointStatus.IN_PROGRESS for one in checkpoints),
        restored=restored,
        duration_ms=percentiles([one.duration_ms for one in completed]),
        state_bytes=percentiles([float(one.state_bytes) for one in completed]),
        new_bytes=percentiles([float(one.new_bytes) for one in completed]),
    )


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """The nearest that was measured, no number in between; None where nothing was."""
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1

    def at(part: float) -> float:
        return ordered[min(last, round(part * last))]

    return Percentiles(
        ordered[0], sum(ordered) / len(ordered), at(0.5), at(0.9), at(0.95), at(0.99), at(0.999), ordered[-1]
    )
