"""Positions of sources: where Kafka and `PartitionedLog` end now, checks of given positions, and whether a job has caught up. Driver.

Spark passes a position to its source in the middle of a query, where a wrong one fails every run. So positions for a `PartitionedLog` are
checked against the log before anything is written.

A job has caught up when everything that was in the sources at one moment is committed. Kafka and `PartitionedLog` report at that moment
where they end. Other sources have been read when Spark has later looked at all of them and found nothing, and everything that it had
found before is committed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.checkpoint.model import Completed
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError, UnavailableError
from penstock.graph import Source
from penstock.recovery.restore_options import LATEST, START, RestoreOptions
from penstock.savepoint.restore import GivenSavepoint
from penstock.sources.partitioned_log import PartitionedLog
from penstock.spark.inspection import leaf_options, leaves, source_kind, streaming_leaves
from penstock.spark.log_source import FORMAT as LOG
from penstock.spark.query_reports import rows_between
from penstock.wording import counted, start_option

KAFKA = "kafka"


@dataclass
class LatestPositions:
    """Where the sources of a job end. Each is asked once, so all runs of a start use the same moment."""

    session: SparkSession
    sources: Sequence[Source]
    _known: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, uid: str) -> list[str]:
        """One position for each streaming source in it, as Spark writes it."""
        if uid not in self._known:
            source = next(one for one in self.sources if one.uid == uid)
            self._known[uid] = [self._end(uid, leaf) for leaf in streaming_leaves(source.frame)]
        return self._known[uid]

    def _end(self, uid: str, leaf: Any) -> str:
        kind = source_kind(leaf)
        if kind == LOG:
            ends = PartitionedLog(dict(leaf.extraOptions().asCaseSensitiveMap())["path"]).end_offsets()
            return json.dumps({str(partition): end for partition, end in ends.items()}, separators=(",", ":"))
        if kind == KAFKA:
            return self._end_of_stream(uid, leaf)
        raise ConfigError(
            f"{start_option(positions={uid: LATEST})}: a source of the kind {kind} cannot be asked where it ends; only Kafka and "
            "PartitionedLog can be asked. Give its position instead, as a checkpoint shows it",
            uid=uid,
            kind=kind,
        )

    def _end_of_stream(self, uid: str, leaf: Any) -> str:
        """Ask Spark's own reader of the source, in a temporary folder, because it records where it begins."""
        java = self.session.sparkContext._jvm
        assert java is not None
        with tempfile.TemporaryDirectory(prefix="penstock-latest-") as notes:
            try:
                scan = leaf.table().newScanBuilder(leaf.extraOptions()).build()
                stream = scan.toMicroBatchStream(f"file://{notes}/0")
                try:
                    everything = java.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
                    return str(stream.latestOffset(stream.initialOffset(), everything).json())
                finally:
                    stream.stop()
            except Py4JError as error:
                raise UnavailableError(
                    f"source {uid!r} could not be asked where it ends now: {str(error).splitlines()[0]}",
                    source=uid,
                ) from error


def check_log_positions(
    sources: Sequence[Source], changes: RestoreOptions, savepoint: GivenSavepoint | None
) -> None:
    """Refuse a start whose `positions=` or savepoint names positions that a log does not have."""
    stored = {} if savepoint is None else savepoint.manifest.barrier.positions
    given = {changes.rename.get(uid, uid): one for uid, one in stored.items()} | dict(changes.positions)
    for source in sources:
        if given.get(source.uid) not in (None, START, LATEST):
            check_position(source, given[source.uid])


def check_position(source: Source, position: Any) -> None:
    """Check the position of one source. If it has several streams, the position is a list."""
    found = leaves(source.frame)
    several = position if len(found) > 1 else [position]
    if not isinstance(several, list) or len(several) != len(found):
        return  # refused elsewhere, with a better message
    for leaf, options, one in zip(found, leaf_options(source.frame), several, strict=True):
        if leaf.kind == LOG and one is not None:
            _check(source.uid, PartitionedLog(options["path"]), one)


def _check(uid: str, log: PartitionedLog, position: Any) -> None:
    ends = {str(partition): end for partition, end in log.end_offsets().items()}
    if not isinstance(position, Mapping) or set(position) != set(ends):
        raise _refused(uid, log, position, f"has {counted(len(ends), 'partition')}", ends)
    for partition, end in ends.items():
        offset = position[partition]
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= end:
            raise _refused(uid, log, position, f"has {counted(end, 'row')} in partition {partition}", ends)


def _refused(uid: str, log: PartitionedLog, position: Any, has: str, ends: Mapping[str, int]) -> ConfigError:
    return ConfigError(
        f"source {uid!r} is to go on at {position}, and its log {log.path} {has}; nothing was written or changed. Give the offset of the "
        f"next row for every partition, at most where the log ends: {dict(ends)}",
        source=uid,
        position=position,
        ends=dict(ends),
    )


@dataclass(frozen=True)
class SourceEnds:
    """Where the sources ended at one moment; sources that cannot report it are `unknown`."""

    ends: Mapping[str, object]
    unknown: frozenset[str]

    @classmethod
    def of(cls, session: SparkSession, sources: Sequence[Source]) -> SourceEnds:
        """Ask the sources. Raises `UnavailableError` if one does not respond."""
        latest = LatestPositions(session, sources)
        ends: dict[str, object] = {}
        unknown: set[str] = set()
        for source in sources:
            try:
                found = [json.loads(end) for end in latest(source.uid)]
            except ConfigError:  # a kind of source that cannot report its end
                unknown.add(source.uid)
            else:
                ends[source.uid] = found[0] if len(found) == 1 else found
        return cls(ends, frozenset(unknown))

    def is_in(self, committed: Completed | None, silent_since: Callable[[], bool]) -> bool:
        """Whether a committed checkpoint contains everything. `silent_since`: decides about unknown sources."""
        positions = {} if committed is None else committed.barrier.positions
        reached = all(_is_reached(positions.get(uid), end) for uid, end in self.ends.items())
        return reached and (not self.unknown or silent_since())


class PositionReader(Protocol):
    """The questions to a running query."""

    def rests(self) -> bool:
        """Whether it has looked at its sources, found nothing, and is not looking now."""
        ...

    def has_nothing_left(self) -> bool:
        """Whether it rests, and everything that it had found is committed."""
        ...


@dataclass
class SilentSince:
    """Whether Spark has looked at all sources and found nothing, since this object was made.

    A look may take long, and the current one may have begun before. So the query must be seen resting, and resting again after it had the
    time to begin another look.
    """

    run: Callable[[], PositionReader | None]
    look_s: float
    """The time within which a resting query begins another look."""
    clock: Clock = SYSTEM_CLOCK
    _rested_s: float | None = None

    def __call__(self) -> bool:
        """Whether it is so by now; to be called at short intervals."""
        run, now_s = self.run(), self.clock.monotonic()
        if run is None:
            return False
        if self._rested_s is None:
            self._rested_s = now_s if run.rests() else None
            return False
        return now_s > self._rested_s + self.look_s and run.has_nothing_left()


def _is_reached(reached: object, end: object) -> bool:
    if isinstance(end, list):
        parts = reached if isinstance(reached, list) else [None] * len(end)
        return len(parts) == len(end) and all(map(_is_reached, parts, end))
    return rows_between(reached, end) == 0
