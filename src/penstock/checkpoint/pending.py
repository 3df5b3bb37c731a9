"""A checkpoint that has been triggered and is not complete yet. Pure; driver."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.events import BatchFinished, SnapshotDeclined
from penstock.ids import CheckpointId, SubtaskId
from penstock.state.handle import StateHandle
from penstock.wording import duration


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
        """What makes it impossible: a snapshot of an attempt that Spark kept. Which those are is known when the batch is finished."""
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
        """At least once: a version at or after the barrier will do. What is being written stays as it is."""
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

    def who_is_late(self, timeout_s: float) -> str:
        """What it waited for in vain, for people."""
        after = f"after {duration(timeout_s)}"
        if self.batch is None:
            return f"{after}: its batch is still being processed; if that is normal, raise checkpoint.timeout"
        missing = self.missing()
        names = ", ".join(str(subtask) for subtask in missing[:8])
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
