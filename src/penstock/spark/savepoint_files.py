"""Rows of state between the files of a savepoint and DataFrames, in Spark's tasks. Driver and executors.

Internally columns have plain names by position, `c0`, `c1` and so on: first the identity, then the values. The sort numbers precede them.
Spark computes the sort key. The second sort number of a stored row is kept: only the operator knows its meaning, and often it does not
follow from the identity. A file is one part: the rows of the key groups g with g mod parallelism = part, in order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from penstock.operators.state.table_rows import sub_orders
from penstock.savepoint.manifest import SavedFile
from penstock.savepoint.table_files import BATCH_ROWS, read_table, table_file, write_table
from penstock.spark.key_columns import subtask_of
from penstock.spark.tasks import RenamedColumns, WorkerTask
from penstock.spark.versions import partition_by_number, repartitioned
from penstock.state.backends.base import StateLayout, TableLayout
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.keys import ORDER, SORT_KEY, key_groups, owners, rows_equal
from penstock.storage import Storage

PIECE_BYTES = 64 << 20
"""How much of a part is held in memory before it is written."""
WRONG_HASH = -1
"""In place of a sort key: the key does not have the hash with which it is stored."""
_ANSWER = StructType([StructField("answer", BinaryType())])


@dataclass(frozen=True)
class OperatorTable:
    """One table of an operator; its first `keys` columns are the operator's key."""

    uid: str
    layout: TableLayout
    keys: int

    @classmethod
    def of(cls, uid: str, layout: StateLayout, name: str) -> OperatorTable:
        """The table of this name in a layout."""
        return cls(uid, layout.by_name[name], len(layout.key))

    @property
    def fields(self) -> list[pa.Field]:
        """Its columns: identity, then values."""
        return [*self.layout.identity, *self.layout.value]

    @property
    def names(self) -> list[str]:
        """The internal names of its columns."""
        return [f"c{at}" for at in range(len(self.fields))]

    @property
    def identity(self) -> list[str]:
        """The internal names of the columns of the identity."""
        return self.names[: len(self.layout.identity)]

    @property
    def numbers(self) -> list[str]:
        """The names of the sort numbers of its rows."""
        return [SORT_KEY, ORDER] if self.layout.ordered else [SORT_KEY]

    @property
    def schema(self) -> StructType:
        """Its columns as a Spark schema, after the sort numbers."""
        numbers = [pa.field(name, pa.int64(), nullable=False) for name in self.numbers]
        fields = [field.with_name(name) for field, name in zip(self.fields, self.names, strict=True)]
        columns: StructType = from_arrow_schema(pa.schema([*numbers, *fields]), prefer_timestamp_ntz=True)
        return columns


class WrittenPart(msgspec.Struct, frozen=True):
    """The file that a task has written, or the problem that prevented it."""

    file: SavedFile | None = None
    first: int | None = None
    """The smallest second sort number, if the table has any."""
    problem: str = ""


_FILES = msgspec.json.Decoder(SavedFile)
_ANSWERS = msgspec.json.Decoder(WrittenPart)


# ── from files ─────────────────────────────────────────────────────────────────────────────────


def stored_rows(
    session: SparkSession, folder: Storage, files: Sequence[SavedFile], table: OperatorTable
) -> DataFrame:
    """The rows of a table, read by one task per file. A file that differs from the manifest makes it fail."""
    columns = table.schema
    if not files:
        return session.createDataFrame([], columns)
    items = [(bytearray(msgspec.json.encode(file)),) for file in files]
    spread = session.sparkContext.parallelize(items, len(items))
    named = session.createDataFrame(spread, StructType([StructField("file", BinaryType())]))
    return named.mapInArrow(WorkerTask(_Reading(folder, table)), columns)


@dataclass(frozen=True)
class _Reading:
    folder: Storage
    table: OperatorTable

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [*self.table.numbers, *self.table.names]
        wanted = [*self.table.numbers, *(field.name for field in self.table.fields)]
        with _scratch() as scratch:
            for encoded in (one for batch in batches for one in batch.column(0).to_pylist()):
                for rows in read_table(self.folder, _FILES.decode(encoded), self.table.layout, Path(scratch)):
                    yield rows.select(wanted).rename_columns(names)


# ── to files ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Target:
    """The folder and number of parts of tables, and the mark of the attempt that writes them."""

    folder: Storage
    parallelism: int
    mark: str


def store_rows(rows: DataFrame, to: Target, table: OperatorTable) -> list[WrittenPart]:
    """Write the rows of a table, one file per part. Returns an answer for each file or problem.

    Their columns are those of the table's `schema`. The second sort number may be missing, or null, in new rows.
    """
    rows = (_with_orders(rows, table) if table.layout.ordered else rows).select(*table.numbers, *table.names)
    place = partition_by_number(rows.sparkSession, subtask_of(to.parallelism), to.parallelism)
    placed = repartitioned(rows, to.parallelism, place)
    # equal rows become neighbours, so that duplicates are found
    in_order = placed.sortWithinPartitions(*table.numbers, *table.identity)
    answers = in_order.mapInArrow(
        WorkerTask(RenamedColumns(tuple(in_order.columns), _Writing(to, table))), _ANSWER
    ).collect()
    return [_ANSWERS.decode(bytes(row["answer"])) for row in answers]


