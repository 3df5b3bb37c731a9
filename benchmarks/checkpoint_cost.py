"""What a checkpoint costs when few keys changed, over a large state and over a small one: bytes and seconds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import jobs
from bench import Bench
from data import Clicks
from measure import Found
from watch import CheckpointWatch, FolderWatch, repeatedly

from penstock.checkpoint.model import Completed

ROUNDS = 2
WARM_UP = 2
RETAINED = 200


@dataclass
class Costs:
    """A job of so many keys, and the checkpoints that were measured."""

    clicks: Clicks
    job: jobs.PenstockJob
    keys: int
    files: FolderWatch
    before: FolderWatch
    measured: list[Completed]
    batches: int = 0

    @classmethod
    def grow(cls, bench: Bench, root: Path, *, keys: int, rows: int) -> Costs:
        """Build the state."""
        clicks = Clicks(root)
        job = jobs.PenstockJob(clicks, root, jobs.by_aggregate)
        batches = clicks.new_keys(rows, keys)
        bench.run(f"state of {keys:,} keys grows", job, batches=batches)
        before = FolderWatch(job.state_dir)
        before.look()
        job.retained = RETAINED
        return cls(clicks, job, keys, FolderWatch(job.state_dir), before, [])

    def change(self, bench: Bench, changed: int, batches: int) -> None:
        """Checkpoints of a few changed keys; all are retained, so that all can be looked at."""
        watch = CheckpointWatch()
        self.job.look_on = watch.look_on
        self.clicks.changed_keys(changed, self.keys, batches=WARM_UP + batches)
        with repeatedly(self.files.look):
            bench.run(f"{self.keys:,} keys, {changed:,} change", self.job, batches=WARM_UP + batches)
        self.measured += watch.in_order[-batches:]
        self.batches += WARM_UP + batches

    def found(self) -> dict[str, float]:
        """Bytes: the mean, for every byte counts. Seconds: medians, for the machine is noisy."""
        appeared = {name: size for name, size in self.files.sizes.items() if name not in self.before.sizes}
        return {
            "bytes": statistics.mean(one.new_bytes for one in self.measured),
            "storage_bytes": sum(appeared.values()) / self.batches,
            "freeze_and_upload_s": statistics.median(map(_freeze_and_upload_s, self.measured)),
            "duration_s": statistics.median(one.duration_ms / 1000 for one in self.measured),
        }


def measure(bench: Bench) -> dict[str, Found]:
    """Two figures from the same checkpoints."""
    small_keys, large_keys, rows, changed = bench.size(
        (50_000, 5_000_000, 100_000, 10_000), (5_000, 100_000, 10_000, 1_000)
    )
    batches = bench.size(16, 4)
    with bench.scratch() as root:
        small = Costs.grow(bench, root / "small", keys=small_keys, rows=rows)
        large = Costs.grow(bench, root / "large", keys=large_keys, rows=rows)
        for _ in range(bench.size(ROUNDS, 1)):
            small.change(bench, changed, batches)
            large.change(bench, changed, batches)
        costs = {"small": small.found(), "large": large.found()}
    return {
        "checkpoint_scale_bytes": _compared(costs, "bytes", "storage_bytes"),
        "checkpoint_scale_seconds": _compared(costs, "freeze_and_upload_s", "duration_s"),
    }


def _compared(costs: dict[str, dict[str, float]], main: str, beside: str) -> Found:
    found = {f"{size}_{what}": values[what] for size, values in costs.items() for what in (main, beside)}
    ratios = {what: costs["large"][what] / costs["small"][what] for what in (main, beside)}
    return {**found, "ratio": ratios[main], f"ratio_{beside.removesuffix('_s')}": ratios[beside]}


def _freeze_and_upload_s(checkpoint: Completed) -> float:
    """The synchronous and the asynchronous part of the slowest subtask."""
    return max(report.sync_ms + report.async_ms for report in checkpoint.subtasks) / 1000
