"""A job that begins with a past of millions of rows: computed by a batch and written as a savepoint, beside streaming all of it. Driver.

Both then read the same new rows, and must say the same of every key that these have.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from bench import CORES, Bench
from measure import Found
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

ROWS_KEYS_NEW = (5_000_000, 1_000_000, 100_000)
QUICK = (20_000, 4_000, 1_000)
ROWS_A_BATCH = 500_000


def measure(bench: Bench) -> Found:
    """Seconds until the job has read all, from nothing."""
    rows, keys, new = bench.size(ROWS_KEYS_NEW, QUICK)
    with bench.scratch() as root:
        spark = bench.spark
        log = ps.sources.PartitionedLog(root / "log", "user long, amount long", CORES)
        past = _filled(root, log, rows, keys)
        ends = log.end_offsets()
        _append(log, _rows(rows, new, keys))
        written_s = _seconds(lambda: _write(spark, root, log, past, ends))
        started_s = _seconds(
            lambda: _job(spark, root, "boot", log).run(available_now=True, savepoint=root / "boot")
        )
        streamed_s = _seconds(lambda: _job(spark, root, "all", log).run(available_now=True))
        found, wanted = (_results(root / name) for name in ("from-boot", "from-all"))
        if not found.equals(wanted.filter(pc.is_in(wanted["user"], found["user"]))):
            raise RuntimeError(
                "the job that began with the savepoint says something else than the one that read everything"
            )
    return {
        "ratio": streamed_s / (written_s + started_s),
        "written_s": written_s,
        "started_s": started_s,
        "streamed_s": streamed_s,
        "rows": rows,
        "keys": keys,
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _rows(first: int, rows: int, keys: int) -> pa.Table:
    numbers = np.arange(first, first + rows, dtype=np.int64)
    return pa.table({"user": numbers * 7919 % keys, "amount": numbers % 1000})


def _append(log: ps.sources.PartitionedLog, rows: pa.Table) -> None:
    for partition in range(CORES):
        mine = np.arange(partition, rows.num_rows, CORES)
        log.append(partition, rows.take(pa.array(mine)))


def _filled(root: Path, log: ps.sources.PartitionedLog, rows: int, keys: int) -> Path:
    """The past as files, as a batch has it, and in the log."""
    (root / "past").mkdir()
    for number, first in enumerate(range(0, rows, ROWS_A_BATCH)):
        part = _rows(first, min(ROWS_A_BATCH, rows - first), keys)
        pq.write_table(part, root / "past" / f"{number}.parquet")
        _append(log, part)
    return root / "past"


def _write(
    spark: SparkSession, root: Path, log: ps.sources.PartitionedLog, past: Path, ends: dict[int, int]
) -> None:
    history = spark.read.parquet(str(past))
    job = _job(spark, root, "boot", log)
    ps.write_savepoint(root / "boot", job, history={"spent": history}, positions={"orders": ends})


def _job(spark: SparkSession, root: Path, name: str, log: ps.sources.PartitionedLog) -> ps.Job:
    job = ps.Job("spent", storage=root / f"store-{name}", local_dir=root / f"local-{name}", parallelism=CORES)
    orders = job.read(log.read(spark, rows_per_batch=ROWS_A_BATCH), uid="orders")
    spent = orders.key_by("user").aggregate(
        n=F.count("*"), total=F.sum("amount"), mean=F.avg("amount"), uid="spent"
    )
    spent.write_to(ps.sinks.Files(root / f"from-{name}"), uid="out")
    return job


def _results(folder: Path) -> pa.Table:
    """What was said last of each key: counts only grow."""
    every = (
        ds.dataset(folder, format="parquet").to_table().sort_by([("user", "ascending"), ("n", "ascending")])
    )
    last = np.append(np.flatnonzero(np.diff(every["user"].to_numpy())), every.num_rows - 1)
    return every.take(pa.array(last))
