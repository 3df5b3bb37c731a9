"""How many rows Spark has read from the sources, by its own account of each batch. Driver.

Spark accounts for a batch a moment after it is done. Of a trigger that found nothing there is an account too, with the number that the
next batch is going to have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

_RAN = "addBatch"
"""In the durations of an account: a batch was run."""


class InputRows:
    """Of one query. Asked again and again; counts each batch once."""

    def __init__(self, after: int) -> None:
        self._newest = after

    def knows(self, batch: int) -> bool:
        """Whether this batch is counted."""
        return batch <= self._newest

    def read(self, query: StreamingQuery) -> int:
        """The rows of all batches that Spark has accounted for since the last call."""
        newest = _account(query._jsq.lastProgress())
        if newest is None or newest["batchId"] <= self._newest:
            return 0
        follows = newest["batchId"] == self._newest + 1 and _RAN in newest["durationMs"]
        return sum(self._take(one) for one in ([newest] if follows else list(_recent(query))))

    def _take(self, account: dict[str, Any]) -> int:
        if account["batchId"] <= self._newest or _RAN not in account["durationMs"]:
            return 0
        self._newest = account["batchId"]
        return int(account["numInputRows"])


def _account(progress: Any) -> dict[str, Any] | None:
    return None if progress is None else json.loads(progress.json())


def _recent(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    for progress in query._jsq.recentProgress():
        if (account := _account(progress)) is not None:
            yield account
