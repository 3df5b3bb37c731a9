"""Every figure: its name, its goal, what is compared, and the measurement that finds it. Driver.

One measurement may find several figures, when building what it needs takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import aggregate
import checkpoint_cost
import exactly_once
import large_state
import latency
import process
import small_batch
from bench import Bench
from measure import Found
from report import PRINTED


@dataclass(frozen=True)
class Figure:
    """What is promised, in one line each."""

    name: str
    goal: str
    what: str


@dataclass(frozen=True)
class Measurement:
    """Finds its figures, by their names."""

    figures: tuple[Figure, ...]
    run: Callable[[Bench], dict[str, Found]]


def _one(name: str, goal: str, what: str, measure: Callable[[Bench], Found]) -> Measurement:
    return Measurement((Figure(name, goal, what),), lambda bench: {name: measure(bench)})


MEASUREMENTS = (
    _one(
        "process_vs_transform_with_state",
        ">= 50",
        "own Python per key, against PySpark's `transformWithState`: 500,000 rows a batch over 200,000 keys",
        process.uniform,
    ),
    _one(
        "process_vs_transform_with_state_zipf",
        ">= 50",
        "the same, but few keys have most of the rows",
        process.zipf,
    ),
    _one(
        "process_vs_transform_with_state_in_pandas",
        ">= 200",
        "the same as the first, against `transformWithStateInPandas`; the peer runs one batch only",
        process.pandas,
    ),
    _one(
        "aggregate_vs_spark_native",
        ">= 3",
        "`aggregate`, against `groupBy().count()` with Spark's RocksDB state store and changelog: "
        "500,000 rows a batch, 200,000 keys of state",
        aggregate.small_state,
    ),
    _one(
        "aggregate_vs_spark_native_large",
        ">= 3",
        "the same with 5,000,000 keys of state",
        aggregate.large_state,
    ),
    Measurement(
        (
            Figure(
                "state_scale",
                "<= 1.5",
                "the time of a batch of 100,000 changed keys: 10,000,000 keys of state over 100,000",
            ),
            Figure(
                "worker_memory",
                "<= 1.5",
                "the most memory of a Python worker in these batches, mapped files apart: 10,000,000 keys over 100,000",
            ),
        ),
        large_state.measure,
    ),
    Measurement(
        (
            Figure(
                "checkpoint_scale_bytes",
                "<= 1.2",
                "what a checkpoint of 10,000 changed keys adds: 5,000,000 keys of state over 50,000",
            ),
            Figure(
                "checkpoint_scale_seconds",
                "<= 1.5",
                "the same checkpoints: freezing and uploading, the slowest subtask",
            ),
        ),
        checkpoint_cost.measure,
    ),
    _one(
        "exactly_once_cost",
        "<= 1.1",
        "throughput at least once over exactly once, a checkpoint every batch, 500,000 rows over 200,000 keys",
        exactly_once.measure,
    ),
    _one(
        "small_batch_overhead",
        "<= 1.5",
        "a batch of 1,000 rows into Parquet, against the same `foreachBatch` without Penstock",
        small_batch.measure,
    ),
    _one(
        "result_latency_exactly_over_at_least_once",
        PRINTED,
        "time until a result is seen, with a checkpoint every 2 s",
        latency.measure,
    ),
    _one(
        "filesystem_vs_rocksdb",
        PRINTED,
        "the same `process` job: seconds on RocksDB over seconds on sorted files",
        process.backends,
    ),
    _one(
        "process_batch_vs_process",
        PRINTED,
        "Python for a batch of keys at a time, against a key at a time",
        process.vectorised,
    ),
)
NAMES = tuple(figure.name for measurement in MEASUREMENTS for figure in measurement.figures)
