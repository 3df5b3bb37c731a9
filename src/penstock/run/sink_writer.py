"""The task of a sink in one batch: begin a transaction, write, pre-commit. Executors.

Every row reaches a sink through this module, which refuses values that no sink could ever commit. Spark passes strings on unchecked, and
`CAST(binary AS STRING)` checks nothing. Bytes that are not UTF-8 can be staged, but nothing can read them as text afterwards: the commit
would be promised and would fail.

When a sink refuses rows, its transaction is aborted and begun again without them. They are found by halving: first with the sink's own
check, which has no effects; then in transactions that are aborted; finally together with the rows accepted so far, because two rows may
be refused only in combination. A sink that writes at once therefore receives good rows more than once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.checkpoint.model import PreCommitted
from penstock.config import OnBadRecord
from penstock.errors import BadRecordError
from penstock.ids import SubtaskId
from penstock.log_fields import about
from penstock.operators.bad_records import BadRows, reason_of
from penstock.places import safe_text
from penstock.run.assignment import Assignment, BadCount, Executor, SinkAnswer
from penstock.run.task_failures import report_failure
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.state.ddl import spark_type

_log = logging.getLogger(__name__)

_SHOWN_BYTES = 40


def write_checked(sink: TwoPhaseCommitSink, transaction: Transaction, batch: pa.RecordBatch) -> None:
    """Write rows after checking that their values fit their types."""
    refuse_broken_values(batch)
    sink.write(transaction, batch)


def refuse_broken_values(batch: pa.RecordBatch) -> None:
    """Raise `BadRecordError` for text that is not UTF-8, at any depth, and for decimals with more digits than their type allows."""
    if _is_whole(batch):
        return
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        row = None if _is_whole(column) else _first_broken_row(column)
        if row is not None:
            raise _broken(name, column, row)


def _is_whole(values: pa.RecordBatch | pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_broken_row(column: pa.Array) -> int | None:
    """Find the first broken row by halving. None if no row is broken: a slice of a nested column also validates values outside of it."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    first, end = 0, len(column)
    if _rows_are_whole(column, first, end):
        return None
    while end - first > 1:
        middle = (first + end) // 2
        if _rows_are_whole(column, first, middle):
            first = middle
        else:
            end = middle
    return first


def _rows_are_whole(column: pa.Array, first: int, end: int) -> bool:
    return _is_whole(column.take(pa.array(range(first, end), pa.int64())))


def _broken(name: str, column: pa.Array, row: int) -> BadRecordError:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        what = f"a value of type {spark_type(column.type)} that is broken: text that is no UTF-8, or a number that the type does not have"
    else:
        value = column[row].cast(pa.large_binary()).as_py()
        shown = value[:_SHOWN_BYTES]
        what = f"bytes that are no UTF-8: {shown!r}{'...' if len(value) > len(shown) else ''} ({len(value)} bytes)"
    where = f", in row {row} of the batch," if len(column) > 1 else ""
    return BadRecordError(
        f"column {name!r} holds{where} {what}. No sink can store them as text. Keep the column binary, filter with "
        "is_valid_utf8(), or repair it with make_valid_utf8(), before write_to",
        column=name,
        row=row,
    )


Rows = list[pa.RecordBatch]
Trial = Callable[[pa.RecordBatch], BadRecordError | None]


