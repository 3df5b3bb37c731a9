"""The names of a sink's transactions, and the errors for those that cannot be committed. Driver and executors.

    <transaction_id>.<token>        page-views.views-out.3.41.0.7.9f86d081

The token is drawn at random when the transaction begins. Run numbers start again when a job's storage is
deleted and its output is kept. Without the token, the new job would find the proofs of commit of the old one
and drop its rows as already committed.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, Self, TypeVar

import msgspec

from penstock.errors import CommitLostError, ConfigError, CorruptStateError, InternalError
from penstock.ids import SYSTEM_RANDOMNESS, Randomness, checked_name
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.wording import counted

_NUMBERS_AND_TOKEN = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]{8})")


class NamedTransaction(msgspec.Struct, frozen=True):
    """One transaction as the checkpoint stores it. `rows` is known after `pre_commit`; each kind of sink adds how its rows wait."""

    job: str
    sink: str
    run: int
    checkpoint: int
    subtask: int
    attempt: int
    token: str
    rows: int | None = None

    @classmethod
    def begin(cls, context: TransactionContext, randomness: Randomness = SYSTEM_RANDOMNESS) -> Self:
        """Draw the name of a new transaction."""
        return cls(
            job=checked_name("job", context.job),
            sink=checked_name("uid", context.sink),
            run=context.run,
            checkpoint=context.checkpoint,
            subtask=context.subtask,
            attempt=context.attempt,
            token=randomness.token(8),
        )

    @classmethod
    def read(cls, transaction: Transaction) -> Self:
        """Check a transaction from a checkpoint. Its name becomes a path, so every part is checked."""
        try:
            found = msgspec.convert(dict(transaction), cls)
            checked_name("job", found.job)
            checked_name("uid", found.sink)
        except (msgspec.ValidationError, ConfigError) as error:
            raise CorruptStateError(
                f"a sink's transaction in the checkpoint cannot be read: {error}; restore an older checkpoint",
                transaction=dict(transaction),
            ) from error
        if NamedTransaction.parse(found.job, found.sink, found.name) is None:
            raise CorruptStateError(
                f"a sink's transaction in the checkpoint has the invalid name {found.name!r}; restore an older checkpoint",
                transaction=dict(transaction),
            )
        return found

    @classmethod
    def parse(cls, job: str, sink: str, name: str) -> Self | None:
        """Parse `name`; None if it does not belong to this job and sink."""
        prefix = f"{job}.{sink}."
        found = _NUMBERS_AND_TOKEN.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if found is None:
            return None
        run, checkpoint, subtask, attempt = (int(number) for number in found.groups()[:4])
        return cls(job, sink, run, checkpoint, subtask, attempt, found[5])

    @property
    def name(self) -> str:
        """A file name that no other transaction has, even after the job's storage was deleted."""
        return (
            f"{self.job}.{self.sink}.{self.run}.{self.checkpoint}.{self.subtask}.{self.attempt}.{self.token}"
        )

    @property
    def identity(self) -> tuple[str, str, int, int, int, int, str]:
        """The columns that identify it in a table of commits."""
        return (self.job, self.sink, self.run, self.checkpoint, self.subtask, self.attempt, self.token)

    def as_transaction(self) -> Transaction:
        """Return the dictionary that goes into the checkpoint."""
        return {field: value for field, value in msgspec.structs.asdict(self).items() if value is not None}


class Open(Protocol):
    """A transaction that rows are being written to."""

    @property
    def transaction(self) -> NamedTransaction:
        """The transaction that is being written."""


_Open = TypeVar("_Open", bound=Open)


def is_open(writing: Open | None, transaction: NamedTransaction) -> bool:
    """Return whether `writing` is this transaction."""
    return writing is not None and writing.transaction.name == transaction.name


def begun(sink: TwoPhaseCommitSink, writing: _Open | None, transaction: Transaction) -> _Open:
    """Return what the sink is writing to, after checking that it is this transaction."""
    asked = NamedTransaction.read(transaction)
    if writing is None or not is_open(writing, asked):
        raise InternalError(
            f"{sink!r} was asked to write to {asked.name}, which it did not begin", transaction=asked.name
        )
    return writing


def lost(
    transaction: NamedTransaction, *, where: object, why: str, look: str, **facts: Any
) -> CommitLostError:
    """The error for a promised transaction that is neither committed nor staged; `look` says where it might be."""
    return CommitLostError(
        f"transaction {transaction.name} cannot be committed to {where}: {why}. A completed checkpoint promised "
        f"{_its_rows(transaction)}, and they are missing there. {look}; otherwise restore an older checkpoint",
        transaction=transaction.name,
        rows=transaction.rows,
        **facts,
    )


def refused(
    transaction: NamedTransaction, *, where: object, cause: Exception, kept: str, repair: str, **facts: Any
) -> CommitLostError:
    """The error for a promised transaction that the target refuses. The rows are kept, and every start of the job commits them first."""
    return CommitLostError(
        f"transaction {transaction.name}, which a completed checkpoint promised, cannot be committed to {where}: {cause}. {kept}. "
        f"{repair}, then start the job again: it commits them first",
        transaction=transaction.name,
        cause=str(cause),
        **facts,
    )


def _its_rows(transaction: NamedTransaction) -> str:
    return "its rows" if transaction.rows is None else f"its {counted(transaction.rows, 'row')}"
