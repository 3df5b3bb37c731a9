"""What a run costs: wall seconds, and CPU seconds of the driver, its JVM and the Python workers. Driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Any

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import JStreamingQueryListener


@dataclass(frozen=True)
class Cost:
    """Seconds, since some moment or between two."""

    wall_s: float
    driver_s: float
    jvm_s: float
    workers_s: float

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of all processes."""
        return self.driver_s + self.jvm_s + self.workers_s

    def __sub__(self, before: Cost) -> Cost:
        return Cost(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))

    def __truediv__(self, batches: int) -> Cost:
        return Cost(*(value / batches for value in astuple(self)))


_seen: dict[tuple[int, float], tuple[str, float]] = {}
"""The kind and the CPU seconds of each process, as it was last seen, by its number and its begin."""


def cost_so_far() -> Cost:
    """Of this process and all below it, as they were last seen: nobody adds up what Spark's Python workers used when they have ended."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            name, times = process.name(), process.cpu_times()
            kind = "driver" if process == me else "jvm" if name == "java" else "workers"
            used_s = times.user + times.system
            if kind == "jvm":  # with the small programs that it starts and waits for
                used_s += times.children_user + times.children_system
            _seen[process.pid, process.create_time()] = kind, used_s
    seconds = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
    for kind, used_s in _seen.values():
        seconds[kind] += used_s
    return Cost(time.monotonic(), seconds["driver"], seconds["jvm"], seconds["workers"])


class _UnreadEvents(JStreamingQueryListener):
    """Does not convert an event into Python: that takes a hundred calls of the JVM, which would be part of the measurement."""

    def onQueryStarted(self, jevent: Any) -> None:  # noqa: N802 - PySpark's name
        """Nothing to do."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self.pylistener.onQueryProgress(jevent)

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryTerminated(self, jevent: Any) -> None:  # noqa: N802
        """Nothing to do."""


class SteadyCost(StreamingQueryListener):
    """What the batches of a query cost from the end of batch `after` to the end of batch `until`, both counted from 1."""

    def __init__(self, after: int, until: int) -> None:
        self._after, self._until = after, until
        self._batches = 0
        self._marks: list[Cost] = []
        jvm = SparkContext._jvm  # noqa: SLF001 - PySpark makes its own listeners of it
        assert jvm is not None
        self._jlistenerobj = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(
            _UnreadEvents(self)
        )

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - PySpark's name
        """Nothing to do."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """One more batch. Batches without data come last."""
        self._batches += 1
        if self._batches in (self._after, self._until):
            self._marks.append(cost_so_far())

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to do."""

    def of_a_batch(self) -> Cost:
        """The mean of the batches in question."""
        if len(self._marks) != 2:
            raise RuntimeError(f"{self._until} batches were expected, {self._batches} came")
        begin, end = self._marks
        return (end - begin) / (self._until - self._after)


@contextmanager
def steady_cost(spark: SparkSession, *, after: int, until: int) -> Iterator[SteadyCost]:
    """Measure the query that runs inside."""
    listener = SteadyCost(after, until)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)
