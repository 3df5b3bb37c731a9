"""Windows by event time: a count of each key by the minute, beside Spark's own with a watermark and the RocksDB state store. Driver.

Every third batch closes a window of nearly all keys: so it is the mean of the batches that is compared, over whole windows.
"""

from __future__ import annotations

import statistics

import jobs
from bench import Bench
from data import Visits
from measure import Found
from process import ROWS_AND_KEYS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock as ps

BATCHES_A_WINDOW = 3
WARM_UP = 2 * BATCHES_A_WINDOW
DELAY = "10 seconds"


def by_window(stream: ps.types.Stream) -> ps.types.Stream:
    """With Penstock."""
    return stream.key_by("user").window(ps.windows.tumbling("1min")).aggregate(n=F.count("*"), uid="count")


def spark_window(frame: DataFrame) -> DataFrame:
    """The same with Spark's state store."""
    return frame.withWatermark("at", DELAY).groupBy("user", F.window("at", "1 minute")).count()


class AppendQuery(jobs.SparkQuery):
    """Spark without Penstock: each window once, when it is over."""

    output_mode = "append"


def measure(bench: Bench) -> Found:
    """They take turns over the same rows; the first batches of a turn are left out."""
    rows, keys = bench.size(*ROWS_AND_KEYS)
    turns, measured = bench.size((2, 2 * BATCHES_A_WINDOW), (1, BATCHES_A_WINDOW))
    spark_s: list[float] = []
    penstock_s: list[float] = []
    with bench.scratch() as root:
        visits = Visits(root, seconds_a_batch=60 // BATCHES_A_WINDOW)
        theirs = AppendQuery(visits, root, spark_window)
        time = {"event_time": "at", "out_of_order": "10s"}
        ours = jobs.PenstockJob(visits, root, by_window, time=time)
        for turn in range(turns):
            batches = visits.uniform(rows, keys, batches=WARM_UP + measured)
            what = f"turn {turn + 1} of {turns}"
            spark_s += bench.run(f"Spark, {what}", theirs, batches=batches).seconds[WARM_UP:]
            penstock_s += bench.run(f"Penstock, {what}", ours, batches=batches).seconds[WARM_UP:]
    native, window = statistics.mean(spark_s), statistics.mean(penstock_s)
    return {"spark_s": native, "penstock_s": window, "ratio": native / window, "keys": keys}
