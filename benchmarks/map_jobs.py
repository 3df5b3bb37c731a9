"""The jobs of the figures about maps and lists: many small ones beside PySpark's, and few very large ones.

Driver; the classes run in workers too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import penstock as ps

RESULT = "user long, amount long, n long"


class PenstockMapCount(ps.KeyedProcess):
    """How often each user had each amount."""

    counts = ps.MapState("long", "long")

    def process(self, key, rows, ctx):
        counts = self.counts
        for row in rows:
            n = counts.get(row.amount, 0) + 1
            counts[row.amount] = n
            yield key, row.amount, n


class SparkMapCount(StatefulProcessor):
    """The same for `transformWithState`, in as few calls into the JVM as it allows: one to read an entry, one to write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.counts = handle.getMapState("counts", "amount long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            before = self.counts.getValue((row.amount,))
            n = 1 if before is None else before[0] + 1
            self.counts.updateValue((row.amount,), (n,))
            yield Row(user=key[0], amount=row.amount, n=n)

    def close(self) -> None:
        """Nothing is open."""


def by_map(stream: ps.types.Stream) -> ps.types.Stream:
    """Own Python code with a map per key."""
    return stream.key_by("user").process(PenstockMapCount(), schema=RESULT, uid="count")


def spark_map(frame: DataFrame) -> DataFrame:
    """PySpark's own map per key."""
    return frame.groupBy("user").transformWithState(
        statefulProcessor=SparkMapCount(), outputStructType=RESULT, outputMode="Update", timeMode="None"
    )


class LargeMap(ps.KeyedProcess):
    """A map that one row fills with many entries, and another row touches in one place. `size` says which: 1 touches."""

    entries = ps.MapState("long", "long")

    def process(self, key, rows, ctx):
        for row in rows:
            if row.size > 1:
                self.entries.update((n, n) for n in range(row.first, row.first + row.size))
            else:
                self.entries[row.first] = self.entries.get(row.first, 0) + 1
        yield key, len(rows)


class LargeList(ps.KeyedProcess):
    """A list that one row fills with many elements, and to which another row appends one."""

    elements = ps.ListState("long")

    def process(self, key, rows, ctx):
        for row in rows:
            if row.size > 1:
                self.elements.extend(range(row.first, row.first + row.size))
            else:
                self.elements.append(row.first)
        yield key, len(rows)


def by_large_map(stream: ps.types.Stream) -> ps.types.Stream:
    """One map a user."""
    return stream.key_by("user").process(LargeMap(), schema="user long, n long", uid="count")


def by_large_list(stream: ps.types.Stream) -> ps.types.Stream:
    """One list a user."""
    return stream.key_by("user").process(LargeList(), schema="user long, n long", uid="count")
