"""The price of exactly once: how long after a record was written its result is seen, in both modes."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pyarrow as pa
from bench import Bench
from measure import Found

import penstock as ps

INTERVAL = "2s"


class Echo(ps.KeyedProcess):
    """Hands every key on."""

    def process(self, key, rows, ctx):
        yield (key,)


def measure(bench: Bench) -> Found:
    """Median seconds from append to visible file, with a checkpoint every two seconds."""
    result = {}
    for mode in (ps.AT_LEAST_ONCE, ps.EXACTLY_ONCE):
        with bench.scratch() as root:
            result[f"{mode.name.lower()}_s"] = _median(bench, root, mode, records=bench.size(8, 4))
    return {**result, "ratio": result["exactly_once_s"] / result["at_least_once_s"]}


def _median(bench: Bench, root: Path, mode: ps.Mode, *, records: int) -> float:
    log = ps.sources.PartitionedLog(root / "log", "id long", 1)
    job = ps.Job(
        "bench",
        storage=root / "store",
        local_dir=root / "local",
        checkpoint=ps.Checkpointing(interval=INTERVAL, mode=mode),
    )
    job.read(log.read(bench.spark), uid="records").key_by("id").process(
        Echo(), schema="id long", uid="echo"
    ).write_to(ps.sinks.Files(root / "out"), uid="out")
    handle = job.start()
    seconds = []
    for number in range(records):
        started = time.monotonic()
        log.append(0, pa.table({"id": [number]}))
        while len(list((root / "out").glob("*.parquet"))) <= number:
            handle.wait(0.01)
        seconds.append(time.monotonic() - started)
    handle.stop()
    return statistics.median(seconds[1:])
