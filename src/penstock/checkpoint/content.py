"""What the metadata of a checkpoint says. Pure; driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.checkpoint.completed import (
    Completed,
    OperatorColumns,
    OperatorState,
    PreCommitted,
    SubtaskReport,
    Upstream,
)
from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.pending import EventTimestamp, Pending
from penstock.config import Checkpointing
from penstock.errors import InternalError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SubtaskId
from penstock.state.handle import StateHandle


@dataclass(frozen=True)
class Identity:
    """What it says about the job besides the checkpoint itself."""

    job: str
    run: RunId
    parallelism: int
    max_parallelism: int
    layouts: dict[str, OperatorColumns]
    upstream: Upstream
    restored_from: CheckpointId = NO_CHECKPOINT
    savepoint: str = ""
    """With which the job began."""
    claimed: str = ""
    dropped: tuple[str, ...] = ()
    positions_set: Mapping[str, Any] = field(default_factory=dict)
    former_uids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def operators(self, handles: Mapping[SubtaskId, StateHandle]) -> dict[str, OperatorState]:
        """The state of every operator."""
        return {
            uid: OperatorState(
                layout.key,
                layout.value,
                tuple(handles[subtask] for subtask in sorted(handles) if subtask.uid == uid),
                layout.tables,
                layout.lifetimes,
                layout.schema,
                self.former_uids.get(uid, ()),
            )
            for uid, layout in self.layouts.items()
        }


@dataclass(frozen=True)
class _Upload:
    took_ms: float
    done_s: float
    done_at: float

    @property
    def began_s(self) -> float:
        return self.done_s - self.took_ms / 1000


class Content:
    """Writes down what a checkpoint is, with what was measured on the way."""

    def __init__(self, identity: Identity, settings: Checkpointing) -> None:
        self._identity = identity
        self._settings = settings
        self._uploads: dict[tuple[SubtaskId, int], _Upload] = {}

    def uploaded(self, handle: StateHandle, async_ms: float, now: EventTimestamp) -> None:
        """It is done, and took so long."""
        self._uploads[handle.subtask, handle.version] = _Upload(async_ms, now.monotonic, now.wall)

    def forget(self, checkpoint: CheckpointId) -> None:
        """It exists: nobody asks again how long its uploads took."""
        self._uploads = {key: one for key, one in self._uploads.items() if key[1] > checkpoint}

    def of(
        self,
        pending: Pending,
        cut: BatchFinished | None,
        *,
        transactions: tuple[PreCommitted, ...],
        completed: Sequence[Completed],
        now: EventTimestamp,
        time_us: int = 0,
    ) -> Completed:
        """The metadata of a checkpoint that stands for the end of batch `cut`, and completes behind `completed`.

        `time_us`: that of the newest batch. At least once its state may be of later batches than `cut`, whose time must not come again.
        """
        if cut is None:
            raise InternalError(
                f"checkpoint {pending.checkpoint} cannot complete before its batch is finished"
            )
        retained = [*(one.id for one in completed), cut.batch][-self._settings.retained :]
        return Completed(
            job=self._identity.job,
            checkpoint=cut.batch,
            run=self._identity.run,
            mode=self._settings.delivery_mode.value,
            parallelism=self._identity.parallelism,
            max_parallelism=self._identity.max_parallelism,
            barrier=cut.barrier,
            operators=self._identity.operators(pending.acknowledged),
            transactions=transactions,
            subtasks=tuple(self._reports(cut)),
            triggered_at=pending.triggered.wall,
            completed_at=now.wall,
            barrier_at=cut.finished_at,
            duration_ms=round(self._duration_s(pending, cut, now) * 1000, 3),
            restored_from=self._identity.restored_from,
            bad_records=dict(cut.bad_records),
            late_rows=dict(cut.late_rows),
            oldest_retained=retained[0],
            now_us=max(cut.now_us, time_us),
            savepoint=self._identity.savepoint,
            claimed=self._identity.claimed,
            dropped=self._identity.dropped,
            positions_set=dict(self._identity.positions_set),
        )

    def _duration_s(self, pending: Pending, cut: BatchFinished, now: EventTimestamp) -> float:
        """From the trigger on. What was stored before it counts with the time that took: one is triggered while no batch comes."""
        triggered_s = pending.triggered.monotonic
        known = [
            self._uploads[key] for subtask in cut.reports if (key := (subtask, cut.batch)) in self._uploads
        ]
        if not known:
            return now.monotonic - triggered_s
        began_s, done_s = min(one.began_s for one in known), max(one.done_s for one in known)
        waited_s = max(0.0, triggered_s - done_s)  # for the interval, when all was in storage
        return now.monotonic - min(triggered_s, began_s) - waited_s

    def _reports(self, batch: BatchFinished) -> Iterator[SubtaskReport]:
        for subtask in sorted(batch.reports):
            upload = self._uploads.get((subtask, batch.batch))
            yield msgspec.structs.replace(
                batch.reports[subtask],
                async_ms=upload.took_ms if upload else 0.0,
                acknowledged_at=upload.done_at if upload else batch.finished_at,
            )
