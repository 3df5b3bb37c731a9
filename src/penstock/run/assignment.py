"""The assignment that the driver gives to the tasks of one batch, and their answers. Driver and executors.

Answers travel with the result of a task, so they count only for attempts that Spark kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.checkpoint.model import PreCommitted, SubtaskReport
from penstock.clock import Clock
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.operators.event_time import OperatorClock
from penstock.snapshot.mailbox import Address, Message
from penstock.snapshot.merger import Merge
from penstock.snapshot.uploader import Upload
from penstock.state.backends.base import FormerUids, StateBackend
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import StateTime, SwitchedOn
from penstock.state.merge_orders import MergeOrder
from penstock.storage import Storage


@dataclass(frozen=True)
class RunPlace:
    """The properties of a run that are the same in all its batches, as its tasks see them."""

    job: str
    """The owner of its transactions, see `JobRecord`."""
    run: RunId
    parallelism: int
    max_parallelism: int
    storage: Storage
    backend: StateBackend
    local_dir: Path
    """Folder for the working files of the run, on the machine that reads this."""
    local_recovery: bool
    """Whether the run reuses files that earlier runs left on the machine."""
    mailbox: Address
    former_uids: FormerUids = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """One batch of one run, as its tasks see it."""

    place: RunPlace
    batch: CheckpointId
    handles: Mapping[SubtaskId, StateHandle]
    undurable: frozenset[str]
    """Files of the previous version that are not known to be in storage."""
    keep: frozenset[str]
    """Local files that a pending checkpoint may still have to upload."""
    merges: Mapping[SubtaskId, MergeOrder]
    """The merges that tasks start in the background after the batch, by subtask."""
    merging: frozenset[str]
    """Files that a running merge is about to replace."""
    expecting: frozenset[SubtaskId]
    """Subtasks with a merge from an earlier batch whose result no handle names yet."""
    forget_earlier_runs: bool
    """Whether a checkpoint of this run is complete, so that files of earlier runs are no longer needed."""
    awaited: frozenset[int]
    """The checkpoints that were pending when the batch began."""
    newest_will_do: bool
    """At least once: a subtask may upload a later version than the requested one."""
    now_us: int = 0
    """The time of the batch, by which state expires."""
    switched_on_us: SwitchedOn = field(default_factory=dict)
    clocks: Mapping[str, OperatorClock] = field(default_factory=dict)
    """By operator; an operator that is missing here has no event time."""
    wake: frozenset[str] = frozenset()
    """Operators whose subtasks all run, even without rows: each gets one extra row, which is removed before its code sees it."""

    ends_event_time: bool = False
    """Whether event time has ended: all state that expires by event time is removed for good."""

    def time_of(self, uid: str) -> StateTime:
        """The times by which the state of an operator expires."""
        clock = self.clock_of(uid)
        return StateTime(self.now_us, self.switched_on_us.get(uid, {}), clock.before_us, clock.fired_us)

    def clock_of(self, uid: str) -> OperatorClock:
        """The event time at an operator before this batch, and the time to which the batch advances it."""
        return self.clocks.get(uid) or OperatorClock(now_us=self.now_us)

    @property
    def required(self) -> bool:
        """Whether a checkpoint waits for the state at the end of this batch."""
        return self.batch in self.awaited


class BadCount(msgspec.Struct, frozen=True):
    """How many rows failed and were left out, out of how many, and the reason of the first."""

    rows: int = 0
    of: int = 0
    first_reason: str = ""

    def plus(self, other: BadCount) -> BadCount:
        """The sum of both counts."""
        reason = self.first_reason or other.first_reason
        return BadCount(self.rows + other.rows, self.of + other.of, reason)


class OperatorAnswer(msgspec.Struct, frozen=True, tag="operator"):
    """The answer of one kept attempt of an operator's task. Without a handle it had no rows, and its subtask keeps its state."""

    uid: str
    attempt: int
    handle: StateHandle | None
    report: SubtaskReport | None
    bad: BadCount = BadCount()
    late: int = 0
    """The number of late rows."""
    tries: int = 1
    """How many times Spark started the task in this batch."""
    state_ms: float = 0.0
    """How long it took to open and to freeze the state."""


class SinkAnswer(msgspec.Struct, frozen=True, tag="sink"):
    """The answer of one kept attempt of a sink's task. Without a transaction it had no rows."""

    uid: str
    subtask: int
    attempt: int
    transaction: PreCommitted | None
    bad: BadCount = BadCount()
    tries: int = 1


Answer = OperatorAnswer | SinkAnswer
_ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode_answer(answer: Answer) -> bytes:
    """Encode an answer for the way to the driver."""
    return msgspec.json.encode(answer)


def decode_answer(encoded: bytes) -> Answer:
    """Decode the answer of a task."""
    return _ANSWERS.decode(encoded)


class Executor(Protocol):
    """The worker that runs a task. It is made on the driver and sent with the task."""

    @property
    def clock(self) -> Clock:
        """The clock of the worker's machine."""
        ...

    def attempt(self) -> int:
        """A number that is unique among all task attempts of the run."""
        ...

    def partition(self) -> int:
        """The index of this task among the tasks of the same stage."""
        ...

    def answer(self, answer: Answer) -> None:
        """Send the result of the task to the driver. It counts only if Spark keeps this attempt."""
        ...

    def upload(self, upload: Upload) -> None:
        """Upload state later, in the background. The worker may die before."""
        ...

    def merge(self, merge: Merge) -> None:
        """Merge state later, in the background. The worker may die before."""
        ...

    def tell(self, message: Message) -> None:
        """Send a message to the driver at once, whether or not this attempt is kept. Raises `OSError` if the driver cannot be reached."""
        ...
