"""Views of jobs, made by hand: well, in trouble, dead, ended, of which everything or nothing is known, and with names and errors that nobody would choose."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from builders.plan_settings import plan_settings
from penstock.checkpoint.pending import PendingLive
from penstock.requests.request_files import PROGRAM
from penstock.status.events import (
    Answered,
    Asked,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FirstBatch,
    JobEnded,
    Lost,
    ProcessDied,
    ProcessStarted,
    RunFailed,
    RunStarted,
    SavepointMade,
    SinkDown,
    SinkUp,
    SubtaskTimes,
    TasksRepeated,
)
from penstock.status.job_history import failures, history, summary
from penstock.status.job_watcher import asked_for
from penstock.status.jobs import job_id
from penstock.status.live import BatchLive, OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.plan import Plan, PlanNode, PlanSettings
from penstock.status.stored_state import OperatorStateView, StateContents, StateView, SubtaskView
from penstock.status.view import CheckpointStatus, CheckpointView, JobState, JobView, RunView

NOW = 1_794_912_764.0
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
LONG = "an-operator-with-a-name-that-somebody-made-of-five-others-and-never-looked-at-again-v2"
TRACE = """Traceback (most recent call last):
  File "page_views.py", line 88, in enrich
    price = float(row["price"])
            ^^^^^^^^^^^^^^^^^^^
