"""Write what a sink takes, and find out which rows it refuses. Executors.

A refusal spoils the transaction, so it is aborted and begun again without the rows at fault. They are found by halving: first by a check
that has no effect, where the sink has one; then in transactions that are aborted; at last together with the rows taken so far, because two
rows may be refused only beside each other. A sink that writes at once gets good rows again in this way.

The one way by which rows reach a sink: what no sink could ever commit is refused here, in the task. Executors.

Spark hands on strings as they are, and `CAST(binary AS STRING)` checks nothing. Bytes that are no UTF-8 can be staged, but nobody can
read them as text afterwards: a commit that meets them is promised and cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.bad_records import BadRecords, reason_of
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.state.ddl import spark_type

_SHOWN_BYTES = 40


def write_checked(sink: TwoPhaseCommitSink, transaction: Transaction, batch: pa.RecordBatch) -> None:
    """Write rows whose values are what their types say."""
    refuse_broken_values(batch)
    sink.write(transaction, batch)


def refuse_broken_values(batch: pa.RecordBatch) -> None:
    """Raise `BadRecordError` for text that is no UTF-8, at any depth, and for decimals with more digits than their type has."""
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
    """Halve the rows. None when it is none of them: a slice of a nested column drags along what is not in it."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    first, behind = 0, len(column)
    if _rows_are_whole(column, first, behind):
        return None
    while behind - first > 1:
        middle = (first + behind) // 2
        if _rows_are_whole(column, first, middle):
            first = middle
        else:
            behind = middle
    return first


def _rows_are_whole(column: pa.Array, first: int, behind: int) -> bool:
    return _is_whole(column.take(pa.array(range(first, behind), pa.int64())))


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
class Sifter:
    """The rows of one task on their way into one sink."""

    sink: TwoPhaseCommitSink
    context: TransactionContext
    bad: BadRecords
    open: Transaction | None = None
    """What has to be aborted when the task fails."""
    _late: bool = False
    """The sink has refused rows at the end, in `pre_commit`: a trial must go as far, which takes longer."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Leave a pre-committed transaction in `open`, if the sink takes any row; returns how many it has taken."""
        taken = [part for batch in batches for part in self._sifted(batch, self._checked)]
        # the last time for rows that it refuses at the end: before, it may have refused others so soon that nobody came to the end
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
        """The same where no row may be refused: each batch is written as it comes, and none is held."""
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
        """Write them in a transaction of their own; it is aborted, unless the sink takes them and it is to be kept."""
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
            self.sink.abort(
                self.open
            )  # what it raises ends the task: another of this name may only begin when this is gone
            self.open = None
        return refused
