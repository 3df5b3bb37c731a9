"""Which measurement finds which figure. One may find several, when building what it needs takes minutes. Driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import aggregate
import bootstrap
import checkpoint_cost
import exactly_once
import first_batch
import floors
import kafka_sink
import large_containers
import large_state
import latency
import operator_cost
import postgres_sink
import process
import recovery
import savepoints
import small_batch
import time_to_live
import timer_scale
import two_inputs
import ui_overhead
import windows
from bench import Bench
from goals import FIGURES, NEXMARK, Figure
from measure import Found
from nexmark import harness as nexmark


@dataclass(frozen=True)
class Measurement:
    """Finds its figures, by their names."""

    figures: tuple[Figure, ...]
    run: Callable[[Bench], dict[str, Found]]


def _one(name: str, measure: Callable[[Bench], Found]) -> Measurement:
    return Measurement((FIGURES[name],), lambda bench: {name: measure(bench)})


def _several(names: tuple[str, ...], measure: Callable[[Bench], dict[str, Found]]) -> Measurement:
    return Measurement(tuple(FIGURES[name] for name in names), measure)


MEASUREMENTS = (
    _one("process_vs_transform_with_state", process.uniform),
    _one("process_vs_transform_with_state_zipf", process.zipf),
    _one("process_vs_transform_with_state_in_pandas", process.pandas),
    _one("map_vs_transform_with_state", process.maps),
    _one("timers_vs_transform_with_state", process.timers),
    _one("join_vs_spark", two_inputs.join),
    _one("dedupe_vs_spark", two_inputs.dedupe),
    _one("aggregate_vs_spark_native", aggregate.small_state),
    _one("aggregate_vs_spark_native_large", aggregate.large_state),
    _one("window_vs_spark", windows.measure),
    _several(("state_scale", "worker_memory"), large_state.measure),
    _one("map_state_scale", large_containers.maps),
    _one("list_append_scale", large_containers.lists),
    _one("timer_scale", timer_scale.measure),
    _several(("checkpoint_scale_bytes", "checkpoint_scale_seconds"), checkpoint_cost.measure),
    _several(
        ("savepoint_seconds", "start_from_savepoint_seconds", "rescale_vs_spark", "savepoint_slowdown"),
        savepoints.measure,
    ),
    _one("exactly_once_cost", exactly_once.measure),
    _one("small_batch_overhead", small_batch.measure),
    _one("operator_cost", operator_cost.measure),
    _one("ttl_cost", time_to_live.measure),
    _one("process_over_floor", floors.process),
    _one("aggregate_over_floor", floors.aggregate),
    _one("first_batch_seconds", first_batch.measure),
    _one("recovery_seconds", recovery.measure),
    _one("postgres_vs_spark_jdbc", postgres_sink.measure),
    _one("kafka_vs_spark", kafka_sink.measure),
    _one("bootstrap", bootstrap.measure),
    _one("ui_overhead", ui_overhead.measure),
    _one("result_latency_exactly_over_at_least_once", latency.measure),
    _one("filesystem_vs_rocksdb", process.backends),
    _one("process_batch_vs_process", process.vectorised),
    *(
        _several(
            (f"nexmark_{query}_cpu_vs_spark", f"nexmark_{query}_wall_vs_spark"),
            partial(nexmark.figures, query=query),
        )
        for query in NEXMARK
    ),
    _several(("nexmark_cpu_vs_spark", "nexmark_wall_vs_spark"), nexmark.means),
)
