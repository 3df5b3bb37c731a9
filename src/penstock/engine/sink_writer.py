"""What a sink's task does with the rows of one batch: begin, write, pre-commit. Executors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.checkpoint.completed import PreCommitted
from penstock.engine.assignment import Assignment, SinkAnswer
from penstock.engine.executor import Executor
from penstock.engine.subtask import OperatorTask
from penstock.engine.task_failures import tell_failure
from penstock.ids import SubtaskId
from penstock.sinks.checked_write import write_checked
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink

_log = logging.getLogger(__name__)


@dataclass
class SinkWriter:
    """One sink in one batch: begin, write, pre-commit. Yields nothing; the transaction goes to the driver as an answer."""

    uid: str
    sink: TwoPhaseCommitSink
    assignment: Assignment
    executor: Executor

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        context = self._context()
        transaction: Transaction | None = None
        rows = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    if transaction is None:
                        transaction = self.sink.begin_transaction(context)
                    write_checked(self.sink, transaction, batch)
                    rows += batch.num_rows
            if transaction is not None:
                transaction = self.sink.pre_commit(transaction)
        except Exception as error:
            self._abort(transaction)
            tell_failure(self.executor, self.assignment, SubtaskId(self.uid, context.subtask), error)
            raise
        prepared = self._pre_committed(context, transaction, rows)
        self.executor.answer(SinkAnswer(self.uid, context.attempt, prepared))
        yield from ()

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
                "sink %s: a failed task could not abort its transaction, recovery will: %s", self.uid, error
            )
            _log.debug("sink %s: where its abort failed", self.uid, exc_info=error)


@dataclass
class Fused:
    """An operator whose results go straight into a sink, in one Python worker."""

    first: OperatorTask
    second: SinkWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self.second(self.first(batches))
