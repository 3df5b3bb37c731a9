"""Jobs to look at, for tests of what shows them: their files are written by the functions that jobs write them with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from builders.plan_settings import plan_settings
from penstock.checkpoint.metadata import write_metadata
from penstock.checkpoint.model import Barrier, Completed, OperatorState, PreCommitted, SubtaskReport
from penstock.checkpoint.pending import PendingLive
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.ownership.claim import claim, record_descent
from penstock.ownership.heartbeat import beat
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.ownership.runs import RunOutcome, end_of, record_end
from penstock.state.handle import FileRef, StateHandle
from penstock.status import events as told
from penstock.status.events import Event
from penstock.status.journal import Budget, segment_name, write_live, write_plan
from penstock.status.live import OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.plan import Plan, PlanNode
from penstock.storage import LocalStorage

PLAN = Plan(
    job="views",
    nodes=(
        PlanNode(uid="clicks", kind="source", what="log of 4 partitions"),
        PlanNode(uid="shops", kind="source", what="kafka"),
        PlanNode(
            uid="counts",
            kind="operator",
            what="aggregate by app",
            inputs=("clicks",),
            parallelism=2,
            partly_aggregated=True,
        ),
        PlanNode(
            uid="joined", kind="operator", what="join by shop", inputs=("counts", "shops"), event_time=True
        ),
        PlanNode(uid="table", kind="sink", what="SQLite views.db", inputs=("counts",)),
        PlanNode(uid="topic", kind="sink", what="kafka", inputs=("joined",)),
    ),
    settings=plan_settings(),
    guarantee="exactly-once",
)


class SeenJob:
    """The storage of one job, and what is told of it."""

    def __init__(self, place: Path, name: str = "views", *, started_at: float) -> None:
        self.place = place
        self.name = name
        self.storage = LocalStorage(place / name)
        self.events: list[Event] = []
        self.run = RunId(0)
        check_job_record(self.storage, JobRecord(name, 128))
        self.begin(started_at)

    def begin(self, at: float, restored_from: int = -1) -> None:
        """A run claims it."""
        mine = claim(self.storage, at)
        self.run = mine.run
        record_descent(mine, CheckpointId(restored_from))
        write_plan(self.storage, self.run, msgspec.structs.replace(PLAN, job=self.name))
        self.tell(
            told.RunStarted(
                at=at,
                run=self.run,
                host="worker-1",
                pid=os.getpid(),
                restored_from=restored_from,
                restored_from_run=self.run - 1,
            )
        )
        self.tell(told.FirstBatch(at=at + 2, run=self.run, batch=max(0, restored_from + 1), took_s=1.5))

    def tell(self, *events: Event) -> None:
        """The journal."""
        self.events += events
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in self.events)
        self.storage.put(segment_name(1_700_000_000.0, "0" * 16, Budget.RUNS, 1), lines)

    def complete(self, checkpoint: int, at: float, *, retained: bool = True, committed: bool = True) -> None:
        """A checkpoint, told and, if it is retained, there."""
        self.tell(
            told.CheckpointCompleted(
                at=at,
                run=self.run,
                checkpoint=checkpoint,
                triggered_at=at - 1.5,
                barrier_at=at - 0.5,
                stored_at=at - 0.1,
                duration_ms=1500.0,
                batch_ms=1000.0,
                alignment_ms=12.0,
                sync_ms=3.0,
                async_ms=400.0,
                complete_ms=5.0,
                state_bytes=3_000_000,
                new_bytes=40_000,
                transactions=2,
                rows=52_000,
            )
        )
        if committed:
            self.tell(
                told.CheckpointCommitted(at=at + 0.2, run=self.run, checkpoint=checkpoint, commit_ms=200.0)
            )
        if retained:
            self._store(checkpoint, at)

    def _store(self, checkpoint: int, at: float) -> None:
        subtask = SubtaskId("counts", 0)
        file = FileRef(10, 3000, "0" * 16, name=f"state/counts/{self.run}-{checkpoint}-0-0.arrow")
        self.storage.put(file.name, b"state")
        write_metadata(
            self.storage,
            Completed(
                job=self.name,
                checkpoint=checkpoint,
                run=self.run,
                mode="exactly-once",
                max_parallelism=128,
                parallelism=1,
                barrier=Barrier({"clicks": {"0": 1200}}, "v1"),
                operators={
                    "counts": OperatorState(
                        {"app": "string"},
                        {"pv": "int64"},
                        (StateHandle(subtask, "filesystem", checkpoint, refs=(file,)),),
                    )
                },
                transactions=(PreCommitted("table", checkpoint, 0, {"run": self.run}, rows=7),),
                subtasks=(SubtaskReport(subtask, 10, 12.5, 1.25, 400.0, 3000, 1000, "worker-1"),),
                triggered_at=at - 1.5,
                completed_at=at,
                duration_ms=1500.0,
            ),
        )

    def live(self, at: float, **changes: Any) -> None:
        """What it does now: healthy, unless something is said otherwise; and a heartbeat."""
        usual: dict[str, Any] = {
            "run": self.run,
            "at": at,
            "status": "running",
            "ui": "http://127.0.0.1:8090",
            "started_at": at - 3600,
            "batch": 412,
            "batches": 413,
            "batch_seconds": 0.8,
            "batch_at": at - 0.3,
            "rows_in": 12_400_000,
            "rows_per_s": 52_310.0,
            "checkpoint": 41,
            "checkpoint_at": at - 4,
            "sources": {
                "clicks": SourceLive(rows=12_000_000, rows_per_s=52_000.0, behind=0),
                "shops": SourceLive(rows=400_000, rows_per_s=310.0, behind=0),
            },
            "operators": {
                "counts": OperatorLive(rows=12_000_000, rows_per_s=52_000.0, state_bytes=2_900_000, files=14),
                "joined": OperatorLive(
                    rows=410_000,
                    rows_per_s=320.0,
                    state_bytes=100_000,
                    files=3,
                    timed=True,
                    watermark_us=int((at - 12) * 1e6),
                    late_rows=5,
                ),
            },
            "sinks": {
                "table": SinkLive(rows=8_000, rows_per_s=20.0),
                "topic": SinkLive(rows=410_000, rows_per_s=320.0),
            },
        }
        write_live(self.storage, Progress(**{**usual, **changes}))
        beat(self.storage, self.run, at)

    def end(self, how: RunOutcome, at: float, error: BaseException | None = None) -> None:
        """The run says how it ended."""
        record_end(self.storage, end_of(self.run, how, at, error))
        beat(self.storage, self.run, at, ended=True)


def healthy(place: Path, now: float, name: str = "views") -> SeenJob:
    """A job that has failed once, came back, and runs with the checkpoints 38 to 41, of which one is retained."""
    job = SeenJob(place, name, started_at=now - 7200)
    job.complete(38, now - 3700, retained=False)
    job.tell(
        told.RunFailed(
            at=now - 3680,
            run=job.run,
            error="UnavailableError",
            why="the broker 10.0.0.7:9092 does not answer",
            root="ConnectionRefusedError: [Errno 111]",
            strategy="exponential_delay()",
            restarts=True,
            delay_s=1.0,
            decision="attempt 1",
            batch_at=now - 3681,
            checkpoint=38,
            rows_again=1_234,
        )
    )
    job.end(RunOutcome.RESTARTED, now - 3680, ValueError("the broker does not answer"))
    job.begin(now - 3670, restored_from=38)
    job.tell(
        told.CheckpointFailed(
            at=now - 60,
            run=job.run,
            checkpoint=39,
            reason="expired",
            text="was not complete in time",
            detail="2 of 8 subtasks did not acknowledge",
            counts=True,
            triggered_at=now - 660,
        )
    )
    job.complete(40, now - 14, retained=False)
    job.complete(41, now - 4)
    job.live(now, restarts=1)
    return job


def late(place: Path, now: float, name: str = "orders") -> SeenJob:
    """A job that runs, whose checkpoint is late and whose sink is down."""
    job = SeenJob(place, name, started_at=now - 900)
    job.complete(7, now - 120)
    job.tell(told.SinkDown(at=now - 90, run=job.run, sink="topic", why="broker away", waiting=3))
    job.live(
        now,
        checkpoint=7,
        checkpoint_at=now - 120,
        started_at=now - 900,
        rows_since_checkpoint=9_000,
        pending=(
            PendingLive(
                checkpoint=8,
                triggered_at=now - 60,
                barrier_at=now - 50,
                acknowledged=3,
                subtasks=4,
                missing=("counts-1",),
            ),
        ),
        sources={"clicks": SourceLive(rows=10, rows_per_s=900.0, behind=120_000), "shops": SourceLive()},
        sinks={
            "table": SinkLive(rows=10),
            "topic": SinkLive(
                rows=10, waiting=3, waiting_rows=900, waiting_since=now - 90, down="broker away"
            ),
        },
    )
    return job


def failed(place: Path, now: float, name: str = "invoices") -> SeenJob:
    """A job that has failed for good."""
    job = SeenJob(place, name, started_at=now - 900)
    job.complete(3, now - 800)
    job.live(now - 700, checkpoint=3, checkpoint_at=now - 800)
    job.tell(
        told.JobEnded(
            at=now - 690,
            run=job.run,
            how="failed",
            error="UserCodeError",
            why="division by [zero]",
            checkpoint=3,
        )
    )
    job.end(RunOutcome.FAILED, now - 690, ValueError("division by [zero]"))
    return job


def died(place: Path, now: float, name: str = "visits") -> SeenJob:
    """A job whose process is gone without a word."""
    job = SeenJob(place, name, started_at=now - 900)
    job.complete(3, now - 800)
    job.live(now - 700, checkpoint=3, checkpoint_at=now - 800, rows_since_checkpoint=77)
    return job
