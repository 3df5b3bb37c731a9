"""What a batch of Penstock consists of: calls over py4j, compilations of generated code, building frames, the action. Driver.

It looks where PySpark calls the function of `foreachBatch`, and where py4j sends a command.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from pyspark import SparkContext
from pyspark.sql.utils import ForeachBatchFunction
from rich.table import Table

from nexmark.cost import Cost, cost_so_far

ACTIONS = ("collectToPython", "count")
"""A batch that is planned by itself, and one that fills a plan."""
RELEASE = "release"
MOST_CALLED = 12
_OTHER_COMMANDS = {"r": "(look up a name)", "a": "(array)", "f": "(field)"}


@dataclass
class Batch:
    """From the begin of a batch to the begin of the next."""

    began: Cost
    calls: Counter[str] = field(default_factory=Counter)
    """By method, of the thread that runs the batch."""
    calls_elsewhere: Counter[str] = field(default_factory=Counter)
    """By method, of other threads."""
    compiled: int = 0
    compiling_ms: float = 0.0
    batch_s: float = 0.0
    action_s: float = 0.0
    cost: Cost | None = None

    @property
    def ticks(self) -> int:
        """Batches without input that the driver ran by itself."""
        return sum(self.calls_elsewhere[action] for action in ACTIONS)


class Profile:
    """Collects the batches of all queries that run inside `collecting`."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._thread: int | None = None
        self._reading = False
        self._lock = threading.Lock()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Watch batches and calls in this block."""
        client = SparkContext._gateway._gateway_client  # type: ignore[union-attr]  # noqa: SLF001 - py4j has no hook
        send, call = client.send_command, ForeachBatchFunction.call
        client.send_command = lambda *args, **options: self._sent(send, *args, **options)
        ForeachBatchFunction.call = lambda function, *args: self._ran(call, function, *args)  # type: ignore[method-assign]
        try:
            yield
            self._end_batch()
        finally:
            client.send_command = send
            ForeachBatchFunction.call = call  # type: ignore[method-assign]

    def _ran(self, call: Callable[..., None], function: ForeachBatchFunction, *args: Any) -> None:
        self._end_batch()
        compiled, nanoseconds = self._compilations()
        batch = Batch(cost_so_far())
        self.batches.append(batch)
        self._thread = threading.get_ident()
        begin = time.monotonic()
        try:
            call(function, *args)
        finally:
            batch.batch_s = time.monotonic() - begin
            self._thread = None
            compiled_now, nanoseconds_now = self._compilations()
            batch.compiled = compiled_now - compiled
            batch.compiling_ms = (nanoseconds_now - nanoseconds) / 1e6

    def _end_batch(self) -> None:
        if self.batches:
            self.batches[-1].cost = cost_so_far() - self.batches[-1].began

    def _sent(self, send: Callable[..., Any], command: str, *args: Any, **options: Any) -> Any:
        begin = time.monotonic()
        answer = send(command, *args, **options)
        if self.batches and not self._reading:
            method = _method(command)
            with self._lock:
                self._count(self.batches[-1], method, time.monotonic() - begin)
        return answer

    def _count(self, batch: Batch, method: str, seconds: float) -> None:
        if threading.get_ident() != self._thread:
            batch.calls_elsewhere[method] += 1
            return
        batch.calls[method] += 1
        if method in ACTIONS:
            batch.action_s += seconds

    def _compilations(self) -> tuple[int, float]:
        """How many classes Janino has compiled, and the nanoseconds that took."""
        self._reading = True
        try:
            spark = SparkContext._jvm.org.apache.spark  # type: ignore[union-attr]  # noqa: SLF001 - as everybody asks the JVM
            count = spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount()
            return count, spark.sql.catalyst.expressions.codegen.CodeGenerator.compileTime()
        finally:
            self._reading = False

    def tables(self, title: str, warm_up: int) -> Iterator[Table]:
        """A line for each batch and their medians, and what a steady batch calls most often."""
        table = Table(title=title)
        for name in (
            *("batch", "py4j calls", "elsewhere", "releases", "ticks", "compiled", "compiling ms"),
            *("frames s", "action s", "batch s", "to the next s", "CPU s", "driver", "JVM", "workers"),
        ):
            table.add_column(name, justify="right")
        lines = [_numbers(batch) for batch in self.batches]
        for number, line in enumerate(lines):
            table.add_row(str(number), *map(_shown, line))
        steady = lines[warm_up:-1]  # the last batch has the end of the run, too
        if steady:
            table.add_section()
            table.add_row(
                "median", *(_shown(statistics.median(column)) for column in zip(*steady, strict=True))
            )
        yield table
        yield self._most_called(self.batches[warm_up:-1])

    def _most_called(self, batches: list[Batch]) -> Table:
        table = Table(title="calls of a steady batch over py4j, the most frequent")
        for name in ("in the batch", "times", "elsewhere", "times"):
            table.add_column(name)
        here: Counter[str] = sum((batch.calls for batch in batches), Counter())
        there: Counter[str] = sum((batch.calls_elsewhere for batch in batches), Counter())
        most = (here.most_common(MOST_CALLED), there.most_common(MOST_CALLED))
        for pairs in zip_longest(*most, fillvalue=("", 0)):
            cells = ((name, f"{times / len(batches):.1f}" if name else "") for name, times in pairs)
            table.add_row(*chain.from_iterable(cells))
        return table


def _numbers(batch: Batch) -> list[float]:
    cost = batch.cost
    assert cost is not None
    elsewhere = sum(batch.calls_elsewhere.values()) - batch.calls_elsewhere[RELEASE]
    releases = batch.calls[RELEASE] + batch.calls_elsewhere[RELEASE]
    return [
        *(sum(batch.calls.values()) - batch.calls[RELEASE], elsewhere, releases, batch.ticks),
        *(batch.compiled, batch.compiling_ms),
        *(batch.batch_s - batch.action_s, batch.action_s, batch.batch_s, cost.wall_s),
        *(cost.cpu_s, cost.driver_s, cost.jvm_s, cost.workers_s),
    ]


def _shown(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"


def _method(command: str) -> str:
    """The method that a command of py4j calls; what becomes of Java objects that Python has forgotten is all one."""
    kind, *rest = command.split("\n", 4)
    if kind == "m":
        return RELEASE
    if kind == "i":
        return f"new {rest[0].rpartition('.')[2]}"
    return rest[1] if kind == "c" else _OTHER_COMMANDS.get(kind, kind)
