"""Any sink as one simulated process has it: a call may be its last, or may fail, before or after it takes effect."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import pyarrow as pa

from penstock.errors import UnavailableError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.testing.simulation.lifeline import Lifeline

T = TypeVar("T")


class FlakySink(TwoPhaseCommitSink):
    """Fails with probability `flakiness`, half of the time after the work was done."""

    def __init__(
        self, inner: TwoPhaseCommitSink, lifeline: Lifeline, rng: random.Random, *, flakiness: float = 0.0
    ) -> None:
        self._inner = inner
        self._lifeline = lifeline
        self._rng = rng
        self._flakiness = flakiness

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """See `TwoPhaseCommitSink.begin_transaction`."""
        return self._call(f"begin {context.transaction_id}", lambda: self._inner.begin_transaction(context))

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """See `TwoPhaseCommitSink.write`."""
        self._call(f"write {_name(transaction)}", lambda: self._inner.write(transaction, batch))

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """See `TwoPhaseCommitSink.pre_commit`."""
        return self._call(f"pre_commit {_name(transaction)}", lambda: self._inner.pre_commit(transaction))

    def commit(self, transaction: Transaction) -> None:
        """See `TwoPhaseCommitSink.commit`."""
        self._call(f"commit {_name(transaction)}", lambda: self._inner.commit(transaction))

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """See `TwoPhaseCommitSink.commit_all`: in one call if the sink has its own, so that the process can die in between otherwise."""
        if type(self._inner).commit_all is TwoPhaseCommitSink.commit_all:
            super().commit_all(transactions)
            return
        wanted = list(transactions)
        label = f"commit {', '.join(map(_name, wanted))}"
        self._call(label, lambda: self._inner.commit_all(wanted))

    def abort(self, transaction: Transaction) -> None:
        """See `TwoPhaseCommitSink.abort`."""
        self._call(f"abort {_name(transaction)}", lambda: self._inner.abort(transaction))

    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        """See `TwoPhaseCommitSink.find_transactions`."""
        return self._call(f"find_transactions {sink}", lambda: list(self._inner.find_transactions(job, sink)))

    def _call(self, label: str, effect: Callable[[], T]) -> T:
        self._lifeline.enter(label)
        fails = self._rng.random() < self._flakiness
        if fails and self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            raise UnavailableError(f"simulated: {label} failed, nothing was done")
        result = effect()
        self._lifeline.leave()
        if fails:
            raise UnavailableError(f"simulated: {label} was performed, the answer is lost")
        return result


def _name(transaction: Transaction) -> str:
    place = (transaction[part] for part in ("sink", "run", "checkpoint", "subtask", "attempt"))
    return ".".join(map(str, place))
