"""State of ten million keys beside state of a hundred thousand: the time of a batch, and the memory of a worker.

Both states are built by the job itself, with as many rows a batch as are measured later. Then batches of the same number of changed keys
run over each in turn.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

import jobs
from bench import Bench
from data import Clicks
from measure import Found
from watch import MIB, CheckpointWatch, FolderWatch, WorkerMemory, repeatedly, sizes_below

from penstock.checkpoint.model import Completed

ROUNDS = 3
WARM_UP = 2


@dataclass
class State:
    """A job whose state has grown to `keys` keys."""

    keys: int
    rows: int
    clicks: Clicks
    job: jobs.PenstockJob
    files: FolderWatch
    checkpoints: CheckpointWatch
    memory: WorkerMemory
    changed_rows: int = 0
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def grow(cls, bench: Bench, root: Path, *, keys: int, rows: int) -> State:
        """Build it, `rows` new keys a batch."""
        clicks, watch = Clicks(root), CheckpointWatch()
        job = jobs.PenstockJob(clicks, root, jobs.by_aggregate, look_on=watch.look_on)
        state = cls(keys, rows, clicks, job, FolderWatch(job.state_dir), watch, WorkerMemory())
        state.run(bench, "grows", clicks.new_keys(rows, keys))
        return state

    def change(self, bench: Bench, batches: int) -> None:
        """Change `rows` of the keys in every batch, and keep the time of all but the first ones."""
        times = self.run(
            bench, "changes", self.clicks.changed_keys(self.rows, self.keys, batches=WARM_UP + batches)
        )
        self.seconds += times[WARM_UP:]

    def run(self, bench: Bench, what: str, batches: int) -> list[float]:
        """Run over what is waiting."""
        with repeatedly(self.memory.look), repeatedly(self.files.look):
            times = bench.run(f"state of {self.keys:,} keys {what}", self.job, batches=batches)
        self.changed_rows += batches * self.rows
        return times.seconds

    def watched_memory(self, bench: Bench, batches: int) -> float:
        """The peak of a worker, in MiB, in a session of its own: nothing is left from the work on another state."""
        bench.fresh_session()
        self.memory = WorkerMemory()
        self.change(bench, batches)
        return self.memory.peak_bytes / MIB


def measure(bench: Bench) -> dict[str, Found]:
    """Both figures from the same two states."""
    small_keys, large_keys, rows = bench.size((100_000, 10_000_000, 100_000), (10_000, 200_000, 10_000))
    batches = bench.size(6, 2)
    with bench.scratch() as root:
        small = State.grow(bench, root / "small", keys=small_keys, rows=rows)
        large = State.grow(bench, root / "large", keys=large_keys, rows=rows)
        grown = large.memory.peak_bytes / MIB
        for _ in range(bench.size(ROUNDS, 1)):
            small.change(bench, batches)
            large.change(bench, batches)
        times = {"small_s": statistics.median(small.seconds), "large_s": statistics.median(large.seconds)}
        facts = _facts(large)
        memory = {
            "small_mib": small.watched_memory(bench, batches),
            "large_mib": large.watched_memory(bench, batches),
        }
    scale = {
        **times,
        "slowest_large_s": max(large.seconds),
        "ratio": times["large_s"] / times["small_s"],
        "keys": large_keys,
        **facts,
    }
    worker = {
        **memory,
        "while_growing_mib": grown,
        "ratio": memory["large_mib"] / memory["small_mib"],
        "keys": large_keys,
    }
    return {"state_scale": scale, "worker_memory": worker}


def _facts(state: State) -> Found:
    """How well the files are kept in order, over the whole life of the large state."""
    newest = state.checkpoints.in_order[-1]
    row_bytes = _row_bytes(newest)
    live = state.keys * row_bytes
    on_disk = sum(sizes_below(state.job.state_dir).values())
    return {
        "most_files": state.checkpoints.most_files,
        "state_over_live_bytes": newest.state_bytes / live,
        "disk_over_live_bytes": on_disk / live,
        "write_amplification": state.files.total_bytes / (state.changed_rows * row_bytes),
    }


def _row_bytes(checkpoint: Completed) -> float:
    """What a key needs in a merged file: taken from the largest file there is."""
    refs = [ref for state in checkpoint.operators.values() for handle in state.handles for ref in handle.refs]
    largest = max(refs, key=lambda ref: ref.rows)
    return largest.size / largest.rows
