"""Run every benchmark beside its peer, in one run; print the ratios and leave them in results/latest.json.

make bench                        # all of it, about ten minutes
make bench ARGS='--only small_batch_overhead --quick'
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aggregate
import latency
import process
import small_batch
from measure import ROCKSDB
from pyspark import __version__ as spark_version
from pyspark import cloudpickle
from rich.console import Console
from rich.table import Table

import penstock as ps

RESULTS = Path(__file__).parent / "results" / "latest.json"

Figure = tuple[str, str, Callable[[Any, bool], dict[str, float]]]

FIGURES: list[Figure] = [
    (
        "process_vs_transform_with_state",
        ">= 30",
        lambda spark, quick: process.measure(
            spark, rows=50_000 if quick else 500_000, keys=20_000 if quick else 200_000
        ),
    ),
    (
        "aggregate_vs_spark_native",
        ">= 2",
        lambda spark, quick: aggregate.measure(
            spark, rows=50_000 if quick else 500_000, keys=20_000 if quick else 200_000
        ),
    ),
    (
        "small_batch_overhead",
        "<= 1.5",
        lambda spark, quick: small_batch.measure(spark, batches=30 if quick else 60),
    ),
    (
        "result_latency_exactly_over_at_least_once",
        "printed",
        lambda spark, quick: latency.measure(spark, records=4 if quick else 8),
    ),
]


def main() -> None:
    """Measure, print, write."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", choices=[name for name, _, _ in FIGURES], action="append")
    arguments.add_argument(
        "--quick", action="store_true", help="a tenth of the data; the ratios are then smaller"
    )
    options = arguments.parse_args()
    for module in (process, latency, small_batch):
        cloudpickle.register_pickle_by_value(module)
    spark = ps.local_session(
        "penstock-bench",
        cores=2,
        config={
            "spark.driver.memory": "3g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        },
    )
    console = Console()
    results: dict[str, Any] = {}
    for name, goal, measure in FIGURES:
        if options.only and name not in options.only:
            continue
        console.print(f"measuring {name} ...")
        before = os.getloadavg()[0]
        found = measure(spark, options.quick)
        results[name] = {**found, "goal": goal, "load_before": before, "load_after": os.getloadavg()[0]}
    spark.stop()
    console.print(_table(results))
    if not options.only and not options.quick:
        _write(results)
        console.print(f"written to {RESULTS.name}")


def _table(results: dict[str, Any]) -> Table:
    table = Table(title="Penstock beside its peers, one run")
    for column in ("figure", "ratio", "goal", "seconds a batch", "load before/after"):
        table.add_column(column)
    for name, found in results.items():
        seconds = ", ".join(f"{key[:-2]} {value:.3f}" for key, value in found.items() if key.endswith("_s"))
        load = f"{found['load_before']:.1f} / {found['load_after']:.1f}"
        table.add_row(name, f"{found['ratio']:.2f}", found["goal"], seconds, load)
    return table


def _write(results: dict[str, Any]) -> None:
    content = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "spark": spark_version,
        "penstock": ps.__version__,
        "cores": os.cpu_count(),
        "figures": results,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
