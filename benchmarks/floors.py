"""How far a batch is from what Spark alone takes to bring its rows to Python: the same batch, dropped there, beside it.

The floor is a `foreachBatch` over the same files. It has the plan that the job has up to Python: the same sort key, the same shuffle, the
same two tasks. It keeps no state, makes no result and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jobs
import pyarrow as pa
from bench import CORES, Bench
from data import Clicks
from measure import Found
from process import ROWS_AND_KEYS
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from turns import in_turns

from penstock.job import DEFAULT_MAX_PARALLELISM
from penstock.spark.key_columns import sort_key, subtask_of
from penstock.spark.versions import partition_by_number, repartitioned

NOTHING = "nothing int"
KEY = ("user",)


def dropped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes every row, and gives none."""
    for _ in batches:
        pass
    return iter(())


Placed = Callable[[DataFrame], DataFrame]


def rows_in_place(spark: SparkSession) -> Placed:
    """Every row where its key belongs, as `process` has it."""
    key, number = _sort_key(), partition_by_number(spark, subtask_of(CORES), CORES)
    return lambda frame: repartitioned(frame.select("*", key), CORES, number)


def counts_in_place(_: SparkSession) -> Placed:
    """One row a key, as `aggregate` has it: Spark's own shuffle puts it where it belongs."""
    key, counted = _sort_key(), F.count("*").alias("n")
    return lambda frame: frame.groupBy(*KEY).agg(counted).select("*", key)


def _sort_key() -> Column:
    return sort_key(KEY, DEFAULT_MAX_PARALLELISM)


@dataclass
class Floor:
    """A query whose batches end where the work of Penstock begins."""

    clicks: Clicks
    root: Path
    place: Callable[[SparkSession], Placed]
    """Makes the columns that are the same in every batch, once."""

    def run(self, spark: SparkSession) -> None:
        """Run over what is there."""
        placed = self.place(spark)

        def drop(frame: DataFrame, _: int) -> None:
            frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
            placed(frame).mapInArrow(dropped, NOTHING).collect()

        jobs.run_query(self.clicks.read(spark).writeStream.foreachBatch(drop), self.root / "floor")


def process(bench: Bench) -> Found:
    """The rows of `process_vs_transform_with_state`."""
    return _over_floor(bench, jobs.by_process, rows_in_place, "process")


def aggregate(bench: Bench) -> Found:
    """The same rows, of which Spark's partial aggregates reach Python."""
    return _over_floor(bench, jobs.by_aggregate, counts_in_place, "aggregate")


def _over_floor(bench: Bench, count: jobs.Count, place: Callable[[SparkSession], Placed], name: str) -> Found:
    with bench.scratch() as root:
        clicks = Clicks(root)
        medians = in_turns(
            bench,
            clicks,
            {"floor": Floor(clicks, root, place), name: jobs.PenstockJob(clicks, root, count)},
        )
    return {
        **{f"{side}_s": median for side, median in medians.items()},
        "ratio": medians[name] / medians["floor"],
        "keys": bench.size(*ROWS_AND_KEYS)[1],
    }
