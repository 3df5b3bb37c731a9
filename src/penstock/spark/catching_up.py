"""Whether all that lay in the sources at a moment is committed. Driver.

Sources that can be asked where they end (Kafka, `PartitionedLog`) are asked at that moment. Of others it is known when Spark, later than
that moment, has looked at all of them and found nothing, and all it had found before is committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from penstock.checkpoint.completed import Completed
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError
from penstock.graph import Source
from penstock.sources.between import rows_between
from penstock.spark.latest_positions import LatestPositions


@dataclass(frozen=True)
class Moment:
    """Where the sources ended at a moment; those that nobody can ask are `unknown`."""

    ends: Mapping[str, object]
    unknown: frozenset[str]

    @classmethod
    def of(cls, session: SparkSession, sources: Sequence[Source]) -> Moment:
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


class Looker(Protocol):
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

    run: Callable[[], Looker | None]
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
