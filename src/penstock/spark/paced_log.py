"""`PartitionedLog` on Spark 4.0 and 4.1, which ask a source in Python neither from where nor how far it may read. Driver.

Its reader keeps the position itself, and a job tells it by a note, a small file, how the run reads. Without a note there is no knowing:
for a query with `availableNow` such a Spark asks once, wherever the query stands, and makes one batch of the answer. So a job over logs
alone is not run with `availableNow` there: its readers stop at the end that their note names, and the run ends when Spark has caught up.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.sources.partitioned_log import PartitionedLog
from penstock.spark.inspection import leaf_options
from penstock.spark.log_source import NOTE, LogStreamReader
from penstock.spark.versions import HAS_READ_LIMITS

_log = logging.getLogger(__name__)


class Pace(msgspec.Struct, frozen=True):
    """What a note says: read in batches, up to `until` if that is given; or all that is there `at_once`."""

    until: dict[int, int] | None = None
    at_once: bool = False


_PACES = msgspec.json.Decoder(Pace)


def new_note() -> Path:
    """Where a job will tell the reader of one DataFrame how it reads."""
    return Path(_folder().name, SYSTEM_RANDOMNESS.token())


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="penstock-notes-")


def tell_logs(frames: Sequence[DataFrame], *, available_now: bool) -> bool:
    """Tell the logs among the sources of a query that is about to start how it reads.

    True: the query must be started without `availableNow`, and stopped when it has caught up.
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
    """Call something once the query has nothing left to read; never if it fails."""

    def wait() -> None:
        try:
            query.processAllAvailable()
        except Exception as error:  # noqa: BLE001 - Spark wraps what failed in kinds of its own; who watches the query sees it too
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
    """A `LogStreamReader` for a Spark that gives neither a start nor a limit."""

    def __init__(
        self, log: PartitionedLog, schema: StructType, rows_per_batch: int | None, note: Path | None
    ) -> None:
        super().__init__(log, schema, rows_per_batch)
        self._note = note
        self._pace: Pace | None = None
        self._seen: dict[str, int] | None = None

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Where the next batch ends. Spark makes a batch of every new answer, so that the one after it begins there."""
        if self._pace is None:
            self._pace = self._read_note()
            self._target = self._pace.until
        if self._pace.at_once:
            return self.reportLatestOffset()
        self._seen = super().latestOffset(self._seen or self.initialOffset(), self.getDefaultReadLimit())
        return self._seen

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """See `LogStreamReader`. Spark also calls it, with an empty range, to say where a query goes on."""
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