ValueError: could not convert string to float: '12,50'
"""


def settings(**changes: object) -> PlanSettings:
    """What most jobs are told."""
    usual = plan_settings(
        tolerable_failures=3,
        retained=3,
        restart="exponential delay: 1 s to 1 min, times 1.5, without limit",
        backend="filesystem",
        parallelism=8,
        max_parallelism=128,
    )
    return msgspec.structs.replace(usual, **changes)


def page_views_plan(**changes: object) -> Plan:
    """Two sources, a join, two windows, two sinks."""
    nodes = (
        PlanNode(uid="clicks", kind="source", what="kafka topic clicks", promise="can go back"),
        PlanNode(uid="prices", kind="source", what="kafka topic prices", promise="can go back"),
        PlanNode(
            uid="priced",
            kind="operator",
            what="interval join by product",
            inputs=("clicks", "prices"),
            parallelism=8,
            keys=("product",),
            event_time=True,
        ),
        PlanNode(
            uid="views-per-minute",
            kind="operator",
            what="tumbling windows of 1 min by app",
            inputs=("priced",),
            partly_aggregated=True,
            parallelism=8,
            keys=("app",),
            event_time=True,
        ),
        PlanNode(
            uid="top-products",
            kind="operator",
            what="top 10 by app",
            inputs=("views-per-minute",),
            parallelism=8,
            keys=("app",),
        ),
        PlanNode(
            uid="dashboard-db",
            kind="sink",
            what="PostgreSQL analytics.views",
            inputs=("views-per-minute",),
            promise="visible with the checkpoint",
        ),
        PlanNode(
            uid="lake",
            kind="sink",
            what="Delta Lake s3://lake/top",
            inputs=("top-products", "priced"),
            promise="visible with the checkpoint",
        ),
    )
    usual = Plan(
        job="page-views",
        nodes=nodes,
        settings=settings(),
        guarantee="exactly-once",
        reason="every source can go back, and every sink commits with the checkpoint",
        program="jobs/page_views.py",
        penstock="0.1.0",
        spark="4.3.0",
        python="3.13.1",
    )
    return msgspec.structs.replace(usual, **changes)


def live(now: float = NOW, **changes: object) -> Progress:
    """What a job that is well says of itself."""
    usual = Progress(
        run=3,
        at=now - 0.4,
        status="running",
        started_at=now - 9 * 3600 - 1260,
        up_since=now - 2394,
        batch=5120,
        batches=5120,
        batch_seconds=1.24,
        batch_at=now - 1.6,
        batch_since=now - 0.9,
        rows_in=412_883_120,
        rows_per_s=12_480.0,
        rows_since_checkpoint=56_204,
        restarts=1,
        checkpoint=5117,
        checkpoint_at=now - 4.2,
        checkpoints_completed=3340,
        checkpoints_failed=2,
        merges=412,
        merged_bytes=88 << 30,
        merge_ms=1_840_000.0,
        rows_again=118_233,
        pending=(),
        sources={
            "clicks": SourceLive(
                rows=390_000_000,
                rows_per_s=11_900.0,
                behind=14_300,
                looked_at=now - 1,
                watermark_us=int((now - 6.5) * 1e6),
                position='{"clicks": {"0": 4412, "1": 4398}}',
            ),
            "prices": SourceLive(
                rows=22_883_120,
                rows_per_s=580.0,
                behind=12,
                looked_at=now - 1,
                watermark_us=int((now - 8.1) * 1e6),
            ),
        },
        recent_batches=tuple(
            BatchLive(
                5117 - n,
                now - n,
                1000 + n,
                1.2,
                1000.0 / (n + 1),
                950.0,
                {
                    "latestOffset": 40.0,
                    "queryPlanning": 30.0,
                    "addBatch": 1000.0,
                    "walCommit": 60.0,
                    "plan": 12.0,
                    "tasks": 960.0,
                    "state": 80.0,
                    "barrier": 3.0,
                },
            )
            for n in range(40)
        ),
        operators={
            "priced": OperatorLive(
                rows=412_883_120,
                rows_per_s=12_480.0,
                state_bytes=3_812_000_000,
                files=61,
                watermark_us=int((now - 8.1) * 1e6),
                late_rows=1204,
                timed=True,
            ),
            "views-per-minute": OperatorLive(
                rows=401_000_000,
                rows_per_s=12_100.0,
                state_bytes=96_400_000,
                files=24,
                watermark_us=int((now - 8.1) * 1e6),
                timed=True,
            ),
            "top-products": OperatorLive(
                rows=210_000, rows_per_s=6.4, state_bytes=812_000, files=8, bad_records=3
            ),
        },
        sinks={
            "dashboard-db": SinkLive(rows=210_000, rows_per_s=6.4, waiting=0),
            "lake": SinkLive(rows=95_000, rows_per_s=3.1, waiting=2, waiting_rows=188, waiting_since=now - 4),
        },
    )
    return msgspec.structs.replace(usual, **changes)


def subtasks(
    at: float, operators: dict[str, int], slow: tuple[str, int] | None = None
) -> tuple[SubtaskTimes, ...]:
    """What each measured; one of them may be slow."""
    found = []
    for operator, number in operators.items():
        for index in range(number):
            late = 9.0 if (operator, index) == slow else 1.0
            wave = 1 + 0.4 * math.sin(index * 1.7 + len(operator))
            upload = 160.0 * wave * late / 3 if late > 1 else 60.0 * wave
            found.append(
                SubtaskTimes(
                    operator,
                    index,
                    int(8000 * wave),
                    14 * wave,
                    9 * wave,
                    upload,
                    int(40e6 * wave),
                    int(2.2e6 * wave),
                    at + upload / 1000 + 0.004,
                    f"worker-{index % 3}.cluster",
                )
            )
    return tuple(found)


def completed(number: int, at: float, run: int = 3, **changes: object) -> CheckpointCompleted:
    """A checkpoint that took about a second and a half."""
    wave = 1 + 0.25 * math.sin(number / 9) + (1.6 if number % 17 == 0 else 0)
    usual = CheckpointCompleted(
        at=at,
        run=run,
        checkpoint=number,
        triggered_at=at - 1.45 * wave,
        barrier_at=at - 0.24 * wave,
        stored_at=at - 0.04,
        duration_ms=1450 * wave,
        batch_ms=1210 * wave,
        alignment_ms=84 * wave,
        sync_ms=46 * wave,
        async_ms=190 * wave,
        complete_ms=38,
        state_bytes=int(3.9e9 + number * 40_000),
        new_bytes=int(41e6 * wave),
        transactions=2,
        rows=int(118_000 * wave * (0.7 + 0.3 * math.sin(number / 23))),
        subtasks=subtasks(
            at - 0.24 * wave,
            {"priced": 8, "views-per-minute": 8, "top-products": 4},
            ("priced", 5) if number % 17 == 0 else None,
        ),
        subtasks_in_all=20,
    )
    return msgspec.structs.replace(usual, **changes)


def checkpoint_events(newest: int, count: int, until: float, run: int = 3) -> list[Event]:
    """So many checkpoints, one every ten seconds, each committed."""
    events: list[Event] = []
    for back in range(count - 1, -1, -1):
        number, at = newest - back, until - 10.0 * back
        events += [
            completed(number, at, run),
            CheckpointCommitted(at=at + 0.21, run=run, checkpoint=number, commit_ms=210.0),
        ]
    return events


def run_failed(at: float, run: int, **changes: object) -> RunFailed:
    """A task met a row that it cannot read."""
    usual = RunFailed(
        at=at,
        run=run,
        error="StreamingQueryException",
        why="Job aborted due to stage failure: Task 3 in stage 412.0 failed 4 times",
        root="ValueError: could not convert string to float: '12,50'",
        notes=(
            "operator priced, subtask 3, batch 4711",
            "the row came from clicks, partition 1, offset 88123",
        ),
        trace=TRACE,
        strategy="exponential delay",
        restarts=True,
        delay_s=2.25,
        decision="attempt 2: it is tried again after 2.3 s, as the last failure was more than an hour ago",
        batch=4710,
        batch_at=at - 1.5,
        checkpoint=4709,
        rows_again=118_233,
    )
    return msgspec.structs.replace(usual, **changes)


def _newest_retained(known: tuple[CheckpointView, ...]) -> tuple[CheckpointView, ...]:
    newest = next((one for one in known if one.status is CheckpointStatus.COMPLETED), None)
    return tuple(msgspec.structs.replace(one, retained=one is newest) for one in known)


def job_view(
    name: str = "page-views",
    state: JobState = JobState.RUNNING,
    *,
    now: float = NOW,
    events: list[Event] | None = None,
    runs: tuple[RunView, ...] = (),
    **fields: object,
) -> JobView:
    """A view as a watcher would make it of these events."""
    told = sorted(events or [], key=lambda event: event.at)
    said = fields.get("live")
    pending = said.pending if isinstance(said, Progress) and state.is_alive else ()
    known = _newest_retained(history(told, {}, [], pending, 3))
    usual = JobView(
        id=job_id(name),
        name=name,
        storage=f"s3://streams/penstock/{name}",
        place="s3://streams/penstock",
        state=state,
        now=now,
        run=3,
        host="driver-7.cluster",
        pid=40_112,
        checkpoints=known,
        summary=summary(known, told),
        failures=failures(told, runs, {}),
        runs=runs,
        events=tuple(reversed(told)),
        asked=asked_for(told, runs, 3 if state.is_alive else 0),
    )
    return msgspec.structs.replace(usual, **fields)


RUNS = (
    RunView(
        run=3,
        how="running",
        started_at=NOW - 2400,
        host="driver-7.cluster",
        pid=40_112,
        restored_from=4709,
        newest_checkpoint=5117,
    ),
    RunView(
        run=2,
        how="restarted",
        started_at=NOW - 32_000,
        ended_at=NOW - 2420,
        host="driver-7.cluster",
        pid=40_112,
        restored_from=11,
        newest_checkpoint=4709,
        error="StreamingQueryException",
        why="Task 3 failed",
    ),
    RunView(
        run=1,
        how="did not say",
        started_at=NOW - 33_660,
        ended_at=NOW - 33_000,
        host="driver-2.cluster",
        pid=811,
        newest_checkpoint=11,
    ),
)


def story() -> list[Event]:
    """A night: a death that a supervisor saw, a failure of the code, a sink that was down, a savepoint."""
    return [
        ProcessStarted(at=NOW - 33_670, run=0, pid=811, attempt=1),
        RunStarted(at=NOW - 33_660, run=1, host="driver-2.cluster", pid=811, parallelism=8, restore_s=0.4),
        FirstBatch(at=NOW - 33_650, run=1, batch=0, took_s=9.8),
        ProcessDied(at=NOW - 33_000, run=0, how="signal SIGKILL", restarts=True, delay_s=1.0, decision="attempt 1 of 10 within an hour", pid=811),
        ProcessStarted(at=NOW - 32_999, run=0, pid=40_112, attempt=2),
        RunStarted(at=NOW - 32_000, run=2, host="driver-7.cluster", pid=40_112, restored_from=11, restored_from_run=1, parallelism=8, rescaled_from=4, restore_s=3.4),
        FirstBatch(at=NOW - 31_990, run=2, batch=12, took_s=7.7),
        SinkDown(at=NOW - 9_000, run=2, sink="dashboard-db", why="connection refused: 10.2.0.14:5432", waiting=3),
        SinkUp(at=NOW - 8_880, run=2, sink="dashboard-db", down_s=120.0),
        run_failed(NOW - 2420, 2),
        RunStarted(at=NOW - 2400, run=3, host="driver-7.cluster", pid=40_112, restored_from=4709, restored_from_run=2, parallelism=8, restore_s=2.1),
        FirstBatch(at=NOW - 2394, run=3, batch=4710, took_s=5.9),
        Asked(at=NOW - 1500, run=3, request="a1", what="savepoint", by="anna on laptop-3"),
        SavepointMade(at=NOW - 1470, run=3, checkpoint=4801, folder="s3://streams/penstock/page-views-savepoints/2026-11-17", took_s=28.4),
        Answered(at=NOW - 1470, run=3, request="a1", what="savepoint", by="anna on laptop-3", ok=True, checkpoint=4801, folder="s3://streams/penstock/page-views-savepoints/2026-11-17"),
        Asked(at=NOW - 1400, run=3, request="a2", what="savepoint", by=PROGRAM),
        Answered(at=NOW - 1390, run=3, request="a2", what="savepoint", by=PROGRAM, ok=False, error="/backups/views is not empty: a savepoint needs a folder of its own"),
        Asked(at=NOW - 2, run=3, request="a3", what="checkpoint", by=PROGRAM),
        CheckpointFailed(at=NOW - 620, run=3, checkpoint=5056, reason="expired", text="it was not complete after 10 min", detail="2 of 20 subtasks did not acknowledge (priced-3, priced-5)", counts=True, triggered_at=NOW - 1220),
        TasksRepeated(at=NOW - 900, run=3, batch=4870, operator="views-per-minute", subtasks=(1, 5), attempts=2, why="ValueError: could not convert string to float: '12,50' (page_views.py:88)"),
        TasksRepeated(at=NOW - 890, run=3, batch=4871, operator="lake", attempts=3, batches_before=4),
        Lost(at=NOW - 600, run=3, events=4),
    ]  # fmt: skip


def healthy() -> JobView:
    """A job that runs well, with a night behind it."""
    events = [*story(), *checkpoint_events(5117, 180, NOW - 4.2)]
    return job_view(
        events=events,
        runs=RUNS,
        plan=page_views_plan(),
        live=live(),
        since=NOW - 2394,
        supervised=True,
        savepoints=("s3://streams/penstock/page-views-savepoints/2026-11-17",),
    )


def checkpointing() -> JobView:
    """A job with a checkpoint under way."""
    pending = PendingLive(
        checkpoint=5118,
        triggered_at=NOW - 3.1,
        barrier_at=NOW - 1.0,
        acknowledged=17,
        subtasks=20,
        missing=("priced-3", "priced-5", "top-products-1"),
    )
    events = [*story(), *checkpoint_events(5117, 180, NOW - 4.2)]
    return job_view(
        "checkouts",
        events=events,
        runs=RUNS,
        plan=page_views_plan(),
        live=live(pending=(pending,)),
        since=NOW - 2394,
    )


def late() -> JobView:
    """A running job whose checkpoints fail, and whose sink is down."""
    failed = [
        CheckpointFailed(
            at=NOW - 70 + 20 * n,
            run=3,
            checkpoint=900 + n,
            reason="storage",
            text="its metadata could not be written",
            detail="503 Slow Down",
            counts=True,
            triggered_at=NOW - 80 + 20 * n,
        )
        for n in range(3)
    ]
    sinks = {
        "ledger": SinkLive(
            rows=90_211,
            rows_per_s=12.0,
            waiting=7,
            waiting_rows=8_114,
            waiting_since=NOW - 94,
            down="could not connect to 10.2.0.14:5432: connection refused",
        )
    }
    plan = Plan(
        job="payments",
        nodes=(
            PlanNode(uid="orders", kind="source", what="kafka topic orders"),
            PlanNode(
                uid="balances",
                kind="operator",
                what="Balances by account",
                inputs=("orders",),
                parallelism=4,
                keys=("account",),
            ),
            PlanNode(uid="ledger", kind="sink", what="PostgreSQL ledger", inputs=("balances",)),
        ),
        settings=settings(parallelism=4),
        guarantee="at-least-once",
        limited_by="ledger",
        reason="the sink 'ledger' (PostgreSQL) has no transactions: after a failure it may receive rows again",
    )
    said = live(
        sources={"orders": SourceLive(rows=5_000_000, rows_per_s=4100.0, behind=4_812_000)},
        operators={
            "balances": OperatorLive(rows=5_000_000, rows_per_s=4100.0, state_bytes=88_000_000, files=97)
        },
        sinks=sinks,
        checkpoint_at=NOW - 92,
        rows_per_s=4100.0,
        rows_since_checkpoint=388_120,
        started_at=NOW - 86_000,
        restarts=0,
    )
    events: list[Event] = [*checkpoint_events(899, 60, NOW - 92), *failed]
    return job_view("payments", events=events, plan=plan, live=said, since=NOW - 86_000)


def restarting() -> JobView:
    """A job that has failed, as two times before, and waits to go back."""
    times = {1: NOW - 160, 2: NOW - 90, 3: NOW - 3}
    runs = tuple(RunView(run=run, how="restarted", started_at=at - 60) for run, at in reversed(times.items()))
    events: list[Event] = [*checkpoint_events(40, 20, NOW - 9)]
    for run, at in times.items():
        events += [
            RunStarted(at=at - 60, run=run, host="driver-7.cluster", pid=40_112, restored_from=38 + run),
            FirstBatch(at=at - 56, run=run, batch=39 + run, took_s=3.9),
            run_failed(at, run, rows_again=3_000 + run, batch_at=at - 2),
        ]
    said = live(
        status="restarting",
        next_try_at=NOW + 4.2,
        failure="ValueError: could not convert string to float: '12,50'",
        up_since=0.0,
        batch_since=0.0,
        restarts=4,
        sinks={"dashboard-db": SinkLive(rows=210_000), "lake": SinkLive(rows=95_000)},
    )
    return job_view(
        "enrichment",
        JobState.RESTARTING,
        events=events,
        runs=runs,
        plan=page_views_plan(job="enrichment"),
        live=said,
        since=NOW - 3,
    )


def died() -> JobView:
    """A job whose driver was killed, and which nobody starts again."""
    runs = (
        RunView(
            run=3,
            how="did not say",
            started_at=NOW - 90_000,
            ended_at=NOW - 7_300,
            host="driver-1.cluster",
            pid=77,
            newest_checkpoint=311,
        ),
    )
    said = live(NOW - 7_300, at=NOW - 7_300, batch_at=NOW - 7_301)
    events: list[Event] = checkpoint_events(311, 30, NOW - 7_310)
    seen = job_view(
        "fraud-scores",
        JobState.DIED,
        events=events,
        runs=runs,
        plan=page_views_plan(job="fraud-scores"),
        live=said,
        since=NOW - 7_300,
    )
    return msgspec.structs.replace(seen, failures=failures(events, runs, {3: said}))


def failed() -> JobView:
    """A job that was given up."""
    events: list[Event] = [
        *checkpoint_events(12, 12, NOW - 500),
        run_failed(
            NOW - 480,
            3,
            restarts=False,
            delay_s=0.0,
            decision="not tried again: 3 failures at the same place",
        ),
        JobEnded(
            at=NOW - 480,
            run=3,
            how="failed",
            error="StreamingQueryException",
            why="Task 3 in stage 412.0 failed 4 times",
            batches=40,
            rows_in=12_000,
            checkpoint=12,
        ),
    ]
    return job_view(
        "invoices",
        JobState.FAILED,
        events=events,
        plan=page_views_plan(job="invoices"),
        live=live(at=NOW - 480),
        since=NOW - 480,
    )


def finished() -> JobView:
    """A job that was done with its input."""
    events: list[Event] = [
        *checkpoint_events(3, 3, NOW - 40_000),
        JobEnded(at=NOW - 39_990, run=3, how="finished", batches=4, rows_in=120_000, checkpoint=3),
    ]
    return job_view(
        "nightly-backfill",
        JobState.FINISHED,
        events=events,
        plan=page_views_plan(job="nightly-backfill"),
        live=live(at=NOW - 39_990, sinks={"lake": SinkLive(rows=95_000)}),
        since=NOW - 39_990,
    )


def starting() -> JobView:
    """A job that has said nothing yet."""
    return job_view("sessions", JobState.STARTING, since=NOW - 2.4)


def nothing_at_all() -> JobView:
    """A job of which only the folder is there."""
    return bare_view("empty")


def unreadable() -> JobView:
    """A job whose files are damaged."""
    return JobView(
        id=job_id("broken"),
        name="broken",
        storage="/data/broken",
        place="/data",
        state=JobState.UNREADABLE,
        now=NOW,
        unreadable=("runs/4.json in /data/broken is not readable: expected `,` or `}` at byte 17",),
    )


def hostile() -> JobView:
    """Every text that a file can bring is HTML, or far too long."""
    nodes = (
        PlanNode(uid=HOSTILE, kind="source", what=HOSTILE, promise=HOSTILE),
        PlanNode(
            uid=LONG,
            kind="operator",
            what=LONG * 3,
            inputs=(HOSTILE, "nobody"),
            parallelism=200,
            keys=(HOSTILE,),
            event_time=True,
        ),
        PlanNode(uid=f"{LONG}-sink", kind=HOSTILE, what=HOSTILE, inputs=(LONG, LONG, HOSTILE)),
    )
    plan = page_views_plan(
        job=HOSTILE,
        nodes=nodes,
        guarantee=HOSTILE,
        limited_by=HOSTILE,
        reason=HOSTILE * 4,
        program=HOSTILE,
        spark=HOSTILE,
        settings=settings(mode=HOSTILE, restart=HOSTILE, on_cancel=HOSTILE, backend=HOSTILE),
    )
    said = live(
        doing=HOSTILE,
        failure=HOSTILE,
        sources={HOSTILE: SourceLive(position=HOSTILE, watermark_us=2**62, rows_per_s=1e18, behind=-5)},
        recent_batches=(
            BatchLive(-(2**63), 1e300, -1, -5.0, 1e308, -1.0, {HOSTILE: -1e300, "addBatch": 1e300}),
        ),
        operators={LONG: OperatorLive(rows=-1, state_bytes=2**62, late_rows=7, watermark_us=-(2**62))},
        sinks={f"{LONG}-sink": SinkLive(down=HOSTILE * 20, waiting=3, waiting_since=NOW + 1e9)},
        pending=(PendingLive(checkpoint=2**53, triggered_at=NOW + 1e6, missing=(HOSTILE,)),),
    )
    many = subtasks(NOW - 40, {LONG: 200}, (LONG, 17))
    events: list[Event] = [
        completed(7, NOW - 39, subtasks=many, subtasks_in_all=2000),
        CheckpointFailed(at=NOW - 20, run=3, checkpoint=8, reason=HOSTILE, text=HOSTILE, detail=HOSTILE * 30, counts=True),
        run_failed(NOW - 10, 3, error=HOSTILE, why=HOSTILE * 9, root=HOSTILE, notes=(HOSTILE,), trace=HOSTILE, strategy=HOSTILE, decision=HOSTILE),
        TasksRepeated(at=NOW - 9, run=3, batch=-1, operator=HOSTILE, subtasks=tuple(range(200)), attempts=2**60, why=HOSTILE),
        SinkDown(at=NOW - 9, run=3, sink=HOSTILE, why=HOSTILE, waiting=1),
        Asked(at=NOW - 8, run=3, what=HOSTILE, by=HOSTILE),
        Answered(at=-1e30, run=3, request=HOSTILE, what=HOSTILE, by=HOSTILE, ok=False, error=HOSTILE, checkpoint=2**62, folder=HOSTILE),
        SavepointMade(at=NOW - 7, run=3, checkpoint=7, folder=HOSTILE, took_s=1e12),
        ProcessDied(at=NOW - 6, run=0, how=HOSTILE, restarts=False, decision=HOSTILE),
        JobEnded(at=NOW - 5, run=3, how=HOSTILE, why=HOSTILE),
        RunStarted(at=-1e30, run=3, host=HOSTILE, pid=1, savepoint=HOSTILE, restored_from=4),
    ]  # fmt: skip
    runs = (RunView(run=3, how=HOSTILE, host=HOSTILE, why=HOSTILE, error=HOSTILE),)
    return job_view(
        "hostile",
        events=events,
        runs=runs,
        plan=plan,
        live=said,
        since=1e300,
        host=HOSTILE,
        storage=HOSTILE,
        place=HOSTILE,
        savepoints=(HOSTILE,),
        unreadable=(HOSTILE,),
    )


RICH_PLAN = Plan(
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
    settings=settings(
        min_pause_s=1,
        retained=2,
        restart="exponential_delay",
        parallelism=2,
    ),
    guarantee="exactly-once",
    reason="every source can go back, every sink has transactions",
    penstock="0.1.0",
    spark="4.3.0",
)
RICH_LIVE = Progress(
    run=2,
    at=NOW - 0.5,
    status="running",
    started_at=(NOW - 3600),
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
    recent_batches=(BatchLive(41, NOW - 1, 500, 0.8, phases_ms={"tasks": 600.0, "state": 40.0}),),
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


def two_subtasks(number: int, at: float, run: int) -> CheckpointCompleted:
    """A checkpoint of two subtasks, of which the second is slow."""
    return completed(
        number,
        at,
        run,
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


RICH_EVENTS: tuple[Event, ...] = (
    RunStarted(at=(NOW - 3600), run=1, host="driver-1", pid=11, parallelism=2),
    FirstBatch(at=(NOW - 3600) + 5, run=1, batch=0, took_s=2.0),
    two_subtasks(39, NOW - 600, 1),
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
    two_subtasks(40, NOW - 4, 2),
    CheckpointCommitted(at=NOW - 3.9, run=2, checkpoint=40, commit_ms=100.0),
)
RICH_RUNS = (
    RunView(run=2, how="running", started_at=NOW - 497, host="driver-1", pid=11, restored_from=39),
    RunView(run=1, how="restarted", started_at=(NOW - 3600), ended_at=NOW - 500, host="driver-1", pid=11),
)


def rich_view(
    name: str = "views", *, state: JobState = JobState.RUNNING, supervised: bool = False
) -> JobView:
    """A job of which everything is known: it runs, has failed once, has a savepoint, a checkpoint under way and a sink that is down."""
    return msgspec.structs.replace(
        bare_view(name, state),
        since=NOW - 497,
        run=2,
        host="driver-1",
        pid=11,
        supervised=supervised,
        plan=RICH_PLAN,
        live=RICH_LIVE,
        checkpoints=(known := history(RICH_EVENTS, {}, [], RICH_LIVE.pending, 2)),
        summary=summary(known, RICH_EVENTS),
        failures=failures(RICH_EVENTS, RICH_RUNS, {}),
        runs=RICH_RUNS,
        events=RICH_EVENTS[::-1],
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


JOBS: dict[str, Callable[[], JobView]] = {
    maker.__name__: maker
    for maker in (
        healthy,
        checkpointing,
        late,
        restarting,
        died,
        failed,
        finished,
        starting,
        nothing_at_all,
        unreadable,
        hostile,
    )
}


def held() -> StateContents:
    """The state of the healthy job."""
    every = (
        _operator("priced", {"product": "string", "day": "date"}, 470e6, {"left": "join", "right": "join"}),
        _operator(
            "views-per-minute",
            {"app": "string"},
            12e6,
            {"": "row", "windows": "windows", "revenue": "aggregate"},
        ),
        _operator(HOSTILE, {HOSTILE: HOSTILE}, 9.0, {HOSTILE: HOSTILE}),
    )
    return StateContents(
        job="page-views",
        checkpoint=5117,
        run=3,
        completed_at=NOW - 4.2,
        mode="exactly-once",
        parallelism=8,
        max_parallelism=128,
        state_bytes=sum(one.state_bytes for one in every),
        positions={"clicks": {"0": 4412}},
        operators=every,
    )


def _operator(uid: str, key: dict[str, str], each: float, states: dict[str, str]) -> OperatorStateView:
    parts = tuple(
        SubtaskView(
            index=index, files=3 + index * 2, state_bytes=int(each * (1 + 0.5 * math.sin(index * 1.3)))
        )
        for index in range(8)
    )
    named = tuple(
        StateView(name=name, kind=kind, table=f"table of {name}", columns={**key, name or "views": "bigint"})
        for name, kind in states.items()
    )
    return OperatorStateView(
        uid=uid,
        key=key,
        state_bytes=sum(part.state_bytes for part in parts),
        states=named,
        subtasks=parts,
        late_rows=4,
    )
