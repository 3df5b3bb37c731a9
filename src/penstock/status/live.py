"""What a job does at this moment, as its run writes it down every second: `runs/<k>.live`. Data only; driver."""

from __future__ import annotations

import msgspec

LIVE_S = 1.0
"""How often it is written."""


class SourceLive(msgspec.Struct, frozen=True, kw_only=True):
    """What a source does."""

    rows: int = 0
    """Rows that were read, since this start of the job; those that are read again after a restart count again."""
    rows_per_s: float = 0.0
    behind: int | None = None
    """Rows that lie in the source and are not read yet; None where nobody knows."""
    looked_at: float = 0.0
    """When that was found out."""
    watermark_us: int | None = None
    position: str = ""
    """Where the last batch ended, as Spark says it."""


class OperatorLive(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator does."""

    rows: int = 0
    """Rows that came to it, since this start."""
    rows_per_s: float = 0.0
    state_bytes: int = 0
    files: int = 0
    """Files of state, over all subtasks: many want to be merged."""
    watermark_us: int | None = None
    due_next_us: int | None = None
    """The first moment for which something waits in event time."""
    late_rows: int = 0
    bad_records: int = 0
    timed: bool = False
    """Whether it goes by event time at all."""


class SinkLive(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink does."""

    rows: int = 0
    """Rows that it was given, since this start."""
    rows_per_s: float = 0.0
    waiting: int = 0
    """Transactions that are pre-committed and not committed."""
    waiting_rows: int = 0
    waiting_since: float = 0.0
    """When the oldest of them was pre-committed; 0: none waits."""
    down: str = ""
    """Why commits do not come through; '' when they do."""
    bad_records: int = 0


MOST_BATCHES = 40
"""Of the newest batches, so many are written down one by one."""


class BatchLive(msgspec.Struct, frozen=True, array_like=True):
    """A batch that read rows, by Spark's own account of it."""

    batch: int
    at: float
    """When Spark accounted for it: a moment after its end."""
    rows: int = 0
    seconds: float = 0.0
    """All of it: looking for rows, planning, processing, and Spark's logs."""
    input_per_s: float = 0.0
    """How fast rows came: those of this batch, over the time since the one before it began."""
    processed_per_s: float = 0.0
    """How fast they were processed: over the time that the batch took."""
    phases_ms: dict[str, float] = {}
    """By Spark's names: `latestOffset`, `queryPlanning`, `addBatch`, ..."""


class PendingLive(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is under way."""

    checkpoint: int
    triggered_at: float
    barrier_at: float = 0.0
    """0: its batch is not done."""
    acknowledged: int = 0
    subtasks: int = 0
    missing: tuple[str, ...] = ()
    """A few of those who have not acknowledged."""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a running job."""

    run: int
    at: float
    status: str
    """A word of `Status`, or `stopping`."""
    ui: str = ""
    """Where its pages are: `http://127.0.0.1:8090`."""
    started_at: float = 0.0
    """When this start of the job began."""
    up_since: float = 0.0
    """When the present run came up: it had done a batch, or found nothing to read. 0: none is up: numbers are of the run before."""
    batch: int = -1
    batches: int = 0
    batch_seconds: float = 0.0
    """Of the last batch."""
    batch_at: float = 0.0
    """When it ended."""
    batch_since: float = 0.0
    """When the one that runs now began; 0: none runs."""
    rows_in: int = 0
    rows_per_s: float = 0.0
    rows_since_checkpoint: int = 0
    """Rows that are processed and in no completed checkpoint: after a failure they are processed again."""
    unsafe_since: float = 0.0
    """When the first of them was done, or of those behind an older checkpoint; 0: there is none."""
    restarts: int = 0
    down_since: float = 0.0
    """When the first failure came since a run was last up; 0: one is, or there was none."""
    failed_in_a_row: int = 0
    """How many came since then."""
    next_try_at: float = 0.0
    """While it waits to restart."""
    failure: str = ""
    """Why it does."""
    checkpoint: int = -1
    checkpoint_at: float = 0.0
    completed: int = 0
    """Checkpoints completed and failed since this start."""
    failed: int = 0
    restored_from: int = -1
    merges: int = 0
    merged_bytes: int = 0
    merge_ms: float = 0.0
    rows_again: int = 0
    """Rows that were processed again after failures of this start."""
    restarts_total: int = 0
    """Restarts since the job's first start: also of earlier starts, and after deaths of the process. Never goes down."""
    rows_again_total: int = 0
    """Rows that were processed again after all of them."""
    recent_batches: tuple[BatchLive, ...] = ()
    """Newest first."""
    pending: tuple[PendingLive, ...] = ()
    sources: dict[str, SourceLive] = {}
    operators: dict[str, OperatorLive] = {}
    sinks: dict[str, SinkLive] = {}
    doing: str = ""
    """What takes long at the moment, in words: `restoring: 3 of 8 files`."""
