"""A sink over the simulated external system whose commits fail as often as a test says."""

from __future__ import annotations

import pyarrow as pa

from penstock.checkpoint.completed import PreCommitted
from penstock.errors import UnavailableError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext
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


def visible(external: External) -> list[tuple[int, int, int]]:
    """Run, batch and attempt of what readers see, in the order it appeared."""
    facts = [external.facts[name] for name in external.visible]
    return [(one["run"], one["checkpoint"], one["attempt"]) for one in facts]


def staged(external: External) -> list[tuple[int, int, int]]:
    """Run, batch and attempt of what is neither committed nor aborted."""
    facts = [external.facts[name] for name in external.staged]
    return [(one["run"], one["checkpoint"], one["attempt"]) for one in facts]
