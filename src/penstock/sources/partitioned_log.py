"""An embedded, durable source: rows in numbered partitions, read again by position. Driver and executors.

It gives what exactly-once needs from a source: the rows between two offsets are the same whenever they are
read. It fits one machine, or a shared file system whose locks work; beyond that, read Kafka. Rows stay
until the folder is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from penstock.decoding import decoded
from penstock.errors import BadRecordError, ConfigError, CorruptStateError
from penstock.sources.log_segment import BATCH_BYTES, BATCH_ROWS, LogSegment
from penstock.state.ddl import arrow_schema, schema_ddl
from penstock.storage import LocalStorage
from penstock.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.state.ddl import Columns

POSITION_FIELDS = (pa.field("partition", pa.int32()), pa.field("offset", pa.int64()))
_DESCRIPTION = "log.json"
_FORMAT = 1
_MAX_PARTITIONS = 10_000

Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]


class _Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    schema: str
    partitions: int


_DESCRIPTIONS = msgspec.json.Decoder(_Description)


class PartitionedLog:
    """An append-only log in the folder `path`, made on first use with `schema` and `partitions`.

    `schema` is DDL such as "app string, n long", a `StructType`, or a list of columns. An existing log is opened without
    them, or with the same ones. Offsets count the rows of a partition from 0.
    Safe for several threads; several processes may append and read at the same time.
    """

    def __init__(
        self, path: str | Path, schema: Columns | None = None, partitions: int | None = None
    ) -> None:
        if "://" in str(path):
            raise ConfigError(
                f"a PartitionedLog is a folder on a local or shared disk, not {path}: give a path, or read another source",
                path=str(path),
            )
        self.path = Path(path).expanduser().absolute()
        ddl = None if schema is None else schema_ddl(schema)
        if ddl is not None:
            _check_columns(self.path, arrow_schema(ddl))
        description = _open_or_create(self.path, ddl, partitions)
        self.ddl = description.schema
        self.schema: pa.Schema = arrow_schema(description.schema)
        self.partitions = description.partitions
        self._segments = [LogSegment(self.path, number, self.schema) for number in range(self.partitions)]

    def __repr__(self) -> str:
        return f"PartitionedLog({str(self.path)!r}, {self.ddl!r}, {self.partitions})"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self.path),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, partition: int, rows: Rows, *, sync: bool = True) -> int:
        """Add rows at the end of a partition and return the offset of the first.

        With `sync` they are on disk when this returns; without, they survive the death of the process but
        not of the machine. Up to 65,536 rows and 32 MiB are added all or none; of more, a crash may keep
        the beginning.
        """
        batches = _frames(self._fitted(rows))
        return self._segment(partition).append(batches, sync=sync)

    def end_offsets(self) -> dict[int, int]:
        """Return, for each partition, the offset of its next row; everything before it is on disk."""
        return {number: segment.end_offset() for number, segment in enumerate(self._segments)}

    def read_range(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition from offset `start` up to, not including, `end`."""
        if not 0 <= start <= end:
            raise ConfigError(
                f"rows {start} to {end} of log {self.path} are no range: use 0 <= start <= end",
                partition=partition,
                start=start,
                end=end,
            )
        return self._segment(partition).read(start, end)

    def read(self, spark: SparkSession, rows_per_batch: int | None = None) -> DataFrame:
        """Return the log as a streaming DataFrame: `partition int, offset long` and the log's columns.

        A micro-batch takes what is there, or at most `rows_per_batch` rows, shared out fairly over the
        partitions. Spark 4.0 and 4.1 keep `rows_per_batch` only in a Penstock job.
        """
        from penstock.spark.log_source import read_log

        return read_log(spark, self.path, rows_per_batch)

    def table(self) -> pa.Table:
        """Return everything that is in the log now, with the columns of `read`, by partition and offset."""
        batches = [
            positioned(batch, partition, offset)
            for partition, end in self.end_offsets().items()
            for offset, batch in with_offsets(self.read_range(partition, 0, end), 0)
        ]
        return pa.Table.from_batches(batches, schema=pa.schema([*POSITION_FIELDS, *self.schema]))

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        for segment in self._segments:
            segment.close()

    def _segment(self, partition: int) -> LogSegment:
        if not 0 <= partition < self.partitions:
            raise ConfigError(
                f"log {self.path} has no partition {partition}: use 0 to {self.partitions - 1}",
                partition=partition,
            )
        return self._segments[partition]

    def _fitted(self, rows: Rows) -> pa.Table:
        """Return the rows as a table of the log's schema, or refuse them."""
        given = rows if isinstance(rows, pa.Table | pa.RecordBatch) else self._dictionaries(rows)
        try:
            if isinstance(given, list):
                self._check_names({name for row in given for name in row})
                return pa.Table.from_pylist(given, schema=self.schema)
            table = given if isinstance(given, pa.Table) else pa.Table.from_batches([given])
            self._check_names(set(table.column_names))
            return table.select([name for name in self.schema.names if name in table.column_names]).cast(
                self.schema
            )
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            pa.ArrowNotImplementedError,
            ValueError,
            KeyError,
        ) as error:
            raise BadRecordError(
                f"rows do not fit log {self.path} of schema {self.ddl!r}: {error}; nothing was appended",
                schema=self.ddl,
            ) from error

    def _dictionaries(self, rows: object) -> list[Mapping[str, Any]]:
        """Return the rows, if each is a dictionary."""
        if isinstance(rows, Iterable) and not isinstance(rows, Mapping):
            found = list(rows)
            wrong = [type(row).__name__ for row in found if not isinstance(row, Mapping)]
            if not wrong:
                return found
            given = f"a list with a row of type {wrong[0]}"
        else:
            given = f"an object of type {type(rows).__name__}"
        raise ConfigError(
            f"append to log {self.path} takes a list of rows, and a row is a dictionary with the columns {', '.join(self.schema.names)}; "
            f"it was given {given}; nothing was appended",
            schema=self.ddl,
        )

    def _check_names(self, names: set[str]) -> None:
        unknown = sorted(names.difference(self.schema.names), key=str)
        if unknown:
            raise BadRecordError(
                f"rows for log {self.path} have the unknown columns {unknown}; its schema is {self.ddl!r}; "
                "nothing was appended",
                unknown=unknown,
                schema=self.ddl,
            )


