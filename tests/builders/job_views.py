"""Views of jobs, made by hand with every field that a page, a REST call or a metric shows."""

from __future__ import annotations

from builders.plan_settings import plan_settings
from penstock.status.checkpoint_history import history, summary
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FirstBatch,
    RunFailed,
    RunStarted,
    SavepointMade,
    SubtaskTimes,
)
from penstock.status.failure_history import failures
from penstock.status.jobs import job_id
from penstock.status.live import OperatorLive, PendingLive, Progress, SinkLive, SourceLive
from penstock.status.plan import Plan, PlanNode
from penstock.status.view import JobState, JobView, RunView

NOW = 1_800_000_000.0
STARTED = NOW - 3600
SETTINGS = plan_settings(
    min_pause_s=1,
    tolerable_failures=3,
    retained=2,
    restart="exponential_delay",
    backend="filesystem",
    parallelism=2,
    max_parallelism=128,
)
PLAN = Plan(
    job="views",
    nodes=(
        PlanNode(uid="clicks", kind="source", what="kafka <clicks>"),
        PlanNode(
            uid="per-page",
            kind="operator",
            what="aggregate by page",
            inputs=("clicks",),
            parallelism=2,
            keys=("page",),
            event_time=True,
        ),
        PlanNode(uid="out", kind="sink", what="SQLite views.db", inputs=("per-page",)),
    ),
    settings=SETTINGS,
    guarantee="exactly-once",
    reason="every source can go back, every sink has transactions",
    penstock="0.1.0",
    spark="4.3.0",
)
LIVE = Progress(
    run=2,
    at=NOW - 0.5,
    status="running",
    started_at=STARTED,
    batch=41,
    batches=42,
    batch_seconds=0.8,
    batch_at=NOW - 1,
    rows_in=123_456,
    rows_per_s=321.5,
    rows_since_checkpoint=77,
    restarts=1,
    checkpoint=40,
    checkpoint_at=NOW - 4,
    checkpoints_completed=2,
    checkpoints_failed=1,
    restored_from=39,
    merges=3,
    merged_bytes=4096,
    merge_ms=250.0,
    rows_again=55,
    pending=(
        PendingLive(
            checkpoint=41, triggered_at=NOW - 0.4, acknowledged=1, subtasks=2, missing=("per-page-1",)
        ),
    ),
    sources={
        "clicks": SourceLive(
            rows=123_456, rows_per_s=321.5, behind=1000, watermark_us=int((NOW - 65) * 1e6), position="{}"
        )
    },
    operators={
        "per-page": OperatorLive(
            rows=123_000,
            rows_per_s=320.0,
            state_bytes=1 << 20,
            files=9,
            watermark_us=int((NOW - 70) * 1e6),
            late_rows=5,
            bad_records=2,
            timed=True,
        )
    },
    sinks={
        "out": SinkLive(
            rows=4000,
            waiting=2,
            waiting_rows=30,
            waiting_since=NOW - 12,
            down="database is locked",
            bad_records=1,
        )
    },
)


def completed(number: int, run: int, at: float) -> CheckpointCompleted:
    """A checkpoint of two subtasks, of which the second is slow."""
    return CheckpointCompleted(
        at=at,
        run=run,
        checkpoint=number,
        triggered_at=at - 1.5,
        barrier_at=at - 0.9,
        stored_at=at - 0.1,
        duration_ms=1500.0,
        batch_ms=600.0,
        alignment_ms=10.0,
        sync_ms=20.0,
        async_ms=700.0,
        complete_ms=100.0,
        state_bytes=1 << 20,
        new_bytes=1 << 10,
        transactions=1,
        rows=500,
        subtasks=(
            SubtaskTimes("per-page", 0, 250, 5.0, 10.0, 100.0, 1 << 19, 1 << 9, at - 0.7, "worker-1"),
            SubtaskTimes("per-page", 1, 250, 10.0, 20.0, 700.0, 1 << 19, 1 << 9, at - 0.1, "worker-2"),
        ),
        subtasks_in_all=2,
    )


EVENTS: tuple[Event, ...] = (
    RunStarted(at=STARTED, run=1, host="driver-1", pid=11, parallelism=2),
    FirstBatch(at=STARTED + 5, run=1, batch=0, took_s=2.0),
    completed(39, 1, NOW - 600),
    CheckpointCommitted(at=NOW - 599.8, run=1, checkpoint=39, commit_ms=200.0),
    SavepointMade(at=NOW - 590, run=1, checkpoint=39, folder="/data/savepoints/39-a", took_s=1.0),
    CheckpointFailed(
        at=NOW - 520,
        run=1,
        checkpoint=40,
        reason="expired",
        text="expired",
        detail="1 of 2 subtasks did not acknowledge: per-page-1",
        counts=True,
        triggered_at=NOW - 580,
    ),
    RunFailed(
        at=NOW - 500,
        run=1,
        error="UserCodeError",
        why="per-page: ZeroDivisionError: division by zero",
        root="ZeroDivisionError: division by zero",
        notes=("  at: views.py:12",),
        trace="Traceback (most recent call last):\n  ...",
        strategy="exponential_delay",
        restarts=True,
        delay_s=1.0,
        decision="tried again after 1 s: the first failure in an hour",
        batch=40,
        batch_at=NOW - 501,
        checkpoint=39,
        rows_again=55,
    ),
    RunStarted(
        at=NOW - 495,
        run=2,
        host="driver-1",
        pid=11,
        restored_from=39,
        restored_from_run=1,
        completed_at=NOW - 600,
        parallelism=2,
        restore_s=1.5,
    ),
    FirstBatch(at=NOW - 490, run=2, batch=40, took_s=2.0),
    completed(40, 2, NOW - 4),
    CheckpointCommitted(at=NOW - 3.9, run=2, checkpoint=40, commit_ms=100.0),
)
RUNS = (
    RunView(run=2, how="running", started_at=NOW - 497, host="driver-1", pid=11, restored_from=39),
    RunView(run=1, how="restarted", started_at=STARTED, ended_at=NOW - 500, host="driver-1", pid=11),
)


def rich_view(
    name: str = "views", *, state: JobState = JobState.RUNNING, supervised: bool = False
) -> JobView:
    """A job of which everything is known: it runs, has failed once, has a savepoint, a checkpoint under way and a sink that is down."""
    known = history(EVENTS, {}, [], LIVE.pending, 2)
    return JobView(
        id=job_id(name),
        name=name,
        storage=f"file:///data/store/{name}",
        place="/data/store",
        state=state,
        now=NOW,
        since=NOW - 497,
        run=2,
        host="driver-1",
        pid=11,
        supervised=supervised,
        plan=PLAN,
        live=LIVE,
        checkpoints=known,
        summary=summary(known, EVENTS),
        failures=failures(EVENTS, RUNS, {}),
        runs=RUNS,
        events=EVENTS[::-1],
        savepoints=("/data/savepoints/39-a",),
    )


def bare_view(name: str = "new", state: JobState = JobState.NEW) -> JobView:
    """A job of which nothing is known but its name."""
    return JobView(
        id=job_id(name),
        name=name,
        storage=f"file:///data/store/{name}",
        place="/data/store",
        state=state,
        now=NOW,
    )
