"""What Spark's query reports about itself: the rows read from each source, its backlog, and whether it found nothing to read. Driver.

Spark reports on a batch shortly after its end. A trigger that found nothing is reported too, with the number of the next batch.
Between the end of a batch and Spark's next look at the sources, the backlog is unknown: many rows may have arrived while the batch ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.ids import SparkBatch
from penstock.state.lifetimes import in_microseconds
from penstock.status.live import BatchLive
from penstock.status.observer import SourceAccount


def rows_between(reached: object, end: object) -> int | None:
    """Rows from one position to the other, 0 if the first is not before the second. None if positions are not offsets by partition.

    Both as Spark writes them: Kafka's as `{"topic": {"0": 17}}`, those of a `PartitionedLog` as `{"0": 17}`. A partition without a
    position has not been read yet.
    """
    if not isinstance(end, dict) or not isinstance(reached, dict | None):
        return None
    parts = [_between((reached or {}).get(name), one) for name, one in end.items()]
    return None if None in parts else sum(filter(None, parts))


def _between(reached: object, end: object) -> int | None:
    if isinstance(end, dict):
        return rows_between(reached, end)
    if not isinstance(end, int) or not isinstance(reached, int | None):
        return None
    return max(0, end - (reached or 0))


_RAN = "addBatch"
"""In the durations of a report: a batch was run."""
_WHOLE = "triggerExecution"
"""The duration of the whole trigger."""
LONGEST_POSITION = 200


@dataclass(frozen=True)
class ReadBatch:
    """Spark's report on one batch, by Spark's number of it."""

    read: SparkBatch
    sources: Mapping[str, SourceAccount]
    took: BatchLive
    """Without number and time, which Penstock adds."""


class SourceRowCounts:
    """Counts the rows of one query from Spark's reports, each batch once."""

    def __init__(self, after: int, numbers: Mapping[str, Sequence[int]]) -> None:
        self._newest = SparkBatch(after)
        self._numbers = numbers
        """The numbers of Spark's sources, by source of the job."""

    def knows(self, batch: int) -> bool:
        """Whether this batch is counted already."""
        return batch <= self._newest

    def read(self, query: StreamingQuery) -> list[ReadBatch]:
        """The batches on which Spark has reported since the last call."""
        newest = _account(query._jsq.lastProgress())
        if newest is None or newest["batchId"] <= self._newest:
            return []
        follows = newest["batchId"] == self._newest + 1 and _RAN in newest["durationMs"]
        found = [newest] if follows else list(_recent(query))
        return [taken for one in found if (taken := self._take(one)) is not None]

    def _take(self, account: dict[str, Any]) -> ReadBatch | None:
        if account["batchId"] <= self._newest or _RAN not in account["durationMs"]:
            return None
        self._newest = SparkBatch(account["batchId"])
        return ReadBatch(self._newest, by_source(account["sources"], self._numbers), took(account))


def took(account: Mapping[str, Any]) -> BatchLive:
    """Duration and rates of a batch. Spark leaves out rates that are not numbers, such as that of the first batch."""
    phases_ms = {name: float(ms) for name, ms in account["durationMs"].items()}
    return BatchLive(
        batch=-1,
        at=0.0,
        seconds=phases_ms.pop(_WHOLE, 0.0) / 1000,
        input_per_s=float(account.get("inputRowsPerSecond", 0.0)),
        processed_per_s=float(account.get("processedRowsPerSecond", 0.0)),
        phases_ms=phases_ms,
    )


def by_source(
    accounts: Sequence[dict[str, Any]], numbers: Mapping[str, Sequence[int]]
) -> dict[str, SourceAccount]:
    """Combine the reports on Spark's sources by source of the job."""
    found: dict[str, SourceAccount] = {}
    for uid, own in numbers.items():
        parts = [accounts[number] for number in own if number < len(accounts)]
        left = [rows_between(part.get("endOffset"), part.get("latestOffset")) for part in parts]
        found[uid] = SourceAccount(
            sum(int(part["numInputRows"]) for part in parts),
            None if None in left or not left else sum(filter(None, left)),
            ", ".join(json.dumps(part.get("endOffset")) for part in parts)[:LONGEST_POSITION],
        )
    return found


def _account(progress: Any) -> dict[str, Any] | None:
    return None if progress is None else json.loads(progress.json())


def _recent(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    for progress in query._jsq.recentProgress():
        if (account := _account(progress)) is not None:
            yield account


WAITING = "Waiting"
"""The first word of a query's status message when it has found nothing, or waits for its trigger."""


def waits(status: Mapping[str, Any]) -> bool:
    """Whether a query with this status is doing nothing."""
    return str(status["message"]).startswith(WAITING) and not status["isTriggerActive"]


class IdleCheck:
    """Tells when a query last looked at its sources and found nothing."""

    def __init__(self, trigger_s: float) -> None:
        self._pace_us = in_microseconds(trigger_s)
        self._since_us: int | None = None
        self._looked_us: int | None = None

    def broken(self) -> None:
        """A batch with rows begins: earlier looks say nothing about later rows."""
        self._since_us = self._looked_us = None

    def looked_us(self, query: StreamingQuery | None, now_us: int) -> int | None:
        """The time of the last look that found nothing; None if there was none since the last batch.

        A waiting query has looked, and its status says what it found. A query that is about to look, or to record what it found, reports
        no data even if there is some: its status counts only once it waits again.
        """
        if query is None:
            return None
        status = query.status
        if status["isDataAvailable"]:
            self.broken()
        elif waits(status):
            self._since_us = now_us if self._since_us is None else self._since_us
            self._looked_us = max(self._since_us, now_us - self._pace_us)
        return self._looked_us


_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class EmptyBatches:
    """An empty DataFrame with the columns of the merged sources, in a session like the one that Spark makes for the batches of a query."""

    def __init__(self, session: SparkSession, columns: StructType) -> None:
        self._session = session
        self._columns = columns

    @cached_property
    def frame(self) -> DataFrame:
        """The empty DataFrame, the same for all ticks."""
        own = SparkSession(self._session.sparkContext, self._session._jsparkSession.cloneSession())
        return own.createDataFrame([], self._columns)


@contextmanager
def in_group(context: SparkContext, group: str, what: str) -> Iterator[None]:
    """Spark jobs that this thread starts inside can be cancelled by the name of the group."""
    before = {name: context.getLocalProperty(name) for name in _GROUP}
    context.setJobGroup(group, what, interruptOnCancel=True)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]
