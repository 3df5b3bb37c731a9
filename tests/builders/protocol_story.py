"""Tell a protocol what happens, in few words, and see what it wants done."""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa

from penstock.checkpoint.content import Identity
from penstock.checkpoint.events import (
    Action,
    Announce,
    BatchFinished,
    Commit,
    Committed,
    Discard,
    Event,
    MetadataWritten,
    SnapshotDurable,
    TimePassed,
    WriteMetadata,
)
from penstock.checkpoint.model import (
    Barrier,
    Completed,
    OperatorState,
    PreCommitted,
    SubtaskReport,
)
from penstock.checkpoint.pending import EventTimestamp
from penstock.checkpoint.protocol import Protocol
from penstock.checkpoint.state_columns import columns_of
from penstock.config import Checkpointing
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.state.backends.base import StateLayout
from penstock.state.handle import FileRef, StateHandle
from penstock.testing.virtual import VirtualClock

A = TypeVar("A", bound=Action)

JOB = "story"
RUN = RunId(3)
SUBTASKS = (SubtaskId("views", 0), SubtaskId("views", 1))
STATE = StateLayout(pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())]))
LAYOUT = columns_of(STATE)


def handle(subtask: SubtaskId, version: int, *files: str) -> StateHandle:
    """A handle that names these files."""
    refs = tuple(FileRef(1, 10, "checksum", name) for name in files)
    return StateHandle(subtask, "filesystem", version, refs)


def file_of(subtask: SubtaskId, version: int) -> str:
    """The file that a subtask usually writes in a batch."""
    return f"state/{subtask}-{version}"


def handles_at(version: int) -> dict[SubtaskId, StateHandle]:
    """Every subtask has written one new file and names nothing else."""
    return {subtask: handle(subtask, version, file_of(subtask, version)) for subtask in SUBTASKS}


def transaction(batch: int, sink: str = "out", subtask: int = 0, attempt: int = 0) -> PreCommitted:
    """One that a sink task of the batch pre-committed."""
    identity: dict[str, Any] = {"run": RUN, "checkpoint": batch, "subtask": subtask, "attempt": attempt}
    return PreCommitted(sink, batch, subtask, identity, rows=1)


def completed(
    number: int, *files: str, run: int = RUN, transactions: tuple[PreCommitted, ...] = ()
) -> Completed:
    """A checkpoint of one subtask that names these files."""
    own = (handle(SUBTASKS[0], number, *files),)
    views = OperatorState(LAYOUT.key, LAYOUT.value, own, schema=LAYOUT.schema)
    return Completed(
        job=JOB,
        checkpoint=number,
        run=run,
        mode="exactly-once",
        max_parallelism=8,
        parallelism=1,
        barrier=Barrier(),
        operators={"views": views},
        transactions=transactions,
    )


class Story:
    """A protocol under a virtual clock."""

    def __init__(self, *, restored: tuple[Completed, ...] = (), **settings: Any) -> None:
        self.clock = VirtualClock()
        self.settings = Checkpointing(**{"interval": "10s", "timeout": "60s", **settings})
        identity = Identity(JOB, RUN, len(SUBTASKS), 8, {"views": LAYOUT}, {"views": ()})
        self.protocol = Protocol(self.settings, identity, restored, self.now)
        self.actions: list[Action] = []

    @property
    def now(self) -> EventTimestamp:
        return EventTimestamp(self.clock.monotonic(), self.clock.wall())

    def after(self, seconds: float) -> Story:
        """Let time pass."""
        self.clock.advance(seconds)
        return self

    def tell(self, event: Event) -> list[Action]:
        """Hand in an event; returns what is to be done, and remembers it."""
        actions = self.protocol.handle(event, self.now)
        self.actions += actions
        return actions

    def tick(self, seconds: float = 0.0) -> list[Action]:
        """Let time pass and say so."""
        return self.after(seconds).tell(TimePassed())

    def begin(self, batch: int, seconds: float = 0.0) -> bool:
        """Begin a batch, after some time; says whether it ends in a checkpoint."""
        self.after(seconds)
        return self.protocol.begin_batch(CheckpointId(batch), self.now)

    def finish(
        self,
        batch: int,
        *transactions: PreCommitted,
        handles: dict[SubtaskId, StateHandle] | None = None,
    ) -> list[Action]:
        """The barrier of a batch has passed the whole job."""
        handles = handles_at(batch) if handles is None else handles
        reports = {subtask: SubtaskReport(subtask) for subtask in handles}
        barrier = Barrier({"source": batch}, f"entry {batch}")
        return self.tell(BatchFinished(CheckpointId(batch), barrier, handles, transactions, reports))

    def store(self, version: int, *subtasks: SubtaskId) -> list[Action]:
        """The usual files of these subtasks (all) are in storage."""
        actions: list[Action] = []
        for subtask in subtasks or SUBTASKS:
            actions += self.tell(SnapshotDurable(handles_at(version)[subtask], async_ms=7.0))
        return actions

    def written(self, checkpoint: int) -> list[Action]:
        """The metadata of a checkpoint exists."""
        return self.tell(MetadataWritten(CheckpointId(checkpoint)))

    def batch(self, number: int, *transactions: PreCommitted, seconds: float = 0.0) -> list[Action]:
        """A whole batch, with its uploads."""
        self.begin(number, seconds)
        return self.finish(number, *transactions) + self.store(number)

    def checkpoint(self, number: int, *transactions: PreCommitted) -> list[Action]:
        """A batch that ends in a checkpoint which completes and is committed; returns what follows from its metadata."""
        actions = self.batch(number, *transactions, seconds=self.settings.interval_s)
        assert [one.completed.checkpoint for one in only(actions, WriteMetadata)] == [number]
        actions = self.written(number)
        for commit in only(actions, Commit):
            actions += self.tell(Committed(commit.transactions))
        return actions


def only(actions: list[Action], kind: type[A]) -> list[A]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def discarded(actions: list[Action]) -> set[str]:
    """The files that are to be deleted."""
    return {name for action in only(actions, Discard) for name in action.files}


def forgotten(actions: list[Action]) -> list[int]:
    """The checkpoints that are to be deleted."""
    return [one.checkpoint for action in only(actions, Discard) for one in action.checkpoints]


def given_up(actions: list[Action]) -> list[tuple[int, str]]:
    """The checkpoints that were given up, and why."""
    return [(action.checkpoint, action.reason.name) for action in only(actions, Announce)]
