"""How the transactions of a sink are named, and what is said of one that cannot be committed. Driver and executors.

    <transaction_id>.<token>        page-views.views-out.3.41.0.7.9f86d081

The token is drawn when the transaction begins. Run numbers start again when somebody deletes a job's
storage and keeps its output; without the token the new life would meet the old life's proofs of commit and
drop its rows as 'already there'.
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
    """One transaction as the checkpoint stores it; `rows` is known after `pre_commit`. How its rows wait is for each kind to say."""

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
        """Name a new transaction."""
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
        """Check what came back from a checkpoint: it becomes a path, so nothing odd may be in it."""
        try:
            found = msgspec.convert(dict(transaction), cls)
            checked_name("job", found.job)
            checked_name("uid", found.sink)
        except (msgspec.ValidationError, ConfigError) as error:
            raise CorruptStateError(
                f"a sink's transaction in the checkpoint cannot be understood: {error}; restore an older "
                "checkpoint",
                transaction=dict(transaction),
            ) from error
        if NamedTransaction.parse(found.job, found.sink, found.name) is None:
            raise CorruptStateError(
                f"a sink's transaction in the checkpoint has the impossible name {found.name!r}; "
                "restore an older checkpoint",
                transaction=dict(transaction),
            )
        return found

    @classmethod
    def parse(cls, job: str, sink: str, name: str) -> Self | None:
        """Read `name` back; None when it is not one of this job and sink."""
        prefix = f"{job}.{sink}."
        found = _NUMBERS_AND_TOKEN.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if found is None:
            return None
        run, checkpoint, subtask, attempt = (int(number) for number in found.groups()[:4])
        return cls(job, sink, run, checkpoint, subtask, attempt, found[5])

    @property
    def name(self) -> str:
        """A file name that no other transaction has, in this life of the job or another."""
        return (
            f"{self.job}.{self.sink}.{self.run}.{self.checkpoint}.{self.subtask}.{self.attempt}.{self.token}"
        )

    @property
    def identity(self) -> tuple[str, str, int, int, int, int, str]:
        """What tells it from all others, as a table of proofs keeps it."""
        return (self.job, self.sink, self.run, self.checkpoint, self.subtask, self.attempt, self.token)

    def as_transaction(self) -> Transaction:
        """Return the dictionary that goes into the checkpoint."""
        return {field: value for field, value in msgspec.structs.asdict(self).items() if value is not None}


class Open(Protocol):
    """A transaction while its rows come in."""

    @property
    def transaction(self) -> NamedTransaction:
        """Which one it is."""


_Open = TypeVar("_Open", bound=Open)


def is_open(writing: Open | None, transaction: NamedTransaction) -> bool:
    """Tell whether this instance is writing to it."""
    return writing is not None and writing.transaction.name == transaction.name


def begun(sink: TwoPhaseCommitSink, writing: _Open | None, transaction: Transaction) -> _Open:
    """What a sink is writing to; it must be the transaction that it is asked to write to."""
    asked = NamedTransaction.read(transaction)
    if writing is None or not is_open(writing, asked):
        raise InternalError(
            f"{sink!r} was asked to write to {asked.name}, which it did not begin", transaction=asked.name
        )
    return writing


def lost(
    transaction: NamedTransaction, *, where: object, why: str, look: str, **facts: Any
) -> CommitLostError:
    """Say that what a checkpoint promised is neither committed nor there; `look` says where it might be."""
    return CommitLostError(
        f"transaction {transaction.name} cannot be committed to {where}: {why}. A completed checkpoint promised "
        f"{_its_rows(transaction)}, so they are missing there. {look}; otherwise restore an older checkpoint",
        transaction=transaction.name,
        rows=transaction.rows,
        **facts,
    )


def refused(
    transaction: NamedTransaction, *, where: object, cause: Exception, kept: str, repair: str, **facts: Any
) -> CommitLostError:
    """Say that the target refuses what a checkpoint promised: the rows are kept, but no start of the job gets past them."""
    return CommitLostError(
        f"transaction {transaction.name}, which a completed checkpoint promised, cannot be committed to {where}: {cause}. {kept}. "
        f"{repair}, then start the job again: it commits them first",
        transaction=transaction.name,
        cause=str(cause),
        **facts,
    )


def _its_rows(transaction: NamedTransaction) -> str:
    return "its rows" if transaction.rows is None else f"its {counted(transaction.rows, 'row')}"
