"""The interface of a sink that takes part in checkpoints by two-phase commit.

`begin_transaction`, `write` and `pre_commit` run in a Spark task; `commit`, `find_transactions` and the late `abort`
run on the driver. Between the two lies a completed checkpoint that names the transaction.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa

Transaction = Mapping[str, Any]
"""Identifies a transaction: a dictionary of JSON values, stored in the checkpoint as it is."""


class Delivery(enum.Enum):
    """The guarantee of a sink, whatever the mode of the job."""

    TRANSACTIONAL = "transactional"
    """Commits together with the checkpoint: every row once."""
    IDEMPOTENT = "idempotent"
    """Writes the same keys again: the end result is right, but a reader may see an older value for a while after a recovery."""
    AT_LEAST_ONCE = "at least once"
    """May write rows again after a recovery."""


class TransactionContext(msgspec.Struct, frozen=True):
    """The attempt that begins a transaction. `transaction_id` is unique among all attempts of all runs.

    `job` is the job's name with the identity that its storage drew, so two jobs with the same name stay distinct.
    """

    job: str
    sink: str
    run: int
    checkpoint: int
    subtask: int
    attempt: int

    @property
    def transaction_id(self) -> str:
        """A name that is valid as a file, a folder and a transaction id of a database."""
        return f"{self.job}.{self.sink}.{self.run}.{self.checkpoint}.{self.subtask}.{self.attempt}"


class TransactionName(NamedTuple):
    """Identifies one transaction within a job."""

    sink: str
    run: int
    checkpoint: int
    subtask: int
    attempt: int

    @classmethod
    def of(cls, sink: str, transaction: Transaction) -> Self:
        """Return the name of a transaction of this sink."""
        return cls(sink, *(transaction[part] for part in cls._fields[1:]))


class TwoPhaseCommitSink(ABC):
    """Write rows so that they become visible when, and only if, a checkpoint completes.

    The life of a transaction::

        task     begin_transaction -> write, write, ... -> pre_commit
        driver                                             ... checkpoint completes ... -> commit
        either   abort, instead of commit, when the checkpoint is never going to complete

    An instance is pickled into tasks: keep settings in it, and open connections in `begin_transaction`. One instance serves one
    transaction at a time in a task, so it may keep the open file or connection of that transaction in an attribute.
    """

    delivery: Delivery = Delivery.TRANSACTIONAL
    explanation: str = ""
    """Which rows a reader may see twice or late, and when, as the end of a sentence that begins with 'the sink'. Empty means the
    standard text for `delivery`. It becomes part of the job's guarantee."""

    def validate(self, schema: pa.Schema) -> None:  # noqa: B027 - a sink may accept everything
        """Raise `ConfigError` for what can never work: a missing table, a wrong column type.

        Called on the driver, once, before the query starts.
        """

    def check_rows(self, batch: pa.RecordBatch) -> None:  # noqa: B027 - optional, it only saves time
        """Raise `BadRecordError` if `write` would refuse one of these rows because of its values. Writes nothing.

        Called in a task before `begin_transaction` if bad rows must not fail the job, on ever smaller parts of the rows until the bad
        ones are found. For a sink that does not implement it, `write` is called instead, in transactions that are aborted.
        """

    @abstractmethod
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Open a transaction and return what identifies it. Nothing in it is visible to readers.

        Called in a task when its first rows arrive; not called for a task without rows. Spark may run several attempts of
        one task at the same time: each begins its own, named by `context.transaction_id`, and at most one is ever committed.
        If bad rows must not fail the job, a task aborts a transaction that refused one and begins again under the same name.
        """

    @abstractmethod
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows. Called several times, in the task that began the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Make the rows durable but not yet visible, so that `commit` can only fail if the target is unavailable.

        Called once, in the same task, after the last row. Returns the transaction with everything that `commit` needs to
        know. Raise if the rows cannot be made durable: the job then goes back to the last checkpoint.
        The classic mistake: leaving bytes in a buffer, or a connection open that another process would need.
        """

    @abstractmethod
    def commit(self, transaction: Transaction) -> None:
        """Make the rows visible, all at once. Called on the driver, after the checkpoint completed, in checkpoint order.

        Called again after a crash, possibly when the first call had already done everything: find the work done and return.
        It must succeed in the end: raise `UnavailableError` for a temporary failure (it is retried with a growing pause)
        and `CommitLostError` for a transaction that is neither there nor committed.
        The classic mistake: treating 'not found' as success without a proof that it was committed.
        """

    @abstractmethod
    def abort(self, transaction: Transaction) -> None:
        """Throw the rows away. Called in the task when it fails, or on the driver; before or after `pre_commit`.

        May be called again, and for a transaction that never got as far as `pre_commit`. Never called after `commit`.
        """

    @abstractmethod
    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        """List the transactions of this job and sink, and of no other, that are neither committed nor aborted.

        Called on the driver, in recovery and while the job runs. Transactions that a checkpoint names are committed, all others
        are aborted. A transaction listed here may lack what `pre_commit` added; it must suffice for `abort`.
        Each must hold `run`, `checkpoint`, `subtask` and `attempt` as in the context that began it.
        """

    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:  # noqa: ARG002 - a sink may keep no record
        """Return the newest run that has a commit of this job and sink in the target, and the newest committed checkpoint of that run.

        Called on the driver at every start. If the job's storage knows less than the target, it is an old copy, and rows would be
        written again. None, the default, means that the target keeps no record or has no commit.
        """
        return None

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit several transactions, in this order. Override it where one round trip can do them all.

        After an error it is called again with all of them.
        """
        for transaction in transactions:
            self.commit(transaction)
