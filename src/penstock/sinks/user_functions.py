"""What the user gives as a plain function: checked before anything starts, and shown by name only. Driver.

The sink `Foreach`: a plain function, called in the task with every batch of rows. Executors.

Nothing is staged and nothing is committed: what the function does is done when it returns, before the checkpoint of its batch is complete,
and is done again when the job goes back to an earlier one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError, InternalError
from penstock.sinks.staged_sink import HandoverSink
from penstock.sinks.staging import StagedTransaction
from penstock.sinks.two_phase_commit import Delivery, Transaction, TransactionContext, TwoPhaseCommitSink


def checked_function(
    setting: str, function: Callable[..., Any], arguments: Sequence[str]
) -> Callable[..., Any]:
    """Refuse what cannot be called with these arguments, and what would not be done when the call returns."""
    wanted = f"{setting} takes a function of ({', '.join(arguments)})"
    if not callable(function):
        raise ConfigError(f"{wanted}, not {type(function).__name__}", setting=setting)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{wanted} that is done when it returns, but {shown_function(function)} is async or a generator; wrap it in a "
            "plain function that waits for it",
            setting=setting,
        )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{wanted}, but {shown_function(function)} cannot be called so: {error}", setting=setting
        ) from error
    except ValueError:  # a function in C without a signature: the first call will tell
        return function
    return function


def shown_function(function: Callable[..., Any]) -> str:
    """Name a function without its arguments: a partial or an object may hold a password."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


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


HandoverFunction = Callable[[pa.Table, int, str], object]


class WriteAheadLog(HandoverSink):
    """Call `function(table, checkpoint, transaction)` on the driver, after the checkpoint completed, in checkpoint order.

    Nothing is handed over that a failure could take back. One call gets the rows of one task; `transaction` is unique
    among all calls, and the same when a call is repeated, so that the function can recognise it. A call is repeated when the
    function raised (after a growing pause), and when the process died between the call and the note of it. A function that
    bears this without harm is `idempotent=True`. The function stays on the driver: it may hold open connections.
    """

    def __init__(
        self, function: HandoverFunction, *, staging: str | os.PathLike[str], idempotent: bool = False
    ) -> None:
        super().__init__(staging)
        self.function: HandoverFunction | None = checked_function(
            "WriteAheadLog", function, ("table", "checkpoint", "transaction")
        )
        self.idempotent = idempotent

    @property
    @override
    def delivery(self) -> Delivery:  # type: ignore[override]
        """It depends on the function."""
        return Delivery.IDEMPOTENT if self.idempotent else Delivery.AT_LEAST_ONCE

    @property
    def explanation(self) -> str:  # type: ignore[override]
        """What may repeat, and when."""
        repeated = (
            "a call is repeated, with the same transaction id, only when the function raised or when the process died between the "
            "call and the note of it"
        )
        if self.idempotent:
            return f"hands rows over when their checkpoint completes: {repeated}, which its function is said to bear (idempotent=True)"
        return (
            f"hands rows over when their checkpoint completes, but the target has no transactions: {repeated}"
        )

    def __repr__(self) -> str:
        function = "?" if self.function is None else shown_function(self.function)
        return f"WriteAheadLog({function}, staging={str(self.staging)!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Tasks only stage rows, so the function need not be pickled."""
        return {**super().__getstate__(), "function": None}

    def hand_over(self, rows: pa.Table, transaction: StagedTransaction) -> None:
        """Call the function."""
        if self.function is None:
            raise InternalError(f"{self!r} was asked to commit in a task", transaction=transaction.name)
        self.function(rows, transaction.checkpoint, transaction.name)
