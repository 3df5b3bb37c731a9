"""What a running job shows of itself: counts, the last checkpoint, where it came back to. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.checkpoint.completed import Completed, PreCommitted, SubtaskReport
from penstock.ids import CheckpointId
from penstock.recovery.restore import RestorePoint
from penstock.snapshot.messages import MergeDone
from penstock.wording import counted, size

_log = logging.getLogger(__name__)


def tell_origins(report: SubtaskReport) -> None:
    """Say what a subtask found on its machine and what it had to fetch: after a restart, or where an executor was lost."""
    if report.reused_files or report.fetched_files:
        _log.info(
            "%s: state on %s: %s (%s) used again, %s (%s) from storage",
            *(report.subtask, report.host),
            *(counted(report.reused_files, "file"), size(report.reused_bytes)),
            *(counted(report.fetched_files, "file"), size(report.fetched_bytes)),
        )


@dataclass
class Progress:
    """A snapshot of a running job for people and tests."""

    run: int = 0
    restored_from: int = -1
    restarts: int = 0
    batch: int = -1
    batches: int = 0
    rows_in: int = 0
    """Rows that were read from the sources; those that are read again after a restart count again."""
    rows_out: Mapping[str, int] = field(default_factory=dict)
    """Rows that each sink, by its uid, was given; the same holds for them."""
    batch_seconds: float = 0.0
    checkpoint: int = -1
    checkpoint_at: float = 0.0
    """When that checkpoint was completed, in seconds since the epoch; 0 when there is none."""
    checkpoints_completed: int = 0
    merges: int = 0
    merged_bytes: int = 0
    bad_records: dict[str, int] = field(default_factory=dict)
    """Rows that were bad and did not end the job, by operator or sink, from its first batch on."""
    late_rows: dict[str, int] = field(default_factory=dict)
    """Rows that came too late, by operator, from its first batch on. A row may be late for several operators, and counts for each."""
    watermarks: dict[str, datetime | None] = field(default_factory=dict)
    """How far event time has come, by operator; None where no row has brought it anywhere. Those whose sources have none are not named."""
    due_next: dict[str, datetime] = field(default_factory=dict)
    """The operators in which something waits for event time (a window, a timer, a row without a partner), and the first moment of each."""


@dataclass
class Observer:
    """Collects progress from the threads of a run; survives restarts."""

    on_change: Callable[[Progress], None] = lambda _: None
    progress: Progress = field(default_factory=Progress)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def restored(self, point: RestorePoint) -> None:
        """A run begins."""
        with self._lock:
            self.progress.run = point.run
            self.progress.restored_from = point.id
            self.progress.checkpoint = point.id
            self.progress.checkpoint_at = point.checkpoint.completed_at if point.checkpoint else 0.0
        self.on_change(self.progress)

    def batch_done(
        self,
        batch: CheckpointId,
        transactions: Sequence[PreCommitted],
        seconds: float,
    ) -> None:
        """A batch passed every operator and sink."""
        with self._lock:
            self.progress.batch = batch
            self.progress.batches += 1
            self.progress.rows_out = _more(self.progress.rows_out, transactions)
            self.progress.batch_seconds = seconds
        self.on_change(self.progress)

    def rows_read(self, rows: int) -> None:
        """So many more came from the sources."""
        with self._lock:
            self.progress.rows_in += rows
        self.on_change(self.progress)

    def bad_records(self, so_far: Mapping[str, int]) -> None:
        """Some rows were bad, in this run or before it."""
        with self._lock:
            self.progress.bad_records = dict(so_far)
        self.on_change(self.progress)

    def late_rows(self, so_far: Mapping[str, int]) -> None:
        """Some rows came too late, in this run or before it."""
        with self._lock:
            self.progress.late_rows = dict(so_far)
        self.on_change(self.progress)

    def event_time(self, watermarks: Mapping[str, datetime | None], due_next: Mapping[str, datetime]) -> None:
        """Event time has come so far, and this waits for it."""
        with self._lock:
            self.progress.watermarks = dict(watermarks)
            self.progress.due_next = dict(due_next)
        self.on_change(self.progress)

    def completed(self, completed: Completed) -> None:
        """A checkpoint exists."""
        with self._lock:
            self.progress.checkpoint = completed.checkpoint
            self.progress.checkpoint_at = completed.completed_at
            self.progress.checkpoints_completed += 1
        self.on_change(self.progress)

    def merged(self, message: MergeDone) -> None:
        """Sorted files of state were merged in the background."""
        with self._lock:
            self.progress.merges += 1
            self.progress.merged_bytes += message.merged.size if message.merged else 0
        self.on_change(self.progress)

    def restarting(self) -> None:
        """A run failed and another is going to begin."""
        with self._lock:
            self.progress.restarts += 1
        self.on_change(self.progress)


def _more(rows: Mapping[str, int], transactions: Sequence[PreCommitted]) -> dict[str, int]:
    """Another object: whoever looks at the old one sees nothing change."""
    result = dict(rows)
    for one in transactions:
        result[one.sink] = result.get(one.sink, 0) + one.rows
    return result
