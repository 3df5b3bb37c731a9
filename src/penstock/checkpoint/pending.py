"""Checkpoints that have been triggered and are not complete yet: when one begins, completes or is given up. Pure; driver.

What always holds:
1. At most `max_concurrent` checkpoints are under way. Triggers are at least `interval` apart, and `min_pause` after the end of the last
   checkpoint, unless a request waits for one. If such an early checkpoint fails, the schedule does not change: the next one is triggered
   when the interval says so, and `tolerable_failures` counts only checkpoints of the schedule.
2. Metadata is written for one checkpoint at a time, oldest first, because each names what the previous ones leave.
3. A checkpoint ends once: completed or given up. It is not given up while its metadata is being written, because it may exist already.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoint.events import BatchFinished, FailJob, FailureReason, SnapshotDeclined
from penstock.checkpoint.model import Completed
from penstock.config import Checkpointing
from penstock.errors import InternalError
from penstock.ids import CheckpointId, SubtaskId
from penstock.state.handle import StateHandle
from penstock.wording import duration

MOST_MISSING = 8
"""Subtasks that are named one by one."""


class PendingLive(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that has begun and is not complete."""

    checkpoint: int
    triggered_at: float
    barrier_at: float = 0.0
    """0: its batch is not done."""
    acknowledged: int = 0
    subtasks: int = 0
    missing: tuple[str, ...] = ()
    """Some of the subtasks that have not acknowledged yet."""


@dataclass(frozen=True)
class EventTimestamp:
    """The time of an event: for intervals, and for people."""

    monotonic: float
    wall: float


@dataclass
class Pending:
    """It waits for its batch, then for an acknowledgement with a durable handle from every subtask, then for its metadata."""

    checkpoint: CheckpointId
    triggered: EventTimestamp
    batch: BatchFinished | None = None
    acknowledged: dict[SubtaskId, StateHandle] = field(default_factory=dict)
    writing: Completed | None = None
    _declines: list[SnapshotDeclined] = field(default_factory=list)

    def decline(self, event: SnapshotDeclined) -> None:
        """The state that some attempt of a subtask had frozen could not be stored."""
        self._declines.append(event)

    @property
    def declined(self) -> SnapshotDeclined | None:
        """Failed snapshots. Those of attempts that Spark kept make the checkpoint impossible, which is known when the batch is finished."""
        if self.batch is None:
            return None
        waited_for = {subtask: self.batch.handles[subtask].files for subtask in self.missing()}
        return next((one for one in self._declines if waited_for.get(one.subtask) == one.asked), None)

    def attach(self, batch: BatchFinished) -> None:
        """The barrier has passed the whole job."""
        self.batch = batch

    def acknowledge_durable(self, durable: AbstractSet[str]) -> None:
        """Acknowledge every subtask whose state at this very barrier is in storage."""
        if self.batch is None:
            return
        for subtask, handle in self.batch.handles.items():
            if subtask not in self.acknowledged and handle.files <= durable:
                self.acknowledged[subtask] = handle

    def take(self, versions: dict[SubtaskId, StateHandle]) -> None:
        """At least once: take a version at or after the barrier. A checkpoint that is being written does not change."""
        if self.batch is not None and self.writing is None:
            self.acknowledged = versions

    @property
    def last_version(self) -> CheckpointId:
        """The latest batch that some part of its state has seen."""
        return CheckpointId(
            max((handle.version for handle in self.acknowledged.values()), default=self.checkpoint)
        )

    def missing(self) -> list[SubtaskId]:
        """The subtasks that have not acknowledged."""
        return [] if self.batch is None else sorted(set(self.batch.handles) - set(self.acknowledged))

    @property
    def live(self) -> PendingLive:
        """What people see of it."""
        missing, subtasks = self.missing(), len(self.batch.handles) if self.batch else 0
        return PendingLive(
            checkpoint=self.checkpoint,
            triggered_at=self.triggered.wall,
            barrier_at=self.batch.finished_at if self.batch else 0.0,
            acknowledged=subtasks - len(missing),
            subtasks=subtasks,
            missing=tuple(map(str, missing[:MOST_MISSING])),
        )

    def who_is_late(self, timeout_s: float) -> str:
        """Describes for people what the checkpoint waited for in vain."""
        after = f"after {duration(timeout_s)}"
        if self.batch is None:
            return f"{after}: its batch is still being processed; if that is normal, raise checkpoint.timeout"
        missing = self.missing()
        names = ", ".join(map(str, missing[:MOST_MISSING]))
        return (
            f"{after}: {len(missing)} of {len(self.batch.handles)} subtasks did not acknowledge ({names}); "
            "if those executors are alive, raise checkpoint.timeout"
        )

    @property
    def ready(self) -> bool:
        """Whether only the metadata is missing."""
        return self.batch is not None and self.writing is None and not self.missing()

    @property
    def files(self) -> set[str]:
        """Every file it may come to name."""
        handles = list(self.acknowledged.values()) + (list(self.batch.handles.values()) if self.batch else [])
        read = self.batch.barrier.files if self.batch else frozenset()
        return set(read).union(*(handle.files for handle in handles))


