"""Two streams joined within ten minutes, and duplicates dropped, beside Spark's stream-stream join and dropDuplicatesWithinWatermark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jobs
import numpy as np
import pyarrow as pa
from bench import Bench
from data import FIRST_TIME, PARTITIONS, Ids, spread, write_file
from measure import Found, median_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps

WARM_UP, JOINED, DEDUPED = 4, 6, 10
"""Batches: those that fill the state, and those that count. The peer's join takes minutes for each."""
BATCH_S = 150
"""So much event time has a batch: ten minutes are four of them."""
WITHIN_S = 600
DISORDER = "10 seconds"
TWICE = 0.2
"""So many of the rows of the figure about duplicates are some."""


class TimedRows:
    """A folder of rows with a time, in batches of two files; those of a batch are of the same stretch of time, in any order."""

    def __init__(self, folder: Path, time: str, value: str) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self._names = ("id", time, value)
        self._files = 0

    def add(self, ids: Ids, seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """One batch."""
        micros = pa.array(((FIRST_TIME + seconds) * 1e6).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
        rows = pa.table([pa.array(spread(ids)), micros, pa.array(ids % 100)], names=self._names)
        half = rows.num_rows // PARTITIONS
        for part in (rows.slice(0, half), rows.slice(half)):
            write_file(self.folder, self._files, part)
            self._files += 1

    def read(self, spark: SparkSession) -> DataFrame:
        """The stream, in the batches that were added."""
        name, time, value = self._names
        reader = spark.readStream.schema(f"{name} long, {time} timestamp, {value} long")
        return reader.option("maxFilesPerTrigger", PARTITIONS).parquet(str(self.folder))


@dataclass
class PenstockTwo:
    """A job over one or two streams."""

    root: Path
    left: TimedRows
    right: TimedRows | None = None

    def run(self, spark: SparkSession) -> None:
        """Run over what is there."""
        checkpoint = ps.Checkpointing(interval="1ms", max_concurrent=jobs.AT_ONCE)
        job = ps.Job(
            "bench", storage=self.root / "store", local_dir=self.root / "local", checkpoint=checkpoint
        )
        disorder = "10s" if self.right is not None else f"{WITHIN_S}s"
        left = job.read(
            self.left.read(spark), uid="left", event_time="at", out_of_order=disorder, idle_after=None
        )
        if self.right is None:
            result = left.dedupe(on="id", within=f"{WITHIN_S}s", uid="count")
        else:
            right = job.read(
                self.right.read(spark),
                uid="right",
                event_time="paid_at",
                out_of_order=disorder,
                idle_after=None,
            )
            result = left.join(right, on="id", within=("0s", f"{WITHIN_S}s"), uid="count")
        result.write_to(ps.sinks.Files(self.root / "out"), uid="out")
        job.run(available_now=True)


@dataclass
class SparkTwo:
    """The same with Spark alone."""

    root: Path
    left: TimedRows
    right: TimedRows | None = None

    def run(self, spark: SparkSession) -> None:
        """Run over what is there."""
        left = self.left.read(spark)
        if self.right is None:
            frame = left.withWatermark("at", f"{WITHIN_S} seconds").dropDuplicatesWithinWatermark(["id"])
        else:
            right = (
                self.right.read(spark).withColumnRenamed("id", "right_id").withWatermark("paid_at", DISORDER)
            )
            frame = left.withWatermark("at", DISORDER).join(
                right,
                F.expr(f"id = right_id and paid_at >= at and paid_at <= at + interval {WITHIN_S} seconds"),
            )
        jobs.run_query(frame.writeStream.format("noop").outputMode("append"), self.root / "spark")


def join(bench: Bench) -> Found:
    """Orders and payments: each order is paid once, some minutes later."""
    rows = bench.size(200_000, 5_000)
    with bench.scratch() as root:
        orders, payments = (
            TimedRows(root / name, time, value)
            for name, time, value in (("orders", "at", "item"), ("payments", "paid_at", "amount"))
        )
        _add_orders_and_payments(orders, payments, rows, np.random.default_rng(7))
        ours, theirs = PenstockTwo(root, orders, payments), SparkTwo(root, orders, payments)
        return _beside(bench, rows, WARM_UP + JOINED, theirs, ours)


def dedupe(bench: Bench) -> Found:
    """One row in five has come before."""
    rows = bench.size(400_000, 5_000)
    rng = np.random.default_rng(7)
    with bench.scratch() as root:
        orders = TimedRows(root / "orders", "at", "item")
        for batch in range(WARM_UP + DEDUPED):
            ids = batch * rows + np.arange(rows)
            again = rng.random(rows) < TWICE
            ids[again] = rng.integers(max(0, (batch - 2) * rows), (batch + 1) * rows, int(again.sum()))
            orders.add(ids, batch * BATCH_S + rng.random(rows) * BATCH_S)
        return _beside(bench, rows, WARM_UP + DEDUPED, SparkTwo(root, orders), PenstockTwo(root, orders))


def _beside(bench: Bench, rows: int, batches: int, theirs: SparkTwo, ours: PenstockTwo) -> Found:
    spark_s = median_of(bench.run("Spark", theirs, batches=batches).seconds, warm_up=WARM_UP)
    bench.fresh_session()
    penstock_s = median_of(bench.run("Penstock", ours, batches=batches).seconds, warm_up=WARM_UP)
    return {
        "spark_s": spark_s,
        "penstock_s": penstock_s,
        "ratio": spark_s / penstock_s,
        "rows": rows * batches,
    }


def _add_orders_and_payments(
    orders: TimedRows, payments: TimedRows, rows: int, rng: np.random.Generator
) -> None:
    batches = WARM_UP + JOINED
    ids = np.arange(rows * batches)
    ordered = (ids + rng.random(len(ids))) * (BATCH_S / rows)
    paid = ordered + rng.random(len(ids)) * 0.8 * WITHIN_S
    for batch in range(batches):
        for stream, seconds in ((orders, ordered), (payments, paid)):
            mine = np.flatnonzero((seconds >= batch * BATCH_S) & (seconds < (batch + 1) * BATCH_S))
            rng.shuffle(mine)
            stream.add(ids[mine], seconds[mine])
