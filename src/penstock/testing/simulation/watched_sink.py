"""A real sink in a simulated job: every call is one of the process's I/O calls, before and after which it may die."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import pyarrow as pa
from typing_extensions import override

from penstock.errors import CommitLostError, FencedError, UnavailableError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.testing.simulation.lifeline import Lifeline, Violation

MOST_TRIES = 20
"""Time passes at once here, so a commit that never succeeds would be tried until memory is full."""


class WatchedSink(TwoPhaseCommitSink):
    """The sink as one simulated driver and its tasks use it; `rows_for` makes the target's rows of a result.

    Each transaction is written by an instance of its own, pickled and unpickled, as in a task.
    """

    def __init__(
        self,
        driver: TwoPhaseCommitSink,
        lifeline: Lifeline,
        rows_for: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._driver = driver
        self._pickled = pickle.dumps(driver)
        self._task = driver
        self._failed = 0
        self._lifeline = lifeline
        self._rows_for = rows_for

    @override
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        self._lifeline.enter(f"begin {context.transaction_id}")
        self._task = pickle.loads(self._pickled)  # noqa: S301 - our own bytes, a moment old
        transaction = self._task.begin_transaction(context)
        self._lifeline.leave()
        return transaction

    @override
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        self._lifeline.enter("write")
        self._task.write(transaction, self._rows_for(batch))
        self._lifeline.leave()

    @override
    def pre_commit(self, transaction: Transaction) -> Transaction:
        self._lifeline.enter("pre_commit")
        prepared = self._task.pre_commit(transaction)
        self._lifeline.leave()
        return prepared

    @override
    def commit(self, transaction: Transaction) -> None:
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit in two halves where there are two, so that a process can die between them; the next one commits all."""
        left = list(transactions)
        half = len(left) // 2
        if half:
            self._lifeline.enter("half_of_the_commits")
            self._commit(left[:half])
            self._lifeline.leave()
        self._lifeline.enter("commit")
        self._commit(left[half:])
        self._lifeline.leave()

    def _commit(self, transactions: list[Transaction]) -> None:
        try:
            self._driver.commit_all(transactions)
        except (CommitLostError, FencedError):
            raise
        except Exception as error:
            self._failed += 1
            if self._failed == MOST_TRIES:
                raise Violation(f"commit failed {MOST_TRIES} times, at last with {error!r}") from error
            raise

    @override
    def abort(self, transaction: Transaction) -> None:
        self._lifeline.enter("abort")
        self._driver.abort(transaction)
        self._lifeline.leave()

    @override
    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        self._lifeline.enter(f"find_transactions {sink}")
        found = list(self._driver.find_transactions(job, sink))
        self._lifeline.leave()
        return found


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

    @override
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        return self._call(f"begin {context.transaction_id}", lambda: self._inner.begin_transaction(context))

    @override
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        self._call(f"write {_name(transaction)}", lambda: self._inner.write(transaction, batch))

    @override
    def pre_commit(self, transaction: Transaction) -> Transaction:
        return self._call(f"pre_commit {_name(transaction)}", lambda: self._inner.pre_commit(transaction))

    @override
    def commit(self, transaction: Transaction) -> None:
        self._call(f"commit {_name(transaction)}", lambda: self._inner.commit(transaction))

    @override
    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """In one call if the sink has its own, so that the process can die in between otherwise."""
        if type(self._inner).commit_all is TwoPhaseCommitSink.commit_all:
            super().commit_all(transactions)
            return
        wanted = list(transactions)
        label = f"commit {', '.join(map(_name, wanted))}"
        self._call(label, lambda: self._inner.commit_all(wanted))

    @override
    def abort(self, transaction: Transaction) -> None:
        self._call(f"abort {_name(transaction)}", lambda: self._inner.abort(transaction))

    @override
    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
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
