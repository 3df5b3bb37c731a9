"""The sink `WriteAheadLog`: rows are kept with the checkpoint, and given to a plain function when it completes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.errors import InternalError
from penstock.sinks.functions.user_function import checked_function, shown_function
from penstock.sinks.staged.handover import HandoverSink
from penstock.sinks.staged.staging import StagedTransaction
from penstock.sinks.two_phase_commit import Delivery

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
    def delivery(self) -> Delivery:  # type: ignore[override]
        """See `Delivery`: it depends on the function."""
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
