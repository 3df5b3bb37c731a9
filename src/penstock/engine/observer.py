"""What a running job shows of itself: counts, the last checkpoint, where it came back to. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.checkpoint.completed import Completed, PreCommitted, SubtaskReport
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.restore import RestorePoint
from penstock.snapshot.messages import MergeDone

_log = logging.getLogger(__name__)


def tell_origins(report: SubtaskReport) -> None:
    """Say what a subtask found on its machine and what it had to fetch: after a restart, or where an executor was lost."""
    if report.reused_files or report.fetched_files:
        _log.info(
            "%s: state on %s: %d files (%d bytes) used again, %d files (%d bytes) from storage",
            *(report.subtask, report.host, report.reused_files, report.reused_bytes),
            *(report.fetched_files, report.fetched_bytes),
        )


@dataclass
class Progress:
    """A snapshot of a running job for people and tests."""

    run: int = 0
    restored_from: int = -1
    restarts: int = 0
    batch: int = -1
    batches: int = 0
    rows: int = 0
    rows_out: int = 0
    batch_seconds: float = 0.0
    checkpoint: int = -1
    checkpoints_completed: int = 0
    merges: int = 0
    merged_bytes: int = 0


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
        self.on_change(self.progress)

    def batch_done(
        self,
        batch: CheckpointId,
        reports: Mapping[SubtaskId, SubtaskReport],
        transactions: Sequence[PreCommitted],
        seconds: float,
    ) -> None:
        """A batch passed every operator and sink."""
        with self._lock:
            self.progress.batch = batch
            self.progress.batches += 1
            self.progress.rows += sum(report.rows for report in reports.values())
            self.progress.rows_out += sum(one.rows for one in transactions)
            self.progress.batch_seconds = seconds
        self.on_change(self.progress)

    def completed(self, completed: Completed) -> None:
        """A checkpoint exists."""
        with self._lock:
            self.progress.checkpoint = completed.checkpoint
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
