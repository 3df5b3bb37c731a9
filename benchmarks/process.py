"""Own Python code per key: `KeyedProcess` beside PySpark's `transformWithState` and its pandas form, the same count on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jobs
import map_jobs
import timer_jobs
from bench import Bench, SkippedError
from data import Clicks
from measure import Found, median_of
from pyspark.sql import DataFrame

import penstock as ps
from penstock.state.backends import backend_named

ROWS_AND_KEYS = ((500_000, 200_000), (20_000, 8_000))
"""Of a batch; the second pair in a quick run."""
WARM_UP_ROWS = 2_000
BATCHES = 8
WARM_UP = 3
"""Spark's compiler needs a few batches; the peer is hardly touched by that, its time goes into Python and sockets."""


def uniform(bench: Bench) -> Found:
    """Every user as likely as the other."""
    return _beside(bench, Clicks.uniform, jobs.spark_python, "transform_with_state", peer_batches=3)


def zipf(bench: Bench) -> Found:
    """Few users with most of the rows."""
    return _beside(bench, Clicks.zipf, jobs.spark_python, "transform_with_state", peer_batches=3)


def pandas(bench: Bench) -> Found:
    """One batch only of the peer: it takes minutes."""
    return _beside(bench, Clicks.uniform, jobs.spark_pandas, "transform_with_state_in_pandas", peer_batches=1)


def maps(bench: Bench) -> Found:
    """A map per key, of which every row reads and writes an entry. One batch only of the peer: it calls the JVM twice a row."""
    return _beside(
        bench,
        Clicks.uniform,
        map_jobs.spark_map,
        "transform_with_state",
        peer_batches=1,
        ours=map_jobs.by_map,
    )


def timers(bench: Bench) -> Found:
    """A timer for every key with rows; those of the batch before fire. Of the peer one batch, after another whose timers fire in it."""
    return _beside(
        bench,
        Clicks.uniform,
        timer_jobs.spark_timer,
        "transform_with_state",
        peer_batches=2,
        ours=timer_jobs.by_timer,
        query=timer_jobs.EndlessQuery,
    )


def _beside(
    bench: Bench,
    add: Callable[..., int],
    peer: Callable[[DataFrame], DataFrame],
    name: str,
    *,
    peer_batches: int,
    ours: jobs.Count = jobs.by_process,
    query: type[jobs.SparkQuery] = jobs.SparkQuery,
) -> Found:
    """A batch of few rows warms both up; then the first whole batches are left out too: one of the peer's, `WARM_UP` of ours."""
    rows, keys = bench.size(*ROWS_AND_KEYS)
    with bench.scratch() as root:
        clicks = Clicks(root)
        theirs = query(clicks, root, peer)
        job = jobs.PenstockJob(clicks, root, ours)
        add(clicks, WARM_UP_ROWS, keys)
        bench.run("Penstock warms up", job, batches=1)
        bench.run("Spark warms up", theirs, batches=1)
        add(clicks, rows, keys, batches=peer_batches)
        spark = bench.run(name, theirs, batches=peer_batches).seconds
        add(clicks, rows, keys, batches=BATCHES - peer_batches)
        penstock = bench.run("process", job, batches=BATCHES).seconds
        distinct = clicks.distinct()
    seconds = median_of(spark, warm_up=1 if peer_batches > 1 else 0)
    process_s = median_of(penstock, warm_up=WARM_UP)
    return {
        f"{name}_s": seconds,
        "process_s": process_s,
        "ratio": seconds / process_s,
        "peer_batches": peer_batches,
        "keys": distinct,
    }


def backends(bench: Bench) -> Found:
    """The same job of Penstock with its state in sorted files and in RocksDB."""
    try:
        backend_named("rocksdb")
    except ps.ConfigError as error:
        raise SkippedError(str(error)) from error
    rows, keys = bench.size(*ROWS_AND_KEYS)
    with bench.scratch() as root:
        clicks = Clicks(root)
        clicks.uniform(rows, keys, batches=4)
        found = {
            name: _seconds(bench, clicks, root, jobs.by_process, backend=name)
            for name in ("filesystem", "rocksdb")
        }
    return {
        **{f"{name}_s": seconds for name, seconds in found.items()},
        "ratio": found["rocksdb"] / found["filesystem"],
    }


def _seconds(
    bench: Bench, clicks: Clicks, root: Path, count: jobs.Count, *, backend: str = "filesystem"
) -> float:
    what = f"{count.__name__} {backend}"
    job = jobs.PenstockJob(clicks, root / what, count, backend=backend)
    return median_of(bench.run(what, job, batches=4).seconds, warm_up=1)


def vectorised(bench: Bench) -> Found:
    """A batch of keys at a time in Python, beside a key at a time."""
    rows, keys = bench.size(*ROWS_AND_KEYS)
    with bench.scratch() as root:
        clicks = Clicks(root)
        clicks.uniform(rows, keys, batches=4)
        found = {
            count.__name__: _seconds(bench, clicks, root, count)
            for count in (jobs.by_process, jobs.by_process_batch)
        }
    return {
        "process_s": found["by_process"],
        "process_batch_s": found["by_process_batch"],
        "ratio": found["by_process"] / found["by_process_batch"],
    }