def _with_orders(rows: DataFrame, table: OperatorTable) -> DataFrame:
    """Fill in the second sort number of rows that have none: in rows of a user it follows from the identity."""
    if ORDER not in rows.columns:
        rows = rows.withColumn(ORDER, F.lit(None).cast("long"))
    elif not rows.schema[ORDER].nullable:  # all of them are stored rows
        return rows
    subs = table.identity[table.keys :]
    if [rows.schema[name].dataType for name in subs] == [LongType()]:  # an integer is its own sort number
        return rows.withColumn(ORDER, F.coalesce(F.col(ORDER), F.col(subs[0]), F.lit(0)))
    return rows.mapInArrow(
        WorkerTask(RenamedColumns(tuple(rows.columns), _Ordering(tuple(subs)))), rows.schema
    )


@dataclass(frozen=True)
class _Ordering:
    subs: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            computed = pa.array(sub_orders([batch.column(name) for name in self.subs]))
            orders = pc.coalesce(batch.column(ORDER), computed)
            yield batch.set_column(batch.schema.get_field_index(ORDER), ORDER, orders)


@dataclass(frozen=True)
class _Writing:
    to: Target
    table: OperatorTable

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rest = iter(batches)
        checked = _Checked(self.table, self.to.parallelism)
        pieces = checked.pieces(rest)
        first = next(pieces, None)
        answer = None
        if first is not None:
            answer = self._written(checked, first, pieces)
        for _ in rest:  # Spark requires that a task reads all its rows
            pass
        if checked.problem:
            answer = WrittenPart(problem=checked.problem)
        if answer is not None:
            yield pa.record_batch({"answer": pa.array([msgspec.json.encode(answer)], pa.binary())})

    def _written(
        self, checked: _Checked, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> WrittenPart:
        part = int(owners(key_groups(first.column(SORT_KEY).to_numpy()[:1]), self.to.parallelism)[0])
        task = TaskContext.get()
        number = 0 if task is None else task.taskAttemptId()
        path = table_file(self.table.uid, self.table.layout.name, part, self.to.mark, number)
        with _scratch() as scratch:
            rows = checked.of_part(part, _chained(first, others))
            file = write_table(
                self.to.folder, path, rows, self.table.layout, part=part, scratch=Path(scratch)
            )
        return WrittenPart(file, checked.first)


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


class _Checked:
    """The rows of a task as they are stored, in pieces, up to the first invalid one; then `problem` says why."""

    def __init__(self, table: OperatorTable, parallelism: int) -> None:
        self._parallelism = parallelism
        self._schema = numbered_schema(table.layout)
        self._identity = table.layout.identity.names
        self._keys = self._identity[: table.keys]
        self._last: pa.RecordBatch | None = None
        self.first: int | None = None
        self.problem = ""

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows in pieces of about `BATCH_ROWS`."""
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            rows = self._as_stored(batch)
            self._look_at(rows)
            if self.problem:
                return
            waiting.append(rows)
            if (
                sum(one.num_rows for one in waiting) >= BATCH_ROWS
                or sum(one.nbytes for one in waiting) >= PIECE_BYTES
            ):
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)

    def of_part(self, part: int, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check that all rows belong to this part."""
        for piece in pieces:
            if (owners(key_groups(piece.column(SORT_KEY).to_numpy()), self._parallelism) != part).any():
                self.problem = (
                    f"Spark has put rows of another part into part {part}: this is a bug, report it"
                )
                return
            yield piece

    def _as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _look_at(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        for name in self._keys:
            if rows.column(name).null_count:
                at = int(np.flatnonzero(np.asarray(rows.column(name).is_null()))[0])
                self.problem = f"the key column {name!r} is null in {self._shown(rows, at)}"
                return
        wrong = np.flatnonzero(rows.column(SORT_KEY).to_numpy() == WRONG_HASH)
        if len(wrong):
            self.problem = (
                f"{self._shown(rows, int(wrong[0]))} does not have the hash with which it is stored"
            )
            return
        twice = self._twice(rows)
        if len(twice):
            self.problem = f"{self._shown(rows, int(twice[0]))} is there twice"
            return
        if ORDER in rows.schema.names:
            least = int(rows.column(ORDER).to_numpy().min())
            self.first = least if self.first is None else min(self.first, least)

    def _twice(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The positions of rows that equal the row before."""
        identity = rows.select(self._identity)
        together = identity if self._last is None else _joined([self._last, identity])
        before, after = together.slice(0, together.num_rows - 1), together.slice(1)
        self._last = identity.slice(identity.num_rows - 1)
        same: npt.NDArray[np.int64] = np.flatnonzero(rows_equal(before.columns, after.columns))
        same += 1 - (together.num_rows - identity.num_rows)
        return same

    def _shown(self, rows: pa.RecordBatch, at: int) -> str:
        (values,) = rows.select(self._identity).slice(at, 1).to_pylist()
        return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [
        pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(batches[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on this machine."""
    return tempfile.TemporaryDirectory(prefix="penstock-savepoint-", ignore_cleanup_errors=True)
