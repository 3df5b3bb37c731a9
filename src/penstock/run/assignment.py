"""What the driver tells the tasks of one batch, and what they answer. Driver and executors.

Answers travel with the result of a task, so that they count only for attempts that were kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.checkpoint.completed import PreCommitted, SubtaskReport
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
    """One run, as every task of it sees it: the same in all its batches."""

    job: str
    """The owner of its transactions, see `JobRecord`."""
    run: RunId
    parallelism: int
    max_parallelism: int
    storage: Storage
    backend: StateBackend
    local_dir: Path
    """Working files of the run, on whichever machine this is read."""
    local_recovery: bool
    """Whether files that earlier runs left on the machine are used again."""
    mailbox: Address
    former_uids: FormerUids = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """One batch of one run, as every task of it sees it."""

    place: RunPlace
    batch: CheckpointId
    handles: Mapping[SubtaskId, StateHandle]
    undurable: frozenset[str]
    """Files of the version before that are not known to be in storage."""
    keep: frozenset[str]
    """Local files that a pending checkpoint may still have to upload."""
    merges: Mapping[SubtaskId, MergeOrder]
    """What the task of a subtask starts in the background after its batch."""
    merging: frozenset[str]
    """Files that a merge under way is about to replace."""
    expecting: frozenset[SubtaskId]
    """Subtasks with a merge of an earlier batch whose result no handle names yet."""
    forget_earlier_runs: bool
    """Whether a checkpoint of this run is complete, so that nothing of earlier runs can be taken over any more."""
    awaited: frozenset[int]
    """The checkpoints under way when the batch began."""
    newest_will_do: bool
    """At least once: a subtask may hand in a later version than the one that was asked for."""
    now_us: int = 0
    """The time of the batch, by which state expires."""
    switched_on_us: SwitchedOn = field(default_factory=dict)
    clocks: Mapping[str, OperatorClock] = field(default_factory=dict)
    """By operator; those that are not named know of no event time."""
    wake: frozenset[str] = frozenset()
    """Operators all of whose subtasks are to run, also those without rows: each gets one that is taken away before anybody looks."""

    ends_event_time: bool = False
    """Whether event time has come to its end: all that lived by it has expired, and is removed for good."""

    def time_of(self, uid: str) -> StateTime:
        """What the tasks of an operator are told about time."""
        clock = self.clock_of(uid)
        return StateTime(self.now_us, self.switched_on_us.get(uid, {}), clock.before_us, clock.fired_us)

    def clock_of(self, uid: str) -> OperatorClock:
        """How far event time has come at an operator, and where it goes in this batch."""
        return self.clocks.get(uid) or OperatorClock(now_us=self.now_us)

    @property
    def required(self) -> bool:
        """Whether a checkpoint waits for the state at the end of this batch."""
        return self.batch in self.awaited


class BadCount(msgspec.Struct, frozen=True):
    """How many rows could not be taken and the job went on without, of how many, and why the first."""

    rows: int = 0
    of: int = 0
    first_reason: str = ""

    def plus(self, other: BadCount) -> BadCount:
        """Both together."""
        reason = self.first_reason or other.first_reason
        return BadCount(self.rows + other.rows, self.of + other.of, reason)


class OperatorAnswer(msgspec.Struct, frozen=True, tag="operator"):
    """One kept attempt of an operator's task; without a handle it had no rows, and its subtask keeps what it had."""

    uid: str
    attempt: int
    handle: StateHandle | None
    report: SubtaskReport | None
    bad: BadCount = BadCount()
    late: int = 0
    """How many rows came too late."""
    tries: int = 1
    """How often its task was begun in this batch."""


class SinkAnswer(msgspec.Struct, frozen=True, tag="sink"):
    """One kept attempt of a sink's task; without a transaction it had no rows."""

    uid: str
    subtask: int
    attempt: int
    transaction: PreCommitted | None
    bad: BadCount = BadCount()
    tries: int = 1


Answer = OperatorAnswer | SinkAnswer
_ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode_answer(answer: Answer) -> bytes:
    """For the way to the driver."""
    return msgspec.json.encode(answer)


def decode_answer(encoded: bytes) -> Answer:
    """What a task has said."""
    return _ANSWERS.decode(encoded)


class Executor(Protocol):
    """Made on the driver and sent along with the task."""

    @property
    def clock(self) -> Clock:
        """Time, as it passes there."""
        ...

    def attempt(self) -> int:
        """A number that no other attempt of any task of the run has."""
        ...

    def partition(self) -> int:
        """Which of the tasks that do the same this one is."""
        ...

    def answer(self, answer: Answer) -> None:
        """Tell the driver what came out. It counts only if this attempt is kept."""
        ...

    def upload(self, upload: Upload) -> None:
        """Make state durable later, in the background; the worker may die before."""
        ...

    def merge(self, merge: Merge) -> None:
        """Merge state later, in the background; the worker may die before."""
        ...

    def tell(self, message: Message) -> None:
        """Tell the driver at once, whatever becomes of this attempt. Raises OSError when it cannot be reached."""
        ...
