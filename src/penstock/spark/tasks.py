"""Penstock's tasks inside Spark: their identity, and their answers. Executors, and the driver that reads the answers.

Answers travel in a Spark accumulator: Spark delivers it with the task's result, so it counts only for attempts that were kept.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import format_exception

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import InternalError
from penstock.long_work import counted_by
from penstock.places import safe_text
from penstock.recovery.state_migration import RestoredSubtask, RestoreTask
from penstock.run.assignment import Answer, Executor, decode_answer, encode_answer
from penstock.snapshot.mailbox import Address, Message, send
from penstock.snapshot.merger import MERGER, Merge
from penstock.snapshot.uploader import UPLOADER, Upload
from penstock.state.handle import StateHandle

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that Spark calls with the rows of a partition."""

_HANDLES = msgspec.json.Decoder(StateHandle)
_TAKEN = msgspec.json.Decoder(RestoredSubtask)


class AnswerList(AccumulatorParam[list[bytes]]):
    """An accumulator of encoded answers."""

    def zero(self, value: list[bytes]) -> list[bytes]:  # noqa: ARG002
        """The empty list of answers."""
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 - PySpark's name
        """Append the second list to the first."""
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class SparkExecutor(Executor):
    """A Python worker of Spark as an `Executor`. One for each batch; it is pickled into its tasks."""

    answers: Accumulator[list[bytes]]
    mailbox: Address

    @classmethod
    def of(cls, session: SparkSession, mailbox: Address) -> SparkExecutor:
        """An executor for the tasks of one batch."""
        return cls(session.sparkContext.accumulator([], AnswerList()), mailbox)

    def given(self) -> list[Answer]:
        """The answers of the attempts that Spark kept. On the driver, after the action."""
        return [decode_answer(one) for one in self.answers.value]

    def forget(self) -> None:
        """Release the answers. PySpark keeps every accumulator as long as its context lives, and answers may hold all of the state."""
        self.answers.value = []

    @property
    @override
    def clock(self) -> Clock:
        return SYSTEM_CLOCK

    @override
    def attempt(self) -> int:
        return _task().taskAttemptId()

    @override
    def partition(self) -> int:
        return _task().partitionId()

    @override
    def answer(self, answer: Answer) -> None:
        tries = _task().attemptNumber() + 1  # only Spark knows how many times it has started the task
        self.answers.add([encode_answer(msgspec.structs.replace(answer, tries=tries))])

    @override
    def upload(self, upload: Upload) -> None:
        UPLOADER.submit(upload)

    @override
    def merge(self, merge: Merge) -> None:
        MERGER.submit(merge)

    @override
    def tell(self, message: Message) -> None:
        send(self.mailbox, message)


@dataclass
class RenamedColumns:
    """A task whose rows may arrive under other column names: they get the names of the plan, by position."""

    names: tuple[str, ...]
    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


@dataclass
class WorkerTask:
    """A task in a Python worker of Spark, whose exceptions Spark can read.

    The worker writes them as UTF-8, and Spark waits forever for one that cannot be encoded.
    """

    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        with readable_errors():
            yield from self.task(batches)
        freeze_modules()


MORE_MODULES = 1.2
_frozen_modules = 0


def freeze_modules() -> None:
    """Keep the objects of imported modules out of garbage collections.

    PySpark collects garbage after every task. Over the objects of all modules, that takes longer than most tasks of small batches.
    What is alive at that moment is kept forever, so a few modules that are imported later are not worth it.
    """
    global _frozen_modules  # noqa: PLW0603 - of the process, as the garbage collector
    if len(sys.modules) > MORE_MODULES * _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


@contextmanager
def readable_errors() -> Iterator[None]:
    """Exceptions that are raised inside can be encoded as UTF-8, and have no passwords: Spark logs them."""
    try:
        yield
    except Exception as error:
        text = "".join(format_exception(error))
        safe = safe_text(text)
        if safe == text:
            raise
        raise RuntimeError(safe) from None


@dataclass(frozen=True)
class _InATask:
    work: RestoreTask
    done: Accumulator[int]
    """The number of completed tasks."""

    def __call__(self, encoded: bytes) -> bytes:
        with readable_errors():
            taken = self.work(_HANDLES.decode(encoded), _task().taskAttemptId())
            self.done.add(1)
            return msgspec.json.encode(taken)


def run_restore_tasks(
    session: SparkSession, work: RestoreTask, handles: Sequence[StateHandle]
) -> Sequence[RestoredSubtask]:
    """Run the task for every handle, as one Spark job."""
    items = [msgspec.json.encode(handle) for handle in handles]
    context = session.sparkContext
    done = context.accumulator(0)
    with counted_by(lambda: int(done.value), len(items)):
        results = context.parallelize(items, len(items)).map(_InATask(work, done)).collect()
    return [_TAKEN.decode(result) for result in results]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InternalError("this runs only inside a Spark task")
    return task
