"""The sink `Foreach`: a plain function, called in the task with every batch of rows. Executors.

Nothing is staged and nothing is committed: what the function does is done when it returns, before the checkpoint of its batch is complete,
and is done again when the job goes back to an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import InternalError
from penstock.sinks.functions.user_function import checked_function, shown_function
from penstock.sinks.two_phase_commit import Delivery, Transaction, TransactionContext, TwoPhaseCommitSink

ForeachFunction = Callable[[pa.RecordBatch, TransactionContext], object]


class Foreach(TwoPhaseCommitSink):
    """Call `function(batch, context)` in the task, for targets that no other sink knows. At least once, whatever the mode.

    `context` names job, sink, run, checkpoint, subtask and attempt. The function is pickled into tasks: open connections inside it. What it
    writes is visible at once. It is called again for the same rows when Spark repeats a task, and when the job goes back
    to its last checkpoint; the batches may then be cut differently. An error in it fails the task, and the job goes back.
    """

    delivery = Delivery.AT_LEAST_ONCE
    explanation = (
        "writes on its own, while a batch runs and before its checkpoint is complete: rows since the last checkpoint are written "
        "again after a failure, and those of a task when Spark repeats it"
    )

    def __init__(self, function: ForeachFunction) -> None:
        self.function: ForeachFunction = checked_function("Foreach", function, ("batch", "context"))
        self._context: TransactionContext | None = None

    def __repr__(self) -> str:
        return f"Foreach({shown_function(self.function)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_context": None}

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Remember who writes; nothing is opened."""
        self._context = context
        return msgspec.structs.asdict(context)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Call the function; an empty batch is not shown to it."""
        if self._context is None or msgspec.structs.asdict(self._context) != dict(transaction):
            raise InternalError(f"{self!r} was asked to write to what it did not begin", **dict(transaction))
        if batch.num_rows == 0:
            return
        try:
            self.function(batch, self._context)
        except Exception as error:
            error.add_note(
                f"raised by {shown_function(self.function)}, the function of the sink {self._context.sink!r}, in checkpoint "
                f"{self._context.checkpoint}, subtask {self._context.subtask}; what it had written stays, and is written again"
            )
            raise

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Everything is done already."""
        self._context = None
        return transaction

    def commit(self, transaction: Transaction) -> None:
        """Everything was done in the task."""

    def abort(self, transaction: Transaction) -> None:  # noqa: ARG002 - what the function did cannot be taken back
        """Forget the transaction; what the function did stays."""
        self._context = None

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:  # noqa: ARG002 - there is nothing to find
        """Nothing is ever left to commit or abort."""
        return []
