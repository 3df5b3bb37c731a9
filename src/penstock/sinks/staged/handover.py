"""Sinks that keep rows beside the checkpoint and hand them over when it completes. Staged in tasks, handed over on the driver.

Transactions are handed over one by one, in order: hand over, note it down in the `commit_log`, delete the file. What a crash leaves:

    found                   meaning                                         commit
    file, no note           not handed over, or handed over and not noted   hand over (again)
    file and note           handed over                                     delete the file
    note only               handed over                                     nothing
    neither                 aborted, or deleted by somebody                 CommitLostError

So at most one transaction is handed over twice for one crash, and none out of order.
"""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.sinks.staged.sink import StagedSink
from penstock.sinks.staged.staging import StagedTransaction
from penstock.sinks.transaction import refused
from penstock.sinks.two_phase_commit import Transaction


class HandoverSink(StagedSink):
    """All of a sink but `hand_over`."""

    @abstractmethod
    def hand_over(self, rows: pa.Table, transaction: StagedTransaction) -> None:
        """Give the rows of one transaction to the target; may be called again for the same transaction. Driver only."""

    def commit(self, transaction: Transaction) -> None:
        """Hand the rows over, unless that was noted."""
        staged = StagedTransaction.read(transaction)
        log = self.log(staged.job, staged.sink)
        if not log.committed([staged]):
            rows = self.staged_rows(staged)
            if rows is not None:
                self._hand_over(rows, staged)
            log.append([staged])
        self.delete_staged(staged)

    def _hand_over(self, rows: pa.Table, staged: StagedTransaction) -> None:
        """A row that the target refuses here was promised by a checkpoint: no start of the job gets past it."""
        try:
            self.hand_over(rows, staged)
        except BadRecordError as error:
            raise refused(
                staged,
                where=repr(self),
                cause=error,
                kept=f"Its rows stay staged below {self.staging}",
                repair="Change the target so that it takes them",
                staging=str(self.staging),
            ) from error
