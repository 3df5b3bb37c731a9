"""Where sources end now, for who wants to go on there: of Kafka and `PartitionedLog`, which can be asked. Driver.

Positions that somebody gives to a `PartitionedLog`, held against the log itself before anything is written. Driver.

Spark hands a position to the source in the middle of the query. What is wrong there fails every run again, so it is looked at before.

Whether all that lay in the sources at a moment is committed. Driver.

Sources that can be asked where they end (Kafka, `PartitionedLog`) are asked at that moment. Of others it is known when Spark, later than
that moment, has looked at all of them and found nothing, and all it had found before is committed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock import start_options
from penstock.checkpoint.completed import Completed
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError, UnavailableError
from penstock.graph import Source
from penstock.recovery.restore_options import LATEST, START, RestoreOptions
from penstock.savepoint.restore import GivenSavepoint
from penstock.sources.partitioned_log import PartitionedLog
from penstock.spark.inspection import leaf_options, leaves, source_kind, streaming_leaves
from penstock.spark.log_source import FORMAT as LOG
from penstock.spark.query_progress import rows_between
from penstock.wording import counted

KAFKA = "kafka"


@dataclass
class LatestPositions:
    """Of the sources of a job. Each is asked once: all runs of a start mean the same moment."""

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
            f"{start_options.positions(uid, LATEST)}: a source of the kind {kind} cannot be asked where it ends; only Kafka and "
            "PartitionedLog can be asked. Give its position instead, as a checkpoint shows it",
            uid=uid,
            kind=kind,
        )

    def _end_of_stream(self, uid: str, leaf: Any) -> str:
        """Spark's own reader of the source is asked, as the query would ask it, in a folder of its own: it notes where it begins."""
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
    """Refuse a start whose `positions=`, or whose savepoint, says of a log what it does not have."""
    stored = {} if savepoint is None else savepoint.manifest.barrier.positions
    given = {changes.rename.get(uid, uid): one for uid, one in stored.items()} | dict(changes.positions)
    for source in sources:
        if given.get(source.uid) not in (None, START, LATEST):
            check_position(source, given[source.uid])


def check_position(source: Source, position: Any) -> None:
    """The same for one source; a list has a position for each of the streams in it."""
    found = leaves(source.frame)
    several = position if len(found) > 1 else [position]
    if not isinstance(several, list) or len(several) != len(found):
        return  # refused elsewhere, with what is wrong
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
    """Where the sources ended at a moment; those that nobody can ask are `unknown`."""

    ends: Mapping[str, object]
    unknown: frozenset[str]

    @classmethod
    def of(cls, session: SparkSession, sources: Sequence[Source]) -> SourceEnds:
        """Ask the sources. Raises `UnavailableError` when one does not answer."""
        latest = LatestPositions(session, sources)
        ends: dict[str, object] = {}
        unknown: set[str] = set()
        for source in sources:
            try:
                found = [json.loads(end) for end in latest(source.uid)]
            except ConfigError:  # of a kind that cannot be asked
                unknown.add(source.uid)
            else:
                ends[source.uid] = found[0] if len(found) == 1 else found
        return cls(ends, frozenset(unknown))

    def is_in(self, committed: Completed | None, silent_since: Callable[[], bool]) -> bool:
        """Whether a checkpoint, all of whose promises are kept, has it all. `silent_since`: for those that are unknown."""
        positions = {} if committed is None else committed.barrier.positions
        reached = all(_is_reached(positions.get(uid), end) for uid, end in self.ends.items())
        return reached and (not self.unknown or silent_since())


class PositionReader(Protocol):
    """A query, as far as it is asked here."""

    def rests(self) -> bool:
        """Whether it has looked at its sources, found nothing, and does not look at this moment."""
        ...

    def has_nothing_left(self) -> bool:
        """Whether it rests, and all that it had found is committed."""
        ...


@dataclass
class SilentSince:
    """Whether Spark has looked at all sources later than a moment, that in which this was made, and has found nothing.

    A look may take long, and the one that is under way may have begun before that moment. So the query must have rested first, and once
    more when it has had the time to begin another look.
    """

    run: Callable[[], PositionReader | None]
    look_s: float
    """Within so long a query that rests begins to look."""
    clock: Clock = SYSTEM_CLOCK
    _rested_s: float | None = None

    def __call__(self) -> bool:
        """Ask."""
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
