"""What every figure gets: the session, the size of the data, folders that vanish, and progress on the screen. Driver."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from measure import BatchTimes, Runs, batch_times
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import penstock as ps

Size = TypeVar("Size")

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CORES = 2
CONFIG = {
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class SkippedError(Exception):
    """A figure cannot be measured here, and that is no failure; the text says why."""


class Bench:
    """One run of the benchmarks."""

    def __init__(self, console: Console, *, quick: bool) -> None:
        self.console = console
        self.quick = quick
        self._spark: SparkSession | None = None
        self._jars: dict[str, str] = {}

    @property
    def spark(self) -> SparkSession:
        """The session; started when first asked for."""
        if self._spark is None:
            self._spark = ps.local_session("penstock-bench", cores=CORES, config={**CONFIG, **self._jars})
        return self._spark

    def fresh_session(self) -> None:
        """End the session, with its Python workers and state stores: what comes next inherits none of their memory."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    @contextmanager
    def jars(self, settings: dict[str, str]) -> Iterator[None]:
        """In this block the session has these jars: they are loaded when its JVM starts, so it gets one of its own."""
        self._end_jvm()
        self._jars = settings
        try:
            yield
        finally:
            self._jars = {}
            self._end_jvm()

    def _end_jvm(self) -> None:
        self.fresh_session()
        gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no other way to end its JVM
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # for which it waits
            gateway.proc.wait()
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001

    def size(self, full: Size, quick: Size) -> Size:
        """The size for this run."""
        return quick if self.quick else full

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        try:
            yield root
        finally:
            self.fresh_session()  # or Spark's state store, at work in the background, makes the folder again
            shutil.rmtree(root, ignore_errors=True)

    def run(self, what: str, job: Runs, *, batches: int) -> BatchTimes:
        """Run a job over `batches` batches that are waiting, and show how far it is."""
        return self.watch(what, lambda: job.run(self.spark), batches=batches)

    def watch(self, what: str, run: Callable[[], None], *, batches: int) -> BatchTimes:
        """The same for anything that runs a query of this session."""
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=self.console.is_terminal) as progress:
            task = progress.add_task(f"{what}, batches", total=batches)
            with batch_times(self.spark, batches, lambda: progress.advance(task)) as times:
                run()
        return times
