"""Sinks that write by key, so that writing the same rows twice does no harm. In tasks, or on the driver when the checkpoint completes.

visible="at once"                each task writes at its end, before the checkpoint is complete
visible="with the checkpoint"    rows are staged (see `penstock.sinks.staged_sink`) and written when it is complete
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.errors import CommitLostError, ConfigError, InternalError
from penstock.sinks.staged_sink import HandoverSink
from penstock.sinks.staging import StagedTransaction
from penstock.sinks.two_phase_commit import Delivery, Transaction, TransactionContext, TwoPhaseCommitSink

AT_ONCE = "at once"
WITH_THE_CHECKPOINT = "with the checkpoint"
_UNFENCED = (
    "; a task or driver that was presumed dead and resumes in the middle of a write finishes it, and the key has an older value "
    "until it is next written"
)


class RowOrigin(msgspec.Struct, frozen=True):
    """The run and batch that rows come from. Rows of an older run, or of an older batch of the same run, are never newer."""

    job: str
    sink: str
    run: int
    batch: int
    staged: bool = False
    """Whether they are written when the checkpoint is complete; then a later run may write them again, because it repeats old promises."""


class KeyedWriter(ABC):
    """Writes rows to one target by key. It is pickled into tasks; its `repr` shows no password."""

    fenced = False
    """Whether the target refuses rows once rows of a newer origin have been written."""

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Raise `ConfigError` for columns and targets that can never work. Driver, before the query starts."""

    @abstractmethod
    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows for `upsert`, and refuse bad ones while the job can still go back. Task."""

    def check_rehearsal(self) -> None:  # noqa: B027 - most writers need none
        """Refuse a target on which `rehearse` cannot undo its writes. Driver, before the query starts, if rows are staged."""

    def rehearse(self, rows: pa.RecordBatch) -> None:  # noqa: B027 - most targets accept whatever `prepare` accepts
        """Refuse prepared rows that `upsert` would refuse, without a visible change. Task, if rows are staged."""

    @abstractmethod
    def upsert(self, rows: pa.Table, origin: RowOrigin) -> None:
        """Write prepared rows; of several rows with the same key the last one counts. May be called again with the same rows."""


class UpsertSink(TwoPhaseCommitSink):
    """Writes at once or with the checkpoint; subclasses only build the writer."""

    delivery = Delivery.IDEMPOTENT

    def __init__(self, writer: KeyedWriter, *, visible: str, staging: str | os.PathLike[str] | None) -> None:
        _check_visible(visible, staging)
        self._writer = writer
        self._way: TwoPhaseCommitSink = (
            _AtOnce(writer) if staging is None else _WithTheCheckpoint(writer, staging)
        )

    @property
    def explanation(self) -> str:  # type: ignore[override]
        """What a reader may see; depends on `visible` and on the target."""
        return self._way.explanation + ("" if self._writer.fenced else _UNFENCED)

    def __repr__(self) -> str:
        return repr(self._writer)

    def validate(self, schema: pa.Schema) -> None:
        """Refuse what the writer cannot write, and a staging folder that cannot be written."""
        self._writer.check(schema)
        self._way.validate(schema)

    @override
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        return self._way.begin_transaction(context)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Convert the rows and keep them until `pre_commit`."""
        self._way.write(transaction, self._writer.prepare(batch))

    def pre_commit(self, transaction: Transaction) -> Transaction:
        """Write to the target at once, or make the staged rows durable."""
        return self._way.pre_commit(transaction)

    def commit(self, transaction: Transaction) -> None:
        """Write the staged rows to the target, if they were not written at once."""
        self._way.commit(transaction)

    @override
    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit them in order, each with its entry in the commit log."""
        self._way.commit_all(transactions)

    def abort(self, transaction: Transaction) -> None:
        """Delete the staged rows; what was written at once stays."""
        self._way.abort(transaction)

    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        """List the staged transactions that are left."""
        return self._way.find_transactions(job, sink)


class _AtOnce(TwoPhaseCommitSink):
    """Collects the rows of a task and writes them at its end: a task that fails before has written nothing."""

    explanation = (
        "writes by key at the end of each task, before the checkpoint is complete: rows written again change nothing, though after a "
        "failure a reader may see an older value until the job has caught up, and a key that only the failed attempt wrote stays"
    )

    def __init__(self, writer: KeyedWriter) -> None:
        self._writer = writer
        self._begun: Transaction | None = None
        self._rows: list[pa.RecordBatch] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None, "_rows": []}

    def begin_transaction(self, context: TransactionContext) -> Transaction:
        self._begun, self._rows = msgspec.structs.asdict(context), []
        return dict(self._begun)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        if self._begun != dict(transaction):
            raise InternalError(
                f"{self._writer!r} was asked to write to a transaction that it did not begin", **transaction
            )
        if batch.num_rows:
            self._rows.append(batch)

    def pre_commit(self, transaction: Transaction) -> Transaction:
        rows, self._rows, self._begun = self._rows, [], None
        if rows:
            self._writer.upsert(pa.Table.from_batches(rows), origin_of(transaction, staged=False))
        return transaction

    def commit(self, transaction: Transaction) -> None:
        """Do nothing: the task has written the rows, unless they were staged under another setting."""
        if "token" in transaction:
            raise CommitLostError(
                f"{self._writer!r} cannot write rows that a checkpoint promised: they were staged with visible={WITH_THE_CHECKPOINT!r}; "
                "start the job once more with that setting and its staging folder",
                **transaction,
            )

    def abort(self, transaction: Transaction) -> None:  # noqa: ARG002 - what was written cannot be undone
        self._rows, self._begun = [], None

    def find_transactions(self, job: str, sink: str) -> list[Transaction]:  # noqa: ARG002 - there is nothing to find
        return []


class _WithTheCheckpoint(HandoverSink):
    """Hands prepared rows to the writer when the checkpoint is complete."""

    explanation = (
        "writes by key when the checkpoint is complete: rows written again change nothing, and no reader sees a value that a failure "
        "takes back"
    )

    def __init__(self, writer: KeyedWriter, staging: str | os.PathLike[str]) -> None:
        super().__init__(staging)
        self._writer = writer

    def __repr__(self) -> str:
        return repr(self._writer)

    def validate(self, schema: pa.Schema) -> None:
        super().validate(schema)
        self._writer.check_rehearsal()

    def staged_form(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Refuse what the target would refuse at commit, while the job can still go back."""
        self._writer.rehearse(batch)
        return batch

    def commit(self, transaction: Transaction) -> None:
        """Hand the rows over, unless the task wrote them at once, before `visible` was changed."""
        if not _written_at_once(transaction):
            super().commit(transaction)

    def abort(self, transaction: Transaction) -> None:
        if not _written_at_once(transaction):
            super().abort(transaction)

    def hand_over(self, rows: pa.Table, transaction: StagedTransaction) -> None:
        self._writer.upsert(rows, origin_of(transaction.as_transaction(), staged=True))


def _written_at_once(transaction: Transaction) -> bool:
    """Return whether a transaction in a checkpoint is one of `_AtOnce`, for which nothing is left to do."""
    return set(transaction) == set(TransactionContext.__struct_fields__)


def origin_of(transaction: Transaction, *, staged: bool) -> RowOrigin:
    """Return the run and batch that the rows of a transaction come from."""
    return RowOrigin(
        transaction["job"], transaction["sink"], transaction["run"], transaction["checkpoint"], staged
    )


def _check_visible(visible: str, staging: str | os.PathLike[str] | None) -> None:
    if visible not in {AT_ONCE, WITH_THE_CHECKPOINT}:
        raise ConfigError(
            f"visible={visible!r} is not known; use {AT_ONCE!r} or {WITH_THE_CHECKPOINT!r}", visible=visible
        )
    if visible == WITH_THE_CHECKPOINT and staging is None:
        raise ConfigError(
            f"visible={visible!r} needs staging=..., a folder that the driver and all executors share",
            visible=visible,
        )
    if visible == AT_ONCE and staging is not None:
        raise ConfigError(
            f"staging={os.fspath(staging)!r} has no meaning with visible={visible!r}; use visible={WITH_THE_CHECKPOINT!r}",
            visible=visible,
        )