def with_offsets(batches: Iterator[pa.RecordBatch], start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pair each batch with the offset of its first row."""
    for batch in batches:
        yield start, batch
        start += batch.num_rows


def positioned(batch: pa.RecordBatch, partition: int, offset: int) -> pa.RecordBatch:
    """Put the columns `partition` and `offset` before those of `batch`, whose first row has this offset."""
    partitions = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    offsets = pa.array(np.arange(offset, offset + batch.num_rows, dtype=np.int64))
    schema = pa.schema([*POSITION_FIELDS, *batch.schema])
    return pa.RecordBatch.from_arrays([partitions, offsets, *batch.columns], schema=schema)


def _frames(rows: pa.Table) -> list[pa.RecordBatch]:
    """Cut rows into pieces that are written, and read, in one go."""
    if rows.num_rows == 0:
        return []
    piece = max(1, min(BATCH_ROWS, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)))
    return [
        batch
        for start in range(0, rows.num_rows, piece)
        for batch in rows.slice(start, piece).combine_chunks().to_batches()
    ]


def _check_columns(path: Path, schema: pa.Schema) -> None:
    names = list(schema.names)
    reserved = [field.name for field in POSITION_FIELDS if field.name in names]
    if not names or reserved or len(set(names)) != len(names):
        raise ConfigError(
            f"log {path} cannot have the columns {names}: give at least one, each once, and none called "
            "'partition' or 'offset', which reading adds",
            columns=names,
        )


def _open_or_create(path: Path, schema: str | None, partitions: int | None) -> _Description:
    storage = LocalStorage(path)
    try:
        found = _read(storage)
    except FileNotFoundError:
        if schema is None or partitions is None:
            raise ConfigError(
                f"there is no log at {path}: give schema and partitions to make one", path=str(path)
            ) from None
        if not 1 <= partitions <= _MAX_PARTITIONS:
            raise ConfigError(
                f"a log of {counted(partitions, 'partition')} is not possible: use 1 to {_MAX_PARTITIONS}",
                partitions=partitions,
            ) from None
        storage.create(_DESCRIPTION, msgspec.json.encode(_Description(_FORMAT, schema, partitions)))
        found = _read(storage)  # another process may have been first
    _check_same(path, found, schema, partitions)
    return found


def _read(storage: LocalStorage) -> _Description:
    try:
        found = decoded(_DESCRIPTIONS, storage.get(_DESCRIPTION))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptStateError(
            f"{storage.uri}/{_DESCRIPTION} does not describe a log: {error}; put it back from a copy",
            uri=storage.uri,
        ) from error
    if found.format != _FORMAT:
        raise ConfigError(
            f"log {storage.uri} has format {found.format}, and this version reads {_FORMAT}; "
            "use the version that made it",
            format=found.format,
        )
    return found


def _check_same(path: Path, found: _Description, schema: str | None, partitions: int | None) -> None:
    if schema is not None and arrow_schema(schema) != arrow_schema(found.schema):
        raise ConfigError(
            f"log {path} exists with schema {found.schema!r}, not {schema!r}; "
            "open it with its own, or use another path",
            found=found.schema,
            given=schema,
        )
    if partitions is not None and partitions != found.partitions:
        raise ConfigError(
            f"log {path} exists with {counted(found.partitions, 'partition')}, not {partitions}; "
            "open it with its own number, or use another path",
            found=found.partitions,
            given=partitions,
        )
