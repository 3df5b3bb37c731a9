"""An external system with transactions, which outlives every crash, and the sink that writes to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from penstock.errors import CommitLostError, UnavailableError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.testing.simulation.lifeline import Lifeline
from penstock.testing.simulation.violation import Violation

Row = dict[str, Any]


class External:
    """Transactions by id: staged rows, which of them are durable, and what readers see in the order it appeared."""

    def __init__(self) -> None:
        self.staged: dict[str, list[Row]] = {}
        self.facts: dict[str, Transaction] = {}
        self.durable: set[str] = set()
        self.visible: dict[str, list[Row]] = {}
        self.before_visible: Callable[[Transaction], None] = lambda _: None
        self.checkpoints_decide = True
        """Whether only what a checkpoint names is committed; otherwise a fenced run may commit what its successor is about to abort."""

    def rows(self, sink: str) -> list[Row]:
        """What a reader of this sink sees."""
        return [
            row for name, rows in self.visible.items() if self.facts[name]["sink"] == sink for row in rows
        ]

    def begin(self, transaction: Transaction) -> None:
        """Open a transaction."""
        name = transaction["id"]
        if name in self.facts:
            raise Violation(f"transaction {name} is begun twice")
        self.staged[name] = []
        self.facts[name] = transaction

    def commit(self, transaction: Transaction) -> None:
        """Make it visible, once."""
        name = transaction["id"]
        if name in self.visible:
            return
        if name not in self.staged:
            raise CommitLostError(f"transaction {name} is neither there nor committed")
        if name not in self.durable:
            raise Violation(f"transaction {name} is committed before it was pre-committed")
        self.before_visible(transaction)
        self.visible[name] = self.staged.pop(name)

    def abort(self, transaction: Transaction) -> None:
        """Throw it away."""
        if transaction["id"] in self.visible and self.checkpoints_decide:
            raise Violation(f"transaction {transaction['id']} is aborted after it was committed")
        self.staged.pop(transaction["id"], None)


class SimulatedSink(TwoPhaseCommitSink):
    """The sink as one process sees it; a call may crash or fail before or after it takes effect."""

    def __init__(
        self, external: External, lifeline: Lifeline, rng: random.Random, *, flakiness: float = 0.0
    ) -> None:
        self._external = external
        self._lifeline = lifeline
        self._rng = rng
        self._flakiness = flakiness

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """See `TwoPhaseCommitSink.begin_transaction`."""
        transaction: Transaction = {
            "id": context.transaction_id,
            "job": context.job,
            "sink": context.sink,
            "run": context.run,
            "checkpoint": context.checkpoint,
            "subtask": context.subtask,
            "attempt": context.attempt,
        }
        self._call("begin", transaction, self._external.begin)
        return transaction

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """See `TwoPhaseCommitSink.write`."""
        rows = batch.to_pylist()

        def stage(one: Transaction) -> None:
            if one["id"] in self._external.staged:
                self._external.staged[one["id"]] += rows

        self._call("write", transaction, stage)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """See `TwoPhaseCommitSink.pre_commit`."""
        self._call("pre_commit", transaction, lambda one: self._external.durable.add(one["id"]))
        return {**transaction, "pre_committed": True}

    def commit(self, transaction: Transaction) -> None:
        """See `TwoPhaseCommitSink.commit`."""
        self._call("commit", transaction, self._external.commit)

    def abort(self, transaction: Transaction) -> None:
        """See `TwoPhaseCommitSink.abort`."""
        self._call("abort", transaction, self._external.abort)

    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        """See `TwoPhaseCommitSink.find_transactions`."""
        self._lifeline.enter(f"find_transactions {sink}")
        found = [self._external.facts[name] for name in self._external.staged]
        mine = [one for one in found if (one["job"], one["sink"]) == (job, sink)]
        self._lifeline.leave()
        return mine

    def _call(self, name: str, transaction: Transaction, effect: Callable[[Transaction], None]) -> None:
        self._lifeline.enter(f"{name} {transaction['id']}")
        fails = self._rng.random() < self._flakiness
        if fails and self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            raise UnavailableError(f"simulated: {name} failed, nothing was done")
        effect(transaction)
        self._lifeline.leave()
        if fails:
            raise UnavailableError(f"simulated: {name} was performed, the answer is lost")
