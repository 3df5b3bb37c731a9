"""An external system that survives every crash (transactions, tables written by key, called functions), and the sinks that write to it.

`WatchedSink` wraps a real sink: each of its calls is an I/O call of the process, which may die before and after it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError, CommitLostError, FencedError, UnavailableError
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.sinks.upsert import KeyedWriter, RowOrigin
from penstock.testing.simulation.lifeline import Lifeline, Violation

Row = dict[str, Any]


class External:
    """Transactions by id: staged rows, which of them are durable, and the visible rows in the order of their commits."""

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
        """The visible rows of this sink."""
        return [
            row for name, rows in self.visible.items() if self.facts[name]["sink"] == sink for row in rows
        ]

    def table(self, sink: str) -> dict[str, Row]:
        """The visible rows of this table."""
        return {key: row for key, (_, row) in self.tables.get(sink, {}).items()}

    def begin(self, transaction: Transaction) -> None:
        """Open a transaction for staged rows."""
        name = transaction["id"]
        if name in self.facts and name not in self.aborted:
            raise Violation(f"transaction {name} is begun twice")
        self.staged[name] = []
        self.facts[name] = transaction

    def commit(self, transaction: Transaction) -> None:
        """Make the rows of a transaction visible, once."""
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
        """Discard the staged rows of a transaction."""
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
        """Accept every schema of rows."""

    @override
    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    @override
    def upsert(self, rows: pa.Table, origin: RowOrigin) -> None:
        self._external.upsert(rows.to_pylist(), origin)


MOST_TRIES = 20
"""Time passes at once here, so a commit that never succeeds would be tried until memory is full."""


class WatchedSink(TwoPhaseCommitSink):
    """The sink as one simulated driver and its tasks use it; `rows_for` makes the target's rows of a result.

    Each transaction is written by an instance of its own, pickled and unpickled, as in a task.
    """

    def __init__(
        self,
        driver: TwoPhaseCommitSink,
        lifeline: Lifeline,
        rows_for: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._driver = driver
        self._pickled = pickle.dumps(driver)
        self._task = driver
        self._failed = 0
        self._lifeline = lifeline
        self._rows_for = rows_for

    @override
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        with self._call(f"begin {context.transaction_id}"):
            self._task = pickle.loads(self._pickled)  # noqa: S301 - our own bytes, just pickled
            return self._task.begin_transaction(context)

    @override
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        with self._call("write"):
            self._task.write(transaction, self._rows_for(batch))

    @override
    def pre_commit(self, transaction: Transaction) -> Transaction:
        with self._call("pre_commit"):
            return self._task.pre_commit(transaction)

    @override
    def commit(self, transaction: Transaction) -> None:
        self.commit_all([transaction])

    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """Commit in two halves where there are two, so that a process can die between them; the next one commits all."""
        left = list(transactions)
        half = len(left) // 2
        if half:
            with self._call("half_of_the_commits"):
                self._commit(left[:half])
        with self._call("commit"):
            self._commit(left[half:])

    def _commit(self, transactions: list[Transaction]) -> None:
        try:
            self._driver.commit_all(transactions)
        except (CommitLostError, FencedError):
            raise
        except Exception as error:
            self._failed += 1
            if self._failed == MOST_TRIES:
                raise Violation(f"commit failed {MOST_TRIES} times, at last with {error!r}") from error
            raise

    @override
    def abort(self, transaction: Transaction) -> None:
        with self._call("abort"):
            self._driver.abort(transaction)

    @override
    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        with self._call(f"find_transactions {sink}"):
            return list(self._driver.find_transactions(job, sink))

    @contextmanager
    def _call(self, label: str) -> Iterator[None]:
        """One I/O call; one that raises has not taken effect."""
        self._lifeline.enter(label)
        yield
        self._lifeline.leave()


T = TypeVar("T")


class FlakySink(TwoPhaseCommitSink):
    """Fails with probability `flakiness`, half of the time after the work was done."""

    def __init__(
        self, inner: TwoPhaseCommitSink, lifeline: Lifeline, rng: random.Random, *, flakiness: float = 0.0
    ) -> None:
        self._inner = inner
        self._lifeline = lifeline
        self._rng = rng
        self._flakiness = flakiness

    @override
    def begin_transaction(self, context: TransactionContext) -> Transaction:
        return self._call(f"begin {context.transaction_id}", lambda: self._inner.begin_transaction(context))

    @override
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        self._call(f"write {_name(transaction)}", lambda: self._inner.write(transaction, batch))

    @override
    def pre_commit(self, transaction: Transaction) -> Transaction:
        return self._call(f"pre_commit {_name(transaction)}", lambda: self._inner.pre_commit(transaction))

    @override
    def commit(self, transaction: Transaction) -> None:
        self._call(f"commit {_name(transaction)}", lambda: self._inner.commit(transaction))

    @override
    def commit_all(self, transactions: Iterable[Transaction]) -> None:
        """In one call if the sink has its own, so that the process can die in between otherwise."""
        if type(self._inner).commit_all is TwoPhaseCommitSink.commit_all:
            super().commit_all(transactions)
            return
        wanted = list(transactions)
        label = f"commit {', '.join(map(_name, wanted))}"
        self._call(label, lambda: self._inner.commit_all(wanted))

    @override
    def abort(self, transaction: Transaction) -> None:
        self._call(f"abort {_name(transaction)}", lambda: self._inner.abort(transaction))

    @override
    def find_transactions(self, job: str, sink: str) -> Iterable[Transaction]:
        return self._call(f"find_transactions {sink}", lambda: list(self._inner.find_transactions(job, sink)))

    def _call(self, label: str, effect: Callable[[], T]) -> T:
        self._lifeline.enter(label)
        fails = self._rng.random() < self._flakiness
        if fails and self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            raise UnavailableError(f"simulated: {label} failed, nothing was done")
        result = effect()
        self._lifeline.leave()
        if fails:
            raise UnavailableError(f"simulated: {label} was performed, the answer is lost")
        return result


def _name(transaction: Transaction) -> str:
    place = (transaction[part] for part in ("sink", "run", "checkpoint", "subtask", "attempt"))
    return ".".join(map(str, place))
