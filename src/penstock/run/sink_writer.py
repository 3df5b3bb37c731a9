"""What a sink's task does with the rows of one batch: begin, write, pre-commit. Executors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.checkpoint.completed import PreCommitted
from penstock.config import OnBadRecord
from penstock.ids import SubtaskId
from penstock.log_fields import about
from penstock.operators.bad_records import BadRecords
from penstock.run.assignment import Assignment, BadCount, Executor, SinkAnswer
from penstock.run.bad_row_search import Sifter
from penstock.run.task_failures import tell_failure
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_log = logging.getLogger(__name__)


@dataclass
class SinkWriter:
    """One sink in one batch: begin, write, pre-commit. The transaction goes to the driver as an answer.

    Yields nothing, or the rows that the sink refuses, as dead letters.
    """

    uid: str
    sink: TwoPhaseCommitSink
    assignment: Assignment
    executor: Executor
    on_bad_record: OnBadRecord = OnBadRecord.FAIL

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        context = self._context()
        bad = BadRecords(self.uid, self.assignment.batch, kept=self.on_bad_record is OnBadRecord.KEEP)
        sifter, rows_in = Sifter(self.sink, context, bad), _Input(batches)
        try:
            write = sifter.write_all if self.on_bad_record is OnBadRecord.FAIL else sifter.write
            rows = write(rows_in)
        except Exception as error:
            self._abort(sifter.open)
            if error is not rows_in.error:
                tell_failure(self.executor, self.assignment, SubtaskId(self.uid, context.subtask), error)
            raise
        prepared = self._pre_committed(context, sifter.open, rows)
        count = BadCount(bad.count, bad.count + rows, bad.first_reason)
        self.executor.answer(SinkAnswer(self.uid, context.subtask, context.attempt, prepared, count))
        yield from bad.letters()

    def _context(self) -> TransactionContext:
        plan = self.assignment
        return TransactionContext(
            job=plan.place.job,
            sink=self.uid,
            run=plan.place.run,
            checkpoint=plan.batch,
            subtask=self.executor.partition(),
            attempt=self.executor.attempt(),
        )

    def _pre_committed(
        self, context: TransactionContext, transaction: Transaction | None, rows: int
    ) -> PreCommitted | None:
        if transaction is None:
            return None
        return PreCommitted(self.uid, context.checkpoint, context.subtask, dict(transaction), rows)

    def _abort(self, transaction: Transaction | None) -> None:
        if transaction is None:
            return
        try:
            self.sink.abort(transaction)
        except Exception as error:  # noqa: BLE001 - the task fails with its own reason; what is left is swept later
            _log.warning(
                "sink %s: a failed task could not abort its transaction, recovery will: %s",
                *(self.uid, error),
                extra=about(operator=self.uid),
            )
            _log.debug(
                "sink %s: where its abort failed", self.uid, exc_info=error, extra=about(operator=self.uid)
            )


class _Input:
    """The rows on their way to a sink. When they end with an error, the sink has nothing to tell: it happened to whoever made them.

    That is an operator in the same worker, which has told it, or Spark and the worker of a Python function, whose stream then breaks off
    in the middle. What reading that says hides the cause, of which Spark has an account.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            self.error = error
            raise


@dataclass
class Fused:
    """An operator whose results go straight into a sink, in one Python worker."""

    first: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    second: SinkWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self.second(self.first(batches))
