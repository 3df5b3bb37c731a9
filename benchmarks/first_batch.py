"""How long a new job takes from `start` to its first committed row, beside the same `foreachBatch` without Penstock.

Each start is in a session of its own, with Python workers that have not run before. The JVM is warm, for both in the same way.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import jobs
import small_batch
from bench import Bench
from data import Clicks
from measure import Found
from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
WARM_UP = 1
LOOK_EVERY_S = 0.002
PATIENCE_S = 120.0


class FirstFile:
    """Looks for the first Parquet file in a folder, from a thread of its own, and notes how long it took to come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = time.monotonic()
        self._given_up = Event()
        self.seconds: float | None = None
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._given_up.wait(LOOK_EVERY_S):
            if any(self._folder.glob("*.parquet")):
                self.seconds = time.monotonic() - self._began
                return

    def found(self) -> float:
        """When it came; called when the job has ended."""
        self._thread.join(PATIENCE_S)
        self._given_up.set()
        if self.seconds is None:
            raise RuntimeError(f"no file came within {PATIENCE_S:.0f} s")
        return self.seconds


def measure(bench: Bench) -> Found:
    """Median seconds; the sides take turns, the first of each is left out."""
    sides: dict[str, Callable[[SparkSession, Clicks, Path], None]] = {
        "foreach_batch": _plain,
        "penstock": _penstock,
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(WARM_UP + bench.size(ROUNDS, 1)):
        for side, run in sides.items():
            with bench.scratch() as root:
                clicks = Clicks(root)
                clicks.uniform(small_batch.ROWS, small_batch.KEYS)
                first = _first_row_s(bench.spark, clicks, root, run)
            bench.console.print(f"  {side}, start {turn + 1}: {first:.2f} s")
            seconds[side].append(first)
    plain, ours = (statistics.median(times[WARM_UP:]) for times in seconds.values())
    return {"foreach_batch_s": plain, "penstock_s": ours, "ratio": ours / plain}


def _first_row_s(
    spark: SparkSession, clicks: Clicks, root: Path, run: Callable[[SparkSession, Clicks, Path], None]
) -> float:
    first = FirstFile(root / "out")
    run(spark, clicks, root)
    return first.found()


def _plain(spark: SparkSession, clicks: Clicks, root: Path) -> None:
    def to_parquet(frame: DataFrame, _: int) -> None:
        small_batch.counted(frame).write.mode("append").parquet(str(root / "out"))

    jobs.run_query(clicks.read(spark).writeStream.foreachBatch(to_parquet), root / "plain")


def _penstock(spark: SparkSession, clicks: Clicks, root: Path) -> None:
    jobs.PenstockJob(clicks, root, jobs.by_aggregate).run(spark)
