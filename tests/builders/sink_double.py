"""Sinks whose commits fail as often as a test says, or that refuse some rows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.checkpoint.model import PreCommitted
from penstock.errors import BadRecordError, UnavailableError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.testing.simulation.external import External, SimulatedSink

ROW = pa.record_batch([pa.array([1])], names=["n"])


class TroubledSink(SimulatedSink):
    """Refuses the first `refusals` commits."""

    def __init__(self, external: External, refusals: int = 0) -> None:
        super().__init__(external)
        self.refusals = refusals

    def commit(self, transaction: Transaction) -> None:
        """Fail, or commit."""
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the database is restarting")
        super().commit(transaction)

    def stage(self, job: str, uid: str, *, run: int, batch: int, attempt: int = 0) -> PreCommitted:
        """Write a row and pre-commit it."""
        transaction = self.begin_transaction(TransactionContext(job, uid, run, batch, 0, attempt))
        self.write(transaction, ROW)
        return PreCommitted(uid, batch, 0, dict(self.pre_commit(transaction)), rows=1)


class RefusingSink(TwoPhaseCommitSink):
    """Refuses rows at one of its methods, and knows afterwards what was written in which transaction."""

    def __init__(self, refused: Callable[[list[int]], list[int]], when: str) -> None:
        self._refused = refused
        self._when = when
        self._number = 0
        self.open: set[int] = set()
        self.prepared: dict[int, list[int]] = {}
        self._rows: dict[int, list[int]] = {}

    def _refuse(self, now: str, rows: list[int]) -> None:
        if now == self._when and self._refused(rows):
            raise BadRecordError(f"{self._refused(rows)} are refused")

    def check_rows(self, batch: pa.RecordBatch) -> None:
        self._refuse("check_rows", batch.column("v").to_pylist())

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        assert not self.open, "the transaction before was not aborted"
        self._number += 1
        self.open.add(self._number)
        self._rows[self._number] = []
        return {"number": self._number}

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        self._rows[transaction["number"]] += batch.column("v").to_pylist()
        self._refuse("write", self._rows[transaction["number"]])

    def pre_commit(self, transaction: Transaction) -> Transaction:
        self._refuse("pre_commit", self._rows[transaction["number"]])
        self.open.remove(transaction["number"])
        self.prepared[transaction["number"]] = self._rows[transaction["number"]]
        return transaction

    def abort(self, transaction: Transaction) -> None:
        self.open.discard(transaction["number"])
        self.prepared.pop(transaction["number"], None)

    def commit(self, transaction: Transaction) -> None:
        raise AssertionError("no test commits")

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:
        return []


def visible(external: External) -> list[tuple[int, int, int]]:
    """Run, batch and attempt of what readers see, in the order it appeared."""
    facts = [external.facts[name] for name in external.visible]
    return [(one["run"], one["checkpoint"], one["attempt"]) for one in facts]


def staged(external: External) -> list[tuple[int, int, int]]:
    """Run, batch and attempt of what is neither committed nor aborted."""
    facts = [external.facts[name] for name in external.staged]
    return [(one["run"], one["checkpoint"], one["attempt"]) for one in facts]
