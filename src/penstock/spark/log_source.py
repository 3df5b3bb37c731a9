"""`PartitionedLog` as a Spark data source. The driver plans ranges of offsets, executors read them.

Spark runs the planning half in its own Python process, which lives as long as the query. The log remembers there how far it has looked,
so a trigger costs one look at the end of each partition.

Spark 4.0 and 4.1 pass a Python source neither a start nor a limit. There the reader keeps its position itself, and the job tells it
through a note, a small file, how the run reads. For a query with `availableNow` such a Spark asks only once, wherever the query stands,
and makes one batch of the answer. So a job that reads only logs does not use `availableNow` there: its readers stop at the end that
their note names, and the run ends when Spark has caught up.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from typing_extensions import override

from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.sources.partitioned_log import POSITION_FIELDS, PartitionedLog, positioned, with_offsets
from penstock.spark.inspection import leaf_options
from penstock.spark.versions import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema,
)

_log = logging.getLogger(__name__)


def fair_end(start: Mapping[int, int], end: Mapping[int, int], max_rows: int) -> dict[int, int]:
    """Return positions at most `max_rows` after `start` in total, none after `end`.

    Every partition gets the same share; what one does not need goes to the others. The remainder rotates: its first partition depends on
    how many rows were read before, so no partition waits forever.
    """
    waiting = {partition: end[partition] - start[partition] for partition in sorted(end)}
    granted = dict.fromkeys(waiting, 0)
    remaining = min(max_rows, sum(waiting.values()))
    while remaining:
        hungry = [partition for partition in waiting if granted[partition] < waiting[partition]]
        share = remaining // len(hungry)
        if share == 0:
            turn = sum(start.values()) % len(hungry)
            hungry = (hungry[turn:] + hungry[:turn])[:remaining]
            share = 1
        for partition in hungry:
            rows = min(share, waiting[partition] - granted[partition])
            granted[partition] += rows
            remaining -= rows
    return {partition: start[partition] + granted[partition] for partition in waiting}


FORMAT = "penstock-log"
NOTE = "note"
"""The option with the path of the note, for Spark versions without limits."""


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
        reader = reader.option(NOTE, str(new_note()))
    return reader.load()


class LogDataSource(DataSource):
    """The Spark data source of a log. Its options are `path` and, for streams, `rows_per_batch`."""

    @classmethod
    def name(cls) -> str:
        """The name to use in `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the position, then those of the log, all nullable."""
        log = self._log()
        return from_arrow_schema(pa.schema([*POSITION_FIELDS, *log.schema]), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> LogReader:
        """The reader for a batch query with `spark.read`."""
        return LogReader(self._log(), schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """The reader for a streaming query with `spark.readStream`."""
        limit = self.options.get("rows_per_batch")
        rows_per_batch = int(limit) if limit else None
        if HAS_READ_LIMITS:
            return LogStreamReader(self._log(), schema, rows_per_batch)
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
    """Reads everything that the log contains when the query is planned."""

    def __init__(self, log: PartitionedLog, schema: StructType) -> None:
        self._log = log
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """One range for each partition of the log."""
        return [LogRange(number, 0, end) for number, end in self._log.end_offsets().items() if end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor. If there are no rows, Spark plans one partition that is not a range."""
        if isinstance(partition, LogRange):
            yield from _rows(self._log, self._schema, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log as a stream. A position is `{"0": 17, "1": 12}`: for each partition the offset of the next row."""

    def __init__(self, log: PartitionedLog, schema: StructType, rows_per_batch: int | None) -> None:
        self._log = log
        self._schema = arrow_schema(schema)
        self._rows_per_batch = rows_per_batch
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The position where a new query begins."""
        return _position(dict.fromkeys(range(self._log.partitions), 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The read limit that `rows_per_batch` sets."""
        return ReadAllAvailable() if self._rows_per_batch is None else ReadMaxRows(self._rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where the log ends now: this query reads no further."""
        self._target = self._log.end_offsets()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The position where the next batch ends."""
        begin = self._checked(start)
        end = self._target or self._log.end_offsets()
        self._refuse_lost_rows(begin, end)
        return _position(fair_end(begin, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where the log ends, for the progress of the query."""
        return _position(self._log.end_offsets())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One range for each partition of the log that has rows in this batch."""
        begin, stop = self._checked(start), self._checked(end)
        self._refuse_lost_rows(begin, stop)
        ranges = [LogRange(number, first, stop[number]) for number, first in begin.items()]
        return [part for part in ranges if part.start < part.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor. Reading it again gives the same rows."""
        assert isinstance(partition, LogRange)
        yield from _rows(self._log, self._schema, partition)

    def stop(self) -> None:
        """Close the files of the log."""
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


class Pace(msgspec.Struct, frozen=True):
    """The content of a note: read in batches, up to `until` if given; or everything `at_once`."""

    until: dict[int, int] | None = None
    at_once: bool = False


_PACES = msgspec.json.Decoder(Pace)


def new_note() -> Path:
    """The path of a new note, for the reader of one DataFrame."""
    return Path(_folder().name, SYSTEM_RANDOMNESS.token())


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="penstock-notes-")


def set_paces(frames: Sequence[DataFrame], *, available_now: bool) -> bool:
    """Write the notes for the logs among the sources of a query that is about to start.

    Returns True if the query must be started without `availableNow`, and stopped when it has caught up.
    """
    if HAS_READ_LIMITS:
        return False
    sources = [options for frame in frames for options in leaf_options(frame)]
    logs = [options for options in sources if NOTE in options]
    alone = len(logs) == len(sources)
    for options in logs:
        pace = _pace(Path(options["path"]), alone=alone) if available_now else Pace()
        Path(options[NOTE]).write_bytes(msgspec.json.encode(pace))
        if pace.at_once and "rows_per_batch" in options:
            _log.warning(
                "log %s is read in one batch, and rows_per_batch is not kept: beside other sources, Spark before 4.2 cannot do better "
                "with available_now",
                options["path"],
            )
    return available_now and alone


def when_caught_up(query: StreamingQuery, call: Callable[[], None]) -> None:
    """Call a function once the query has nothing left to read; never if it fails."""

    def wait() -> None:
        try:
            query.processAllAvailable()
        except Exception as error:  # noqa: BLE001 - Spark wraps failures in exceptions of its own; the thread that watches the query sees it too
            _log.debug("the query ended before it had read everything", exc_info=error)
        else:
            call()

    threading.Thread(target=wait, name="penstock-catching-up", daemon=True).start()


def _pace(path: Path, *, alone: bool) -> Pace:
    if not alone:
        return Pace(at_once=True)
    with PartitionedLog(path) as log:
        return Pace(until=log.end_offsets())


class PacedLogReader(LogStreamReader):
    """A `LogStreamReader` for a Spark that passes neither a start nor a limit."""

    def __init__(
        self, log: PartitionedLog, schema: StructType, rows_per_batch: int | None, note: Path | None
    ) -> None:
        super().__init__(log, schema, rows_per_batch)
        self._note = note
        self._pace: Pace | None = None
        self._seen: dict[str, int] | None = None

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Where the next batch ends. Spark makes a batch of every new answer, and the next one begins there."""
        if self._pace is None:
            self._pace = self._read_note()
            self._target = self._pace.until
        if self._pace.at_once:
            return self.reportLatestOffset()
        self._seen = super().latestOffset(self._seen or self.initialOffset(), self.getDefaultReadLimit())
        return self._seen

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Spark also calls this with an empty range, to say where a query continues."""
        self._seen = end
        return super().partitions(start, end)

    def _read_note(self) -> Pace:
        if self._note is not None and self._note.exists():
            return _PACES.decode(self._note.read_bytes())
        if self._rows_per_batch is None:
            return Pace(at_once=True)
        raise ConfigError(
            f"log {self._log.path} was to be read with rows_per_batch={self._rows_per_batch} by a query that is not a Penstock job; Spark "
            "before 4.2 gives sources in Python no limits: leave rows_per_batch out, or use Spark 4.2",
            rows_per_batch=self._rows_per_batch,
        )
