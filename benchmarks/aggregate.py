"""SQL aggregates: `aggregate` beside Spark's native `groupBy().count()` with the RocksDB state store and its changelog."""

from __future__ import annotations

import statistics

import jobs
from bench import Bench
from data import Clicks
from measure import Found

ROUNDS = 3
WARM_UP = 4


def small_state(bench: Bench) -> Found:
    """Most keys of the state change in every batch."""
    return _beside(bench, keys=bench.size(200_000, 20_000))


def large_state(bench: Bench) -> Found:
    """The state is ten times a batch."""
    return _beside(bench, keys=bench.size(5_000_000, 100_000))


def _beside(bench: Bench, *, keys: int) -> Found:
    """Both build the state with every key once; then they take turns, and each turn's first batches are left out."""
    rows, turns = bench.size((500_000, ROUNDS), (50_000, 1))
    spark_s: list[float] = []
    penstock_s: list[float] = []
    with bench.scratch() as root:
        clicks = Clicks(root)
        theirs = jobs.SparkQuery(clicks, root, jobs.spark_native)
        ours = jobs.PenstockJob(clicks, root, jobs.by_aggregate)
        build = clicks.new_keys(rows, keys)
        bench.run(f"Spark gets {keys:,} keys", theirs, batches=build)
        bench.run(f"Penstock gets {keys:,} keys", ours, batches=build)
        for turn in range(turns):
            batches = clicks.uniform(rows, keys, batches=WARM_UP + bench.size(4, 2))
            what = f"turn {turn + 1} of {turns}"
            spark_s += bench.run(f"Spark, {what}", theirs, batches=batches).seconds[WARM_UP:]
            penstock_s += bench.run(f"Penstock, {what}", ours, batches=batches).seconds[WARM_UP:]
    native, aggregate = statistics.median(spark_s), statistics.median(penstock_s)
    return {"spark_native_s": native, "aggregate_s": aggregate, "ratio": native / aggregate, "keys": keys}
