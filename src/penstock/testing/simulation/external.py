"""An external system that outlives every crash: transactions, tables that are written by key, and functions that are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError, CommitLostError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.sinks.upsert import KeyedWriter, RowOrigin
from penstock.testing.simulation.lifeline import Violation

Row = dict[str, Any]


class External:
    """Transactions by id: staged rows, which of them are durable, and what readers see in the order it appeared."""

    def __init__(self) -> None:
        self.staged: dict[str, list[Row]] = {}
        self.facts: dict[str, Transaction] = {}
        self.durable: set[str] = set()
        self.aborted: set[str] = set()
        """Those that may be begun again: a task does so without the rows that were refused."""
        self.visible: dict[str, list[Row]] = {}
        self.tables: dict[str, dict[str, tuple[tuple[int, int], Row]]] = {}
        """By sink, then by key: the row, and the run and batch it came from."""
        self.called: dict[str, list[Row]] = {}
        """By sink: every row a function was called with."""
        self.before_visible: Callable[[Transaction], None] = lambda _: None
        self.checkpoints_decide = True
        """Whether only what a checkpoint names is committed; otherwise a fenced run may commit what its successor is about to abort."""

    def rows(self, sink: str) -> list[Row]:
        """What a reader of this sink sees."""
        return [
            row for name, rows in self.visible.items() if self.facts[name]["sink"] == sink for row in rows
        ]

    def table(self, sink: str) -> dict[str, Row]:
        """What a reader of this table sees."""
        return {key: row for key, (_, row) in self.tables.get(sink, {}).items()}

    def begin(self, transaction: Transaction) -> None:
        """Open a transaction."""
        name = transaction["id"]
        if name in self.facts and name not in self.aborted:
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
        self.durable.discard(transaction["id"])
        self.aborted.add(transaction["id"])

    def upsert(self, rows: Iterable[Row], origin: RowOrigin) -> None:
        """Write by key; a row of an older run, or of an older batch of a run, is ignored."""
        table = self.tables.setdefault(origin.sink, {})
        place = (origin.run, origin.batch)
        for row in rows:
            if row["key"] not in table or table[row["key"]][0] <= place:
                table[row["key"]] = (place, row)

    def call(self, batch: pa.RecordBatch, context: TransactionContext) -> None:
        """A function that does something with the rows, whenever it is called."""
        self.called.setdefault(context.sink, []).extend(batch.to_pylist())


class SimulatedSink(TwoPhaseCommitSink):
    """Writes in transactions of the external system, which takes some rows and spoils its transaction over others."""

    def __init__(self, external: External, refuses: Callable[[Row], bool] = lambda _: False) -> None:
        self._external = external
        self._refuses = refuses

    @override
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        transaction: Transaction = {
            "id": context.transaction_id,
            "job": context.job,
            "sink": context.sink,
            "run": context.run,
            "checkpoint": context.checkpoint,
            "subtask": context.subtask,
            "attempt": context.attempt,
        }
        self._external.begin(transaction)
        return transaction

    @override
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if transaction["id"] in self._external.staged:
                self._external.staged[transaction["id"]].append(row)
            if self._refuses(row):
                raise BadRecordError(f"the external system refuses {row}")

    @override
    def pre_commit(self, transaction: Transaction) -> Transaction:
        self._external.durable.add(transaction["id"])
        return {**transaction, "pre_committed": True}

    @override
    def commit(self, transaction: Transaction) -> None:
        self._external.commit(transaction)

    @override
    def abort(self, transaction: Transaction) -> None:
        self._external.abort(transaction)

    @override
    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        found = [self._external.facts[name] for name in self._external.staged]
        return [one for one in found if (one["job"], one["sink"]) == (job, sink)]


class TableWriter(KeyedWriter):
    """Writes by key into a table of the external system."""

    fenced = True

    def __init__(self, external: External) -> None:
        self._external = external

    @override
    def check(self, schema: pa.Schema) -> None:
        """Everything will do."""

    @override
    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    @override
    def upsert(self, rows: pa.Table, origin: RowOrigin) -> None:
        self._external.upsert(rows.to_pylist(), origin)
