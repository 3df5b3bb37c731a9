"""The status and the progress of a running job. The observer fills it, the run writes it to `runs/<k>.live` every second. Data only."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.checkpoint.pending import PendingLive

LIVE_S = 1.0
"""How often it is written."""


class Status(enum.StrEnum):
    """The status of a job. Each value equals its string, such as "finished"."""

    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


class SourceLive(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a source."""

    rows: int = 0
    """Rows read since this start of the job."""
    rows_per_s: float = 0.0
    behind: int | None = None
    """Rows in the source that are not read yet; None where that is unknown."""
    looked_at: float = 0.0
    """When Spark reported that."""
    watermark_us: int | None = None
    position: str = ""
    """Where the last batch ended, as Spark reports it."""


class OperatorLive(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an operator."""

    rows: int = 0
    """Input rows since this start."""
    rows_per_s: float = 0.0
    state_bytes: int = 0
    files: int = 0
    """Files of state, over all subtasks."""
    watermark_us: int | None = None
    due_next_us: int | None = None
    """The first event time for which a window, a timer or a row waits."""
    late_rows: int = 0
    bad_records: int = 0
    timed: bool = False
    """Whether it uses event time."""


class SinkLive(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a sink."""

    rows: int = 0
    """Rows written to it since this start."""
    rows_per_s: float = 0.0
    waiting: int = 0
    """Transactions that are pre-committed and not committed yet."""
    waiting_rows: int = 0
    waiting_since: float = 0.0
    """When the oldest of them was pre-committed; 0: none waits."""
    down: str = ""
    """Why commits fail; '' when they succeed."""
    bad_records: int = 0


MOST_BATCHES = 40
"""The number of recent batches that are reported one by one."""


BATCH_PHASES = {
    "look": ("latestOffset", "getBatch"),
    "plan": ("queryPlanning", "plan"),
    "tasks": ("tasks",),
    "state": ("state",),
    "barrier": ("barrier",),
    "log": ("walCommit", "commitOffsets", "commitBatch"),
}
"""The phases of a batch, each with the names under which it is measured. Those of Penstock are parts of Spark's `addBatch`."""


class BatchLive(msgspec.Struct, frozen=True, array_like=True):
    """A batch that read rows, as Spark reports it."""

    batch: int
    at: float
    """When Spark reported it: a moment after its end."""
    rows: int = 0
    seconds: float = 0.0
    """The whole batch: looking for rows, planning, processing, and Spark's logs."""
    input_per_s: float = 0.0
    """How fast rows came: those of this batch, over the time since the one before it began."""
    processed_per_s: float = 0.0
    """How fast they were processed: over the time that the batch took."""
    phases_ms: dict[str, float] = {}
    """By Spark's names, such as `queryPlanning` and `addBatch`, and by Penstock's for parts of `addBatch`; see `BATCH_PHASES`."""

    @property
    def phases(self) -> dict[str, float]:
        """The phases in milliseconds, which add up to the duration. `tasks` is without `state`, `other` is the rest."""
        found = {
            phase: sum(self.phases_ms.get(name, 0.0) for name in names)
            for phase, names in BATCH_PHASES.items()
        }
        found["state"] = min(found["state"], found["tasks"])
        found["tasks"] -= found["state"]
        return {**found, "other": max(0.0, self.seconds * 1000 - sum(found.values()))}


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a running job: what `handle.progress` returns, and what the run writes every second.

    Counts are those of this start of the job. Rows that are processed again after a restart count again.
    """

    run: int
    at: float
    """When this was written."""
    status: str
    """A word of `Status`, `starting`, or `stopping`."""
    ui: str = ""
    """The address of its pages: `http://127.0.0.1:8090`."""
    started_at: float = 0.0
    """When this start of the job began."""
    up_since: float = 0.0
    """When the current run finished its first batch, or found nothing to read. 0: no run is up, and numbers are of the run before."""
    batch: int = -1
    batches: int = 0
    batch_seconds: float = 0.0
    """The duration of the last batch."""
    batch_at: float = 0.0
    """When the last batch ended; 0: there was none."""
    batch_since: float = 0.0
    """When the current batch began; 0: none is running."""
    rows_in: int = 0
    """Rows read from all sources."""
    rows_per_s: float = 0.0
    rows_since_checkpoint: int = 0
    """Rows that are processed and in no completed checkpoint: after a failure they are processed again."""
    unsafe_since: float = 0.0
    """When the first of them was processed; 0: there is none."""
    restarts: int = 0
    down_since: float = 0.0
    """When the first failure came since a run was last up; 0: one is up, or there was no failure."""
    failed_in_a_row: int = 0
    """The number of failures since then."""
    next_try_at: float = 0.0
    """While the job waits to restart: when it does."""
    failure: str = ""
    """The error for which it waits."""
    checkpoint: int = -1
    """The newest completed checkpoint; -1: none."""
    checkpoint_at: float = 0.0
    """When it was completed; 0: there is none."""
    checkpoints_completed: int = msgspec.field(name="completed", default=0)
    checkpoints_failed: int = msgspec.field(name="failed", default=0)
    """Checkpoints that failed and count against `tolerable_failures`."""
    restored_from: int = -1
    merges: int = 0
    merged_bytes: int = 0
    merge_ms: float = 0.0
    rows_again: int = 0
    """Rows that were processed again after failures."""
    restarts_total: int = 0
    """Restarts since the job's first start, including earlier starts and deaths of the process. Never decreases."""
    rows_again_total: int = 0
    """Rows that were processed again after all of them."""
    recent_batches: tuple[BatchLive, ...] = ()
    """Newest first."""
    planned_anew: str = ""
    """Why Spark plans every batch anew; '' if it fills a plan that is made once."""
    pending: tuple[PendingLive, ...] = ()
    sources: dict[str, SourceLive] = {}
    operators: dict[str, OperatorLive] = {}
    sinks: dict[str, SinkLive] = {}
    doing: str = ""
    """What takes long at the moment, in words: `restoring: 3 of 8 files`."""

    @property
    def rows_out(self) -> dict[str, int]:
        """Rows that were given to each sink."""
        return {uid: sink.rows for uid, sink in self.sinks.items() if sink.rows}

    @property
    def bad_records(self) -> dict[str, int]:
        """Rows that failed and did not end the job, by operator or sink, since the job's first batch."""
        operators = {uid: one.bad_records for uid, one in self.operators.items() if one.bad_records}
        return operators | {uid: one.bad_records for uid, one in self.sinks.items() if one.bad_records}

    @property
    def late_rows(self) -> dict[str, int]:
        """Late rows by operator, since the job's first batch. A row that is late for several operators counts for each."""
        return {uid: one.late_rows for uid, one in self.operators.items() if one.late_rows}

    @property
    def watermarks(self) -> dict[str, datetime | None]:
        """The watermark of each operator that uses event time; None before the first row."""
        return {uid: _moment(one.watermark_us) for uid, one in self.operators.items() if one.timed}

    @property
    def due_next(self) -> dict[str, datetime]:
        """The operators that wait for event time (a window, a timer, a row without a partner), and the first moment of each."""
        found = {uid: _moment(one.due_next_us) for uid, one in self.operators.items()}
        return {uid: at for uid, at in found.items() if at is not None}


def _moment(us: int | None) -> datetime | None:
    return None if us is None else _EPOCH + timedelta(microseconds=us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
