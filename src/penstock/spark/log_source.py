"""`PartitionedLog` as a Spark data source. The driver plans ranges of offsets, executors read them.

Spark runs the planning half in a Python process of its own that lives as long as the query, so the log keeps
there how far it has looked, and a trigger costs a look at each partition's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, CorruptStateError
from penstock.sources.partitioned_log import POSITION_FIELDS, PartitionedLog, positioned, with_offsets
from penstock.sources.read_limit import fair_end
from penstock.spark.versions import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema,
)

FORMAT = "penstock-log"
NOTE = "note"
"""The option for Sparks without limits, see `penstock.spark.paced_log`."""


def read_log(spark: SparkSession, path: Path, rows_per_batch: int | None = None) -> DataFrame:
    """Return the log at `path` as a streaming DataFrame."""
    if rows_per_batch is not None and rows_per_batch < 1:
        raise ConfigError(
            f"rows_per_batch is {rows_per_batch}: use 1 or more, or None", rows_per_batch=rows_per_batch
        )
    spark.dataSource.register(LogDataSource)
    reader = spark.readStream.format(FORMAT).option("path", str(path))
    if rows_per_batch is not None:
        reader = reader.option("rows_per_batch", rows_per_batch)
    if not HAS_READ_LIMITS:
        from penstock.spark.paced_log import new_note

        reader = reader.option(NOTE, str(new_note()))
    return reader.load()


class LogDataSource(DataSource):
    """The options are `path` and, for streams, `rows_per_batch`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Position and the log's columns, all nullable."""
        log = self._log()
        return from_arrow_schema(pa.schema([*POSITION_FIELDS, *log.schema]), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> LogReader:
        """For `spark.read`."""
        return LogReader(self._log(), schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        limit = self.options.get("rows_per_batch")
        rows_per_batch = int(limit) if limit else None
        if HAS_READ_LIMITS:
            return LogStreamReader(self._log(), schema, rows_per_batch)
        from penstock.spark.paced_log import PacedLogReader

        note = self.options.get(NOTE)
        return PacedLogReader(self._log(), schema, rows_per_batch, Path(note) if note else None)

    def _log(self) -> PartitionedLog:
        if "path" not in self.options:
            raise ConfigError(f"format {FORMAT!r} needs the path of a log: option('path', ...)")
        return PartitionedLog(self.options["path"])


class LogRange(InputPartition):
    """Rows `start` to `end` of one partition of the log."""

    def __init__(self, partition: int, start: int, end: int) -> None:
        super().__init__((partition, start, end))
        self.partition = partition
        self.start = start
        self.end = end


class LogReader(DataSourceReader):
    """Reads what the log holds when the query is planned."""

    def __init__(self, log: PartitionedLog, schema: StructType) -> None:
        self._log = log
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """One range for each partition of the log."""
        return [LogRange(number, 0, end) for number, end in self._log.end_offsets().items() if end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor. Without rows Spark plans one partition that is no range."""
        if isinstance(partition, LogRange):
            yield from _rows(self._log, self._schema, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are `{"0": 17, "1": 12}`: partition and the offset of the next row."""

    def __init__(self, log: PartitionedLog, schema: StructType, rows_per_batch: int | None) -> None:
        self._log = log
        self._schema = arrow_schema(schema)
        self._rows_per_batch = rows_per_batch
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return _position(dict.fromkeys(range(self._log.partitions), 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What `rows_per_batch` asks for."""
        return ReadAllAvailable() if self._rows_per_batch is None else ReadMaxRows(self._rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where the log ends now: this query goes no further."""
        self._target = self._log.end_offsets()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where the next batch ends."""
        begin = self._checked(start)
        end = self._target or self._log.end_offsets()
        self._refuse_lost_rows(begin, end)
        return _position(fair_end(begin, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """For the query's progress: where the log ends."""
        return _position(self._log.end_offsets())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One range for each partition of the log that has rows in this batch."""
        begin, stop = self._checked(start), self._checked(end)
        self._refuse_lost_rows(begin, stop)
        ranges = [LogRange(number, first, stop[number]) for number, first in begin.items()]
        return [part for part in ranges if part.start < part.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor, also again for the same range, with the same rows."""
        assert isinstance(partition, LogRange)
        yield from _rows(self._log, self._schema, partition)

    def stop(self) -> None:
        """Close the log's files."""
        self._log.close()

    def _refuse_lost_rows(self, begin: dict[int, int], end: dict[int, int]) -> None:
        for partition, offset in begin.items():
            if offset > end[partition]:
                raise CorruptStateError(
                    f"the query has read partition {partition} of log {self._log.path} up to offset {offset}, "
                    f"but the log ends at {end[partition]}: it was replaced or lost rows; "
                    "put it back, or start from another checkpoint",
                    partition=partition,
                    offset=offset,
                    end=end[partition],
                )

    def _checked(self, position: dict[str, int]) -> dict[int, int]:
        found = {int(partition): offset for partition, offset in position.items()}
        if sorted(found) != list(range(self._log.partitions)):
            raise ConfigError(
                f"the query's position is for the partitions {sorted(found)}, but log {self._log.path} has "
                f"{self._log.partitions}; it is another log: use its own checkpoint",
                position=position,
            )
        return dict(sorted(found.items()))


def _rows(log: PartitionedLog, schema: pa.Schema, part: LogRange) -> Iterator[pa.RecordBatch]:
    batches = with_offsets(log.read_range(part.partition, part.start, part.end), part.start)
    for offset, batch in batches:
        rows = positioned(batch, part.partition, offset)
        yield rows if rows.schema.equals(schema) else rows.cast(schema)


def _position(offsets: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}
