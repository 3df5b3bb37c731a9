"""A checkpoint that has been triggered and is not complete yet. Pure; driver."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.events import BatchFinished
from penstock.ids import CheckpointId, SubtaskId
from penstock.state.handle import StateHandle


@dataclass
class Pending:
    """It waits for its batch, then for an acknowledgement with a durable handle from every subtask, then for its metadata."""

    checkpoint: CheckpointId
    triggered_at: float
    triggered_wall: float
    batch: BatchFinished | None = None
    acknowledged: dict[SubtaskId, StateHandle] = field(default_factory=dict)
    writing: Completed | None = None

    def attach(self, batch: BatchFinished, durable: AbstractSet[str]) -> None:
        """The barrier has passed the whole job; a subtask whose files are all in storage has nothing left to do."""
        self.batch = batch
        self.acknowledge_durable(durable)

    def acknowledge_durable(self, durable: AbstractSet[str]) -> None:
        """Acknowledge every subtask whose state at this very barrier is in storage."""
        if self.batch is None:
            return
        for subtask, handle in self.batch.handles.items():
            if subtask not in self.acknowledged and handle.files <= durable:
                self.acknowledged[subtask] = handle

    def acknowledge_later(self, handle: StateHandle) -> None:
        """At least once: a version at or after the barrier will do."""
        if handle.version >= self.checkpoint:
            self.acknowledged.setdefault(handle.subtask, handle)

    def missing(self) -> list[SubtaskId]:
        """The subtasks that have not acknowledged."""
        return [] if self.batch is None else sorted(set(self.batch.handles) - set(self.acknowledged))

    @property
    def ready(self) -> bool:
        """Whether only the metadata is missing."""
        return self.batch is not None and self.writing is None and not self.missing()

    @property
    def files(self) -> set[str]:
        """Every file it may come to name."""
        handles = list(self.acknowledged.values()) + (list(self.batch.handles.values()) if self.batch else [])
        return {name for handle in handles for name in handle.files}
