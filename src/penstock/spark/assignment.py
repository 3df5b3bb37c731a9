"""What the driver tells the tasks of one batch, and what they answer. Driver and executors.

Answers travel in a Spark accumulator: Spark delivers it with the task's result, so it counts only for attempts that were kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.accumulators import Accumulator, AccumulatorParam

from penstock.checkpoint.completed import PreCommitted, SubtaskReport
from penstock.ids import SubtaskId
from penstock.snapshot.mailbox import Address
from penstock.state.backends.base import StateBackend
from penstock.state.handle import StateHandle
from penstock.state.merge_orders import MergeOrder
from penstock.storage import Storage


@dataclass(frozen=True)
class Assignment:
    """One batch of one run, as every task of it sees it."""

    job: str
    run: int
    batch: int
    parallelism: int
    max_parallelism: int
    storage: Storage
    backend: StateBackend
    local_dir: Path
    mailbox: Address
    handles: dict[SubtaskId, StateHandle]
    undurable: frozenset[str]
    """Files of the version before that are not known to be in storage."""
    keep: frozenset[str]
    """Local files that a pending checkpoint may still have to upload."""
    merges: dict[SubtaskId, MergeOrder]
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

    @property
    def required(self) -> bool:
        """Whether a checkpoint waits for the state at the end of this batch."""
        return self.batch in self.awaited


class OperatorAnswer(msgspec.Struct, frozen=True, tag="operator"):
    """One kept attempt of an operator's task; without a handle it had no rows, and its subtask keeps what it had."""

    uid: str
    attempt: int
    handle: StateHandle | None
    report: SubtaskReport | None


class SinkAnswer(msgspec.Struct, frozen=True, tag="sink"):
    """One kept attempt of a sink's task; without a transaction it had no rows."""

    uid: str
    attempt: int
    transaction: PreCommitted | None


Answer = OperatorAnswer | SinkAnswer
_ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class AnswerList(AccumulatorParam[list[bytes]]):
    """Collects encoded answers."""

    def zero(self, value: list[bytes]) -> list[bytes]:  # noqa: ARG002
        """Start from nothing."""
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 - PySpark's name
        """Join two lists."""
        value1.extend(value2)
        return value1


def add_answer(answers: Accumulator[list[bytes]], answer: Answer) -> None:
    """Called in a task."""
    answers.add([msgspec.json.encode(answer)])


def read_answers(answers: Accumulator[list[bytes]]) -> list[Answer]:
    """Called on the driver, after the action."""
    return [_ANSWERS.decode(one) for one in answers.value]
