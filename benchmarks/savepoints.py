"""Savepoints of five million keys: making one, starting from one, and what a running job notices of it. Driver.

The peers are Spark's own: its reader of state stores that writes Parquet, its offline repartition, and its restart.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import jobs
from bench import Bench
from data import Clicks
from measure import Found

import penstock as ps
from penstock.ownership.claim import read_descents
from penstock.recovery.history import read_history
from penstock.savepoint.request import create_in_child_process
from penstock.spark.job_handle import JobHandle
from penstock.storage import LocalStorage

CHANGED = 10_000
"""Keys that change in the first batch behind a start."""
MORE = 3
"""Subtasks after a change; before it there are two."""
WARM_UP = 2


@dataclass
class Site:
    """The same clicks, counted by Spark and by Penstock."""

    bench: Bench
    root: Path
    clicks: Clicks
    keys: int

    def job(self, store: str = "store", *, parallelism: int = 2) -> ps.Job:
        """The counting job, kept in one of several places."""
        job = ps.Job(
            "bench",
            storage=self.root / store,
            local_dir=self.root / f"{store}-local",
            parallelism=parallelism,
            checkpoint=ps.Checkpointing(interval="1ms", max_concurrent=jobs.AT_ONCE),
        )
        clicks = job.read(self.clicks.read(self.bench.spark), uid="clicks")
        jobs.by_aggregate(clicks).write_to(ps.sinks.Files(self.root / f"{store}-out"), uid="out")
        return job

    def grow(self, rows: int) -> None:
        """Both sides count every key once."""
        batches = self.clicks.new_keys(rows, self.keys)
        spark = jobs.SparkQuery(self.clicks, self.root, jobs.spark_native)
        self.bench.run("Spark grows", spark, batches=batches)
        self.bench.fresh_session()
        ours = lambda: self.job().run(available_now=True)  # noqa: E731 - one line
        self.bench.watch("Penstock grows", lambda: _done(ours()), batches=batches)

    def saved(self, to: Path) -> float:
        """Seconds that a savepoint of the newest checkpoint takes."""
        storage = LocalStorage(self.root / "store" / "bench")
        newest = read_history(storage, read_descents(storage)).whole[-1]
        began = time.perf_counter()
        create_in_child_process(storage, newest, LocalStorage(to), token=to.name)
        return time.perf_counter() - began

    def first_batch(self, job: ps.Job, savepoint: Path | None = None) -> float:
        """Seconds from the start of a job until its first batch is done."""
        self.clicks.changed_keys(CHANGED, self.keys)
        began = time.perf_counter()
        handle = job.start(available_now=True, savepoint=savepoint)
        while handle.progress.batches == 0 and not handle.wait(0.01):
            pass
        seconds = time.perf_counter() - began
        handle.wait()
        return seconds

    def sparks_first_batch(self) -> float:
        """The same for Spark's query, with everything it has missed as one batch more or less."""
        began = time.perf_counter()
        jobs.SparkQuery(self.clicks, self.root, jobs.spark_native).run(self.bench.spark)
        return time.perf_counter() - began


def _done(_status: object) -> None:
    """`watch` wants something that returns nothing."""


def measure(bench: Bench) -> dict[str, Found]:
    """Four figures from one state."""
    keys, rows = bench.size((5_000_000, 500_000), (60_000, 20_000))
    with bench.scratch() as root:
        site = Site(bench, root, Clicks(root), keys)
        site.grow(rows)
        making = _making(site)
        starting = _starting(site)
        rescaling = _rescaling(site, starting)
        slowdown = _slowdown(site, rows)
    return {
        "savepoint_seconds": making,
        "start_from_savepoint_seconds": starting,
        "rescale_vs_spark": rescaling,
        "savepoint_slowdown": slowdown,
    }


def _making(site: Site) -> Found:
    ours = statistics.median(site.saved(site.root / f"saved {n}") for n in range(3))
    spark = site.bench.spark
    began = time.perf_counter()
    state = spark.read.format("statestore").load(str(site.root / "spark"))
    state.write.parquet(str(site.root / "exported"))
    theirs = time.perf_counter() - began
    files = list((site.root / "saved 0").rglob("*.parquet"))
    return {
        "spark_export_s": theirs,
        "savepoint_s": ours,
        "ratio": theirs / ours,
        "keys": site.keys,
        "savepoint_mib": sum(file.stat().st_size for file in files) / 2**20,
    }


def _starting(site: Site) -> Found:
    ordinary = [site.first_batch(site.job()) for _ in range(3)]
    saved = [
        site.first_batch(site.job(f"from {n}", parallelism=MORE), site.root / "saved 0") for n in range(3)
    ]
    return {
        "restart_s": statistics.median(ordinary[1:]),
        "start_from_savepoint_s": statistics.median(saved[1:]),
        "first_start_from_savepoint_s": saved[0],
        "ratio": statistics.median(saved[1:]) / statistics.median(ordinary[1:]),
        "keys": site.keys,
    }


def _rescaling(site: Site, starting: Found) -> Found:
    """Until the first batch with three subtasks: Spark's repartition and restart, and our restart."""
    ours = site.first_batch(site.job(parallelism=MORE))
    spark = site.bench.spark
    site.sparks_first_batch()  # what it has missed meanwhile
    began = time.perf_counter()
    spark._streamingCheckpointManager.repartition(str(site.root / "spark"), MORE)  # noqa: SLF001 - Spark has no other door
    repartitioned = time.perf_counter() - began
    site.clicks.changed_keys(CHANGED, site.keys)
    restarted = site.sparks_first_batch()
    return {
        "spark_repartition_s": repartitioned,
        "spark_first_batch_s": restarted,
        "rescaled_first_batch_s": ours,
        "restart_s": starting["restart_s"],
        "ratio": (repartitioned + restarted) / ours,
        "keys": site.keys,
    }


def _slowdown(site: Site, rows: int) -> Found:
    """Batches while one savepoint after the other is made, between batches without."""
    rows, batches = rows // 5, site.bench.size(12, 4)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    made: list[int] = []
    for saving in (False, True, False, True, False):
        site.clicks.changed_keys(rows, site.keys, batches=batches + WARM_UP)
        folders = (site.root / f"loaded {len(made)} {n}" for n in count())
        run = _run(site, partial(_saving, folders, made) if saving else JobHandle.wait)
        times = site.bench.watch("with savepoints" if saving else "without", run, batches=batches + WARM_UP)
        seconds[saving] += times.seconds[WARM_UP:]
    without, beside = (statistics.median(seconds[which]) for which in (False, True))
    return {
        "without_s": without,
        "with_s": beside,
        "slowest_with_s": max(seconds[True]),
        "ratio": beside / without,
        "savepoints": sum(made),
    }


def _run(site: Site, look_on: Callable[[JobHandle], object]) -> Callable[[], None]:
    def run() -> None:
        handle = site.job(parallelism=MORE).start(available_now=True)
        watcher = threading.Thread(target=look_on, args=(handle,))
        watcher.start()
        handle.wait()
        watcher.join()

    return run


def _saving(folders: Iterator[Path], made: list[int], handle: JobHandle) -> None:
    while not handle.wait(0.05):
        try:
            handle.savepoint(next(folders))
        except ps.PenstockError:
            if not handle.wait(5):
                raise
        else:
            made.append(1)
