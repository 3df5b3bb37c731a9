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
"""What identifies a transaction: a dictionary that JSON can carry. It is stored in the checkpoint as it is."""


class Delivery(enum.Enum):
    """What a sink can promise, the mode of the job apart."""

    TRANSACTIONAL = "transactional"
    """Commits together with the checkpoint: every row once."""
    IDEMPOTENT = "idempotent"
    """Writes again over the same keys: the end result is right, a reader may see a step back after a recovery."""
    AT_LEAST_ONCE = "at least once"
    """May write rows again after a recovery."""


class TransactionContext(msgspec.Struct, frozen=True):
    """Who begins a transaction. `transaction_id` is unique among all attempts of all runs.

    `job` is the job's name with the identity that its storage drew, so two jobs of one name are told apart.
    """

    job: str
    sink: str
    run: int
    checkpoint: int
    subtask: int
    attempt: int

    @property
    def transaction_id(self) -> str:
        """A name fit for a file, a folder or a transaction id in a database."""
        return f"{self.job}.{self.sink}.{self.run}.{self.checkpoint}.{self.subtask}.{self.attempt}"


class TransactionName(NamedTuple):
    """What tells one transaction of a job from every other, whatever else it carries."""

    sink: str
    run: int
    checkpoint: int
    subtask: int
    attempt: int

    @classmethod
    def of(cls, sink: str, transaction: Transaction) -> Self:
        """The name of one that a sink knows."""
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
    """What may be seen twice or late with this sink, and when, as the end of the sentence 'the sink ...'; empty for the
    usual words of its `delivery`. It becomes part of the job's guarantee."""

    def validate(self, schema: pa.Schema) -> None:  # noqa: B027 - a sink that accepts everything need not say so
        """Refuse what can never work (a missing table, a wrong column type) with `ConfigError`.

        Called on the driver, once, before the query starts.
        """

    def check_rows(self, batch: pa.RecordBatch) -> None:  # noqa: B027 - it only saves time
        """Raise `BadRecordError` if `write` would refuse one of these rows for what is in it. It has no effect.

        Called in a task before `begin_transaction`, where bad rows may not end the job: on fewer and fewer of the rows, until those at
        fault are found. A sink that leaves it out is asked to `write` them, in transactions that are aborted.
        """

    @abstractmethod
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        """Open a transaction and return what identifies it. Nothing in it is visible to readers.

        Called in a task when its first rows arrive; not called for a task without rows. Spark may run several attempts of
        one task at the same time: each begins its own, named by `context.transaction_id`, and at most one is ever committed.
        Where bad rows may not end the job, a task aborts a transaction that refused one and begins again, under the same name.
        """

    @abstractmethod
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Add rows. Called several times, in the task that began the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Make the rows durable, still invisible, so that `commit` can no longer fail for a reason of its own.

        Called once, in the same task, after the last row. Returns the transaction, with what `commit` needs to know
        added. Raise if the rows cannot be made durable: the job then goes back to the last checkpoint.
        The classic mistake: leaving bytes in a buffer, or a connection open that another process would need.
        """

    @abstractmethod
    def commit(self, transaction: Transaction) -> None:
        """Make the rows visible, all at once. Called on the driver, after the checkpoint completed, in checkpoint order.

        Called again after a crash, possibly when the first call had already done everything: find the work done and return.
        It must succeed in the end, so raise `UnavailableError` for what may pass (it is retried with a growing pause)
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

        Called on the driver, in recovery and while the job runs. What a checkpoint names is committed, what
        belongs to nobody is aborted. A transaction listed here may lack what `pre_commit` added; it must suffice for `abort`.
        Each must hold `run`, `checkpoint`, `subtask` and `attempt` as in the context that began it.
        """

    def newest_commit(self, job: str, sink: str) -> tuple[int, int] | None:  # noqa: ARG002 - a sink may know nothing
        """The newest run of which the target has a commit of this job and sink, and the newest checkpoint of that run among its commits.

        Called on the driver, at a start: a storage that knows less than the target is an old copy, and rows would be written again.
        None, the default: the target keeps no record, or has no commit.
        """
        return None

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit several transactions, in this order. Override it where one round trip can do them all.

        Called again, whole, when it raised half way.
        """
        for transaction in transactions:
            self.commit(transaction)