@dataclass
class TransactionWriter:
    """Writes the rows of one task into a transaction of one sink, and finds the rows that the sink refuses."""

    sink: TwoPhaseCommitSink
    context: TransactionContext
    bad: BadRows
    open: Transaction | None = None
    """The transaction to abort if the task fails."""
    _late: bool = False
    """The sink refused rows in `pre_commit`: trials must include it, which takes longer."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Leave a pre-committed transaction in `open` if the sink accepts any row. Returns how many rows it accepted."""
        taken = [part for batch in batches for part in self._sifted(batch, self._checked)]
        # the last round is for rows that the sink refuses in pre_commit: refused writes may have hidden them in the rounds before
        for sift in (self._sifted_alone, self._sifted_together, self._sifted_together):
            if self._refused(taken, keep=True) is None:
                break
            taken = sift(taken)
        else:
            error = self._refused(taken, keep=True)
            if error is not None:
                raise error
        return sum(batch.num_rows for batch in taken)

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Write all rows, where the job fails if one is refused: each batch is written as it comes, and none is held in memory."""
        rows = 0
        for batch in batches:
            if batch.num_rows:
                if self.open is None:
                    self.open = self.sink.begin_transaction(self.context)
                write_checked(self.sink, self.open, batch)
                rows += batch.num_rows
        if self.open is not None:
            self.open = self.sink.pre_commit(self.open)
        return rows

    def _sifted(self, rows: pa.RecordBatch, trial: Trial) -> Rows:
        good = [part for part in self._halved(rows, trial) if part.num_rows]
        return good if len(good) <= 1 else [pa.concat_batches(good)]

    def _halved(self, rows: pa.RecordBatch, trial: Trial) -> Iterable[pa.RecordBatch]:
        error = trial(rows) if rows.num_rows else None
        if error is None:
            yield rows
        elif rows.num_rows == 1:
            self.bad.add(rows, [reason_of(error)])
        else:
            middle = rows.num_rows // 2
            yield from self._halved(rows.slice(0, middle), trial)
            yield from self._halved(rows.slice(middle), trial)

    def _sifted_alone(self, batches: Rows) -> Rows:
        return [part for batch in batches for part in self._sifted(batch, self._alone)]

    def _sifted_together(self, batches: Rows) -> Rows:
        taken: Rows = []

        def beside_those_taken(rows: pa.RecordBatch) -> BadRecordError | None:
            error = self._refused([*taken, rows])
            if error is None:
                taken.append(rows)
            return error

        for batch in batches:
            for _ in self._halved(batch, beside_those_taken):
                pass
        return taken

    def _checked(self, rows: pa.RecordBatch) -> BadRecordError | None:
        try:
            refuse_broken_values(rows)
            self.sink.check_rows(rows)
        except BadRecordError as error:
            return error
        return None

    def _alone(self, rows: pa.RecordBatch) -> BadRecordError | None:
        return self._refused([rows])

    def _refused(self, batches: Rows, *, keep: bool = False) -> BadRecordError | None:
        """Write rows in a separate transaction. It is aborted unless the sink accepts them and `keep` is set."""
        if not batches:
            return None
        self.open = self.sink.begin_transaction(self.context)
        refused = None
        written = False
        try:
            for batch in batches:
                self.sink.write(self.open, batch)
            written = True
            if keep or self._late:
                self.open = self.sink.pre_commit(self.open)
        except BadRecordError as error:
            refused, self._late = error, self._late or written
        if refused is not None or not keep:
            # if this raises, the task ends: a transaction of the same name may begin only when this one is gone
            self.sink.abort(self.open)
            self.open = None
        return refused


@dataclass
class SinkWriter:
    """One sink in one batch: begin, write, pre-commit. The answer takes the transaction to the driver.

    Yields nothing, or the rows that the sink refuses, as dead letters.
    """

    uid: str
    sink: TwoPhaseCommitSink
    assignment: Assignment
    executor: Executor
    on_bad_record: OnBadRecord = OnBadRecord.FAIL

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        context = self._context()
        bad = BadRows(self.uid, self.assignment.batch, kept=self.on_bad_record is OnBadRecord.KEEP)
        writer, rows_in = TransactionWriter(self.sink, context, bad), _Input(batches)
        try:
            write = writer.write_all if self.on_bad_record is OnBadRecord.FAIL else writer.write
            rows = write(rows_in)
        except Exception as error:
            self._abort(writer.open)
            if error is not rows_in.error:
                report_failure(self.executor, self.assignment, SubtaskId(self.uid, context.subtask), error)
            raise
        prepared = self._pre_committed(context, writer.open, rows)
        count = BadCount(bad.count, bad.count + rows, bad.first_reason)
        self.executor.answer(SinkAnswer(self.uid, context.subtask, context.attempt, prepared, count))
        yield from bad.letters()

    def _context(self) -> TransactionContext:
        assignment = self.assignment
        return TransactionContext(
            job=assignment.place.job,
            sink=self.uid,
            run=assignment.place.run,
            checkpoint=assignment.batch,
            subtask=self.executor.partition(),
            attempt=self.executor.attempt(),
        )

    def _pre_committed(
        self, context: TransactionContext, transaction: Transaction | None, rows: int
    ) -> PreCommitted | None:
        if transaction is None:
            return None
        return PreCommitted(self.uid, context.checkpoint, context.subtask, dict(transaction), rows)

    def _abort(self, transaction: Transaction | None) -> None:
        if transaction is None:
            return
        try:
            self.sink.abort(transaction)
        except Exception as error:  # noqa: BLE001 - the task fails with its own error; recovery aborts the transaction
            _log.warning(
                "sink %s: a failed task could not abort its transaction, recovery will: %s",
                *(self.uid, safe_text(str(error))),
                extra=about(operator=self.uid),
            )
            _log.debug(
                "sink %s: where its abort failed", self.uid, exc_info=error, extra=about(operator=self.uid)
            )


class _Input:
    """The rows on their way to a sink. An error while they are read is not the sink's, so the sink does not report it.

    An operator in the same worker has reported it already. If Spark or the worker of a Python function failed, the stream breaks off in the
    middle; the error of reading it would hide the cause, which Spark reports.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            self.error = error
            raise


@dataclass
class Fused:
    """An operator and the sink that takes its results, in one Python worker."""

    first: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    second: SinkWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self.second(self.first(batches))