PAUSE_AFTER_FAILURE_S = 5.0
"""The pause before a requested checkpoint is tried again after a failure, unless `min_pause` is longer."""


class PendingCheckpoints:
    """The pending checkpoints of one run; decides when one is triggered, expires or counts as a failure."""

    def __init__(self, settings: Checkpointing, started: EventTimestamp) -> None:
        self._settings = settings
        self._last_trigger = started.monotonic
        self._last_end = float("-inf")
        self._last_failure = float("-inf")
        self._ahead: set[CheckpointId] = set()
        """Checkpoints that were triggered early, because of a request."""
        self._failures_in_a_row = 0
        self.pending: dict[CheckpointId, Pending] = {}

    # ── triggering ─────────────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """Whether `max_concurrent` checkpoints are under way."""
        return len(self.pending) >= self._settings.max_concurrent

    def is_time(self, now: EventTimestamp) -> bool:
        """Whether the settings want the next one."""
        return (
            now.monotonic - self._last_trigger >= self._settings.interval_s
            and now.monotonic - self._last_end >= self._settings.min_pause_s
        )

    def due(self, now: EventTimestamp, *, at_once: bool = False) -> bool:
        """Whether the next one may begin. `at_once`: a request waits for it, so the interval does not matter."""
        pause_s = max(PAUSE_AFTER_FAILURE_S, self._settings.min_pause_s)
        may_be_ahead = at_once and now.monotonic - self._last_failure >= pause_s
        return (may_be_ahead or self.is_time(now)) and not self.full

    def trigger(self, checkpoint: CheckpointId, now: EventTimestamp, *, ahead: bool = False) -> Pending:
        """Begin one. `ahead`: early, only because of a request."""
        if ahead:
            self._ahead.add(checkpoint)
        else:
            self._last_trigger = now.monotonic
        self.pending[checkpoint] = Pending(checkpoint, now)
        return self.pending[checkpoint]

    # ── looking ────────────────────────────────────────────────────────────────────────────────

    def in_order(self) -> list[Pending]:
        """All pending checkpoints, the oldest first."""
        return [self.pending[number] for number in sorted(self.pending)]

    def not_being_written(self) -> list[Pending]:
        """Those that can be given up, the oldest first."""
        return [one for one in self.in_order() if not one.writing]

    def in_the_way(self) -> list[Pending]:
        """Those that must be given up before another may be triggered, if they can be given up."""
        too_many = len(self.pending) - self._settings.max_concurrent + 1
        return self.not_being_written()[: max(0, too_many)]

    def late(self, now: EventTimestamp) -> list[tuple[Pending, str]]:
        """Those that have timed out, and what each waited for."""
        timeout_s = self._settings.timeout_s
        return [
            (one, one.who_is_late(timeout_s))
            for one in self.not_being_written()
            if now.monotonic - one.triggered.monotonic >= timeout_s
        ]

    def next_to_write(self) -> Pending | None:
        """The oldest that can complete, unless one is being written."""
        if any(one.writing for one in self.pending.values()):
            return None
        return next((one for one in self.in_order() if one.ready), None)

    def being_written(self, checkpoint: CheckpointId) -> Pending:
        """The one whose metadata has this number."""
        return self._being_written(checkpoint)[0]

    def _being_written(self, checkpoint: CheckpointId) -> tuple[Pending, Completed]:
        for pending in self.pending.values():
            if pending.writing is not None and pending.writing.id == checkpoint:
                return pending, pending.writing
        raise InternalError(f"checkpoint {checkpoint} is not being written")

    # ── ending ─────────────────────────────────────────────────────────────────────────────────

    def is_ahead(self, pending: Pending) -> bool:
        """Whether it was triggered before its time."""
        return pending.checkpoint in self._ahead

    def complete(self, checkpoint: CheckpointId, now: EventTimestamp) -> Completed:
        """The metadata with this number is written: the checkpoint exists."""
        pending, written = self._being_written(checkpoint)
        self._end(pending, now)
        self._last_trigger = max(self._last_trigger, pending.triggered.monotonic)
        self._failures_in_a_row = 0
        return written

    def given_up(
        self, pending: Pending, reason: FailureReason, detail: str, now: EventTimestamp, back_to: CheckpointId
    ) -> list[FailJob]:
        """End a checkpoint that never completes. If too many have failed in a row, the job goes `back_to` its last checkpoint."""
        counts = reason.counts and pending.checkpoint not in self._ahead
        self._end(pending, now)
        self._last_failure = now.monotonic if reason.counts else self._last_failure
        self._failures_in_a_row += counts
        if not counts or self._failures_in_a_row <= self._settings.tolerable_failures:
            return []
        text = (
            f"checkpoint {pending.checkpoint} {reason.text} ({detail}); it is failure {self._failures_in_a_row} in a row and "
            f"checkpoint.tolerable_failures is {self._settings.tolerable_failures}, so the job goes back to "
            f"{f'checkpoint {back_to}' if back_to >= 0 else 'its beginning'}"
        )
        return [FailJob(text)]

    def _end(self, pending: Pending, now: EventTimestamp) -> None:
        del self.pending[pending.checkpoint]
        self._ahead.discard(pending.checkpoint)
        self._last_end = now.monotonic
