"""What happened, as events for the journal and for listeners. Pure; driver."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Sequence

from penstock.checkpoint.events import Announce
from penstock.checkpoint.model import Completed, SubtaskReport
from penstock.errors import causes_of
from penstock.places import safe_text
from penstock.recovery.restore_plan import RestorePlan
from penstock.status.events import (
    LONGEST_TEXT,
    MOST_SUBTASKS,
    CheckpointCompleted,
    CheckpointFailed,
    RunFailed,
    RunStarted,
    SubtaskTimes,
)
from penstock.status.live import Progress

MOST_NOTES = 20
"""Of an error: a part of the journal that is too large is not read, with all that is in it."""


def run_started(
    point: RestorePlan, *, at: float, parallelism: int, restore_s: float, savepoint: str = ""
) -> RunStarted:
    """A run goes on from here. `savepoint`: with which the job has begun just now."""
    checkpoint = point.checkpoint
    before = checkpoint.parallelism if checkpoint is not None and checkpoint.operators else parallelism
    return RunStarted(
        at=at,
        run=point.run,
        host=platform.node(),
        pid=os.getpid(),
        restored_from=point.id,
        restored_from_run=point.completed_by,
        completed_at=checkpoint.completed_at if checkpoint else 0.0,
        parallelism=parallelism,
        rescaled_from=before if before != parallelism else 0,
        savepoint=savepoint,
        restore_s=restore_s,
    )


def checkpoint_completed(
    completed: Completed, *, at: float, complete_s: float, rows: int, wanted: bool
) -> CheckpointCompleted:
    """A checkpoint exists, with what was measured on the way."""
    reports = completed.subtasks
    barrier_at = completed.barrier_at or completed.completed_at
    return CheckpointCompleted(
        at=at,
        run=completed.run,
        checkpoint=completed.checkpoint,
        triggered_at=completed.triggered_at,
        barrier_at=barrier_at,
        stored_at=completed.completed_at,
        duration_ms=round(completed.duration_ms + complete_s * 1000, 3),
        batch_ms=round(max(0.0, barrier_at - completed.triggered_at) * 1000, 3),
        alignment_ms=max((one.alignment_ms for one in reports), default=0.0),
        sync_ms=max((one.sync_ms for one in reports), default=0.0),
        async_ms=max((one.async_ms for one in reports), default=0.0),
        complete_ms=round(complete_s * 1000, 3),
        state_bytes=completed.state_bytes,
        new_bytes=completed.new_bytes,
        transactions=len(completed.transactions),
        rows=rows,
        subtasks=tuple(subtask_times(one) for one in _slowest(reports)),
        subtasks_in_all=len(reports),
        wanted=wanted,
    )


def _slowest(reports: Sequence[SubtaskReport]) -> Sequence[SubtaskReport]:
    if len(reports) <= MOST_SUBTASKS:
        return reports
    slowest = sorted(reports, key=lambda one: one.alignment_ms + one.sync_ms + one.async_ms, reverse=True)
    return sorted(slowest[:MOST_SUBTASKS], key=lambda one: one.subtask)


def subtask_times(report: SubtaskReport) -> SubtaskTimes:
    """What a subtask has measured, as the journal has it."""
    return SubtaskTimes(
        report.subtask.uid,
        report.subtask.index,
        report.rows,
        report.alignment_ms,
        report.sync_ms,
        report.async_ms,
        report.state_bytes,
        report.new_bytes,
        report.acknowledged_at,
        report.host,
    )


def checkpoint_failed(announced: Announce, *, at: float, run: int) -> CheckpointFailed:
    """A checkpoint was given up."""
    reason = announced.reason
    return CheckpointFailed(
        at=at,
        run=run,
        checkpoint=announced.checkpoint,
        reason=reason.name.lower(),
        text=reason.text,
        detail=text_of(announced.detail),
        counts=reason.counts,
        triggered_at=announced.triggered_at,
    )


def run_failed(
    error: BaseException,
    progress: Progress,
    *,
    at: float,
    strategy: str,
    delay_s: float | None,
    decision: str,
    rows_again: int,
    shows_rows: bool = True,
) -> RunFailed:
    """A run has failed after this progress; `delay_s`: it is tried again after so long, None: it is not.

    `shows_rows`: whether texts of Spark and of user code, which may contain values of rows, are reported.
    """
    root = _root(error) if shows_rows else error
    trace = traceback.format_exception(error) if shows_rows else traceback.format_tb(error.__traceback__)
    return RunFailed(
        at=at,
        run=progress.run,
        error=type(error).__name__,
        why=text_of(error_text(error)),
        root="" if root is error else text_of(f"{type(root).__name__}: {error_text(root)}"),
        notes=tuple(
            text_of(str(note)) for note in list(getattr(error, "__notes__", None) or ())[:MOST_NOTES]
        ),
        trace=text_of("".join(trace), keep_end=True),
        strategy=strategy,
        restarts=delay_s is not None,
        delay_s=delay_s or 0.0,
        decision=decision,
        batch=progress.batch,
        batch_at=progress.batch_at,
        checkpoint=progress.checkpoint,
        rows_again=rows_again,
    )


def error_text(error: BaseException) -> str:
    """The text of an error, which may be of a user's own class: an exception in its `__str__` does no harm."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - see above
        return f"(its text could not be made: {type(failed).__name__} in its __str__)"


def text_of(text: str, *, keep_end: bool = False) -> str:
    """A text of others, so long as a journal takes it, without passwords. Of a trace the end says most."""
    told = safe_text(text)
    if len(told) <= LONGEST_TEXT:
        return told
    return f"... {told[4 - LONGEST_TEXT :]}" if keep_end else f"{told[: LONGEST_TEXT - 4]} ..."


def _root(error: BaseException) -> BaseException:
    """The first cause that says more than the error itself. What Spark wraps around a failure of ours or of the user's does not."""
    own = [one for one in causes_of(error) if not type(one).__module__.startswith(_WRAPPERS)]
    return own[-1] if own else error


_WRAPPERS = ("py4j.", "pyspark.")
