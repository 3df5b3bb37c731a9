"""The sinks `Foreach` and `WriteAheadLog`, which call a function of the user.

`Foreach` calls it in the task with every batch of rows. Nothing is staged and nothing is committed: the function has its effect before the
checkpoint of its batch is complete, and again when the job goes back to an earlier checkpoint.

`WriteAheadLog` stages rows and calls it on the driver when their checkpoint is complete.
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
    """Refuse what cannot be called with these arguments, and async functions, which have done nothing when the call returns."""
    wanted = f"{setting} takes a function of ({', '.join(arguments)})"
    if not callable(function):
        raise ConfigError(f"{wanted}, not {type(function).__name__}", setting=setting)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{wanted} that does its work before it returns, but {shown_function(function)} is async or a generator; wrap it in a "
            "plain function that waits for it",
            setting=setting,
        )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{wanted}, but {shown_function(function)} cannot be called with them: {error}", setting=setting
        ) from error
    except ValueError:  # a function in C without a signature: the first call shows whether it fits
        return function
    return function


def shown_function(function: Callable[..., Any]) -> str:
    """Name a function without its arguments: a partial or an object may hold a password."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


ForeachFunction = Callable[[pa.RecordBatch, TransactionContext], object]


class Foreach(TwoPhaseCommitSink):
    """Call `function(batch, context)` in the task, for targets that no other sink supports. At least once, whatever the mode.

    `context` names job, sink, run, checkpoint, subtask and attempt. The function is pickled into tasks: open connections inside it. What it
    writes is visible at once. It is called again for the same rows when Spark repeats a task, and when the job goes back
    to its last checkpoint; the batches may then be split differently. An error in it fails the task, and the job goes back.
    """

    delivery = Delivery.AT_LEAST_ONCE
    explanation = (
        "writes on its own, while a batch runs and before its checkpoint is complete: rows since the last checkpoint are written "
        "again after a failure, and the rows of a task when Spark repeats it"
    )

    def __init__(self, function: ForeachFunction) -> None:
        self.function: ForeachFunction = checked_function("Foreach", function, ("batch", "context"))
        self._context: TransactionContext | None = None

    def __repr__(self) -> str:
        return f"Foreach({shown_function(self.function)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_context": None}

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Remember the context; nothing is opened."""
        self._context = context
        return msgspec.structs.asdict(context)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Call the function, unless the batch is empty."""
        if self._context is None or msgspec.structs.asdict(self._context) != dict(transaction):
            raise InternalError(
                f"{self!r} was asked to write to a transaction that it did not begin", **dict(transaction)
            )
        if batch.num_rows == 0:
            return
        try:
            self.function(batch, self._context)
        except Exception as error:
            error.add_note(
                f"raised by {shown_function(self.function)}, the function of the sink {self._context.sink!r}, in checkpoint "
                f"{self._context.checkpoint}, subtask {self._context.subtask}; what it has written stays, and is written again"
            )
            raise

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Forget the context; the function has already done its work."""
        self._context = None
        return transaction

    def commit(self, transaction: Transaction) -> None:
        """Do nothing; the function has done its work in the task."""

    def abort(self, transaction: Transaction) -> None:  # noqa: ARG002 - what the function did cannot be undone
        """Forget the context; what the function did stays."""
        self._context = None

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:  # noqa: ARG002 - there is nothing to find
        """Return nothing: there is never anything left to commit or abort."""
        return []


HandoverFunction = Callable[[pa.Table, int, str], object]


class WriteAheadLog(HandoverSink):
    """Call `function(table, checkpoint, transaction)` on the driver, after the checkpoint completed, in checkpoint order.

    The function never gets rows that a failure could take back. One call gets the rows of one task; `transaction` is unique
    among all calls, and the same when a call is repeated, so that the function can recognise it. A call is repeated when the
    function raised (after a growing pause), and when the process died between the call and its entry in the commit log. Set
    `idempotent=True` if repeated calls do no harm. The function stays on the driver: it may hold open connections.
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
        """The guarantee depends on the function."""
        return Delivery.IDEMPOTENT if self.idempotent else Delivery.AT_LEAST_ONCE

    @property
    def explanation(self) -> str:  # type: ignore[override]
        """Which calls may be repeated, and when."""
        repeated = (
            "a call is repeated, with the same transaction id, only when the function raised or when the process died between the "
            "call and its entry in the commit log"
        )
        if self.idempotent:
            return f"hands rows over when their checkpoint completes: {repeated}, which does no harm according to idempotent=True"
        return (
            f"hands rows over when their checkpoint completes, but the target has no transactions: {repeated}"
        )

    def __repr__(self) -> str:
        function = "?" if self.function is None else shown_function(self.function)
        return f"WriteAheadLog({function}, staging={str(self.staging)!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the function out: tasks only stage rows."""
        return {**super().__getstate__(), "function": None}

    def hand_over(self, rows: pa.Table, transaction: StagedTransaction) -> None:
        """Call the function with the rows of one transaction."""
        if self.function is None:
            raise InternalError(f"{self!r} was asked to commit in a task", transaction=transaction.name)
        self.function(rows, transaction.checkpoint, transaction.name)
