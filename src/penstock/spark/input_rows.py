"""How many rows Spark has read from each source and what lies behind them, by its own account of each batch. Driver.

Spark accounts for a batch a moment after it is done. Of a trigger that found nothing there is an account too, with the number that the
next batch is going to have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock.status.live import BatchLive
from penstock.status.observer import SourceAccount


def rows_between(reached: object, end: object) -> int | None:
    """Rows from one position to the other, 0 when the first is not before the second; None where positions are no offsets by partition.

    Both as Spark writes them: of Kafka `{"topic": {"0": 17}}`, of a `PartitionedLog` `{"0": 17}`. A partition without a position has
    been read from nowhere yet.
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
"""In the durations of an account: a batch was run."""
_WHOLE = "triggerExecution"
"""All of them together."""
LONGEST_POSITION = 200


@dataclass(frozen=True)
class ReadBatch:
    """What Spark says of one batch, by Spark's number of it."""

    read: int
    sources: Mapping[str, SourceAccount]
    took: BatchLive
    """Without its number and time, which Penstock gives it."""


class SourceRowCounts:
    """Of one query. Asked again and again; tells of each batch once."""

    def __init__(self, after: int, numbers: Mapping[str, Sequence[int]]) -> None:
        self._newest = after
        self._numbers = numbers
        """For each source of the job the numbers of Spark's sources in it."""

    def knows(self, batch: int) -> bool:
        """Whether this batch is counted."""
        return batch <= self._newest

    def read(self, query: StreamingQuery) -> list[ReadBatch]:
        """All batches that Spark has accounted for since the last call."""
        newest = _account(query._jsq.lastProgress())
        if newest is None or newest["batchId"] <= self._newest:
            return []
        follows = newest["batchId"] == self._newest + 1 and _RAN in newest["durationMs"]
        found = [newest] if follows else list(_recent(query))
        return [taken for one in found if (taken := self._take(one)) is not None]

    def _take(self, account: dict[str, Any]) -> ReadBatch | None:
        if account["batchId"] <= self._newest or _RAN not in account["durationMs"]:
            return None
        self._newest = account["batchId"]
        return ReadBatch(self._newest, by_source(account["sources"], self._numbers), took(account))


def took(account: Mapping[str, Any]) -> BatchLive:
    """How long a batch took and how fast it was. Of rates that are no numbers, as that of a first batch, Spark says nothing."""
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
    """Spark's own sources, put together to those of the job."""
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
