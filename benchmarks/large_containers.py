"""Maps and lists with very many rows beside such with few: the time of a batch that touches one entry of each.

The states are built by the job itself: rows say which numbers to put into the map or list of a user, thousands of them at a time. Then
batches of one touch a user run over each state in turn.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

import jobs
import map_jobs
from bench import Bench
from data import Fills
from measure import Found
from watch import CheckpointWatch

USERS = 1_000
SMALL = 10
AT_ONCE = 2_000
"""Numbers for each user in a batch: two million rows of state, of which a worker has half in memory."""
ROUNDS = 3
WARM_UP = 3


@dataclass
class Containers:
    """A job with a map or list of `size` rows for each user."""

    size: int
    fills: Fills
    job: jobs.PenstockJob
    checkpoints: CheckpointWatch
    seconds: list[float] = field(default_factory=list)
    grown_s: float = 0.0

    @classmethod
    def grow(cls, bench: Bench, root: Path, make: jobs.Count, size: int) -> Containers:
        """Build them."""
        fills, watch = Fills(root), CheckpointWatch()
        one = cls(size, fills, jobs.PenstockJob(fills, root, make, look_on=watch.look_on), watch)
        one.grown_s = sum(one._run(bench, "grow", fills.fill(USERS, size, at_once=AT_ONCE)))
        return one

    def touch(self, bench: Bench, batches: int) -> None:
        """Touch one row of each in every batch, and keep the time of all but the first ones."""
        waiting = self.fills.touch(USERS, self.size, batches=WARM_UP + batches)
        self.seconds += self._run(bench, "are touched", waiting)[WARM_UP:]

    def _run(self, bench: Bench, what: str, batches: int) -> list[float]:
        return bench.run(f"{USERS:,} of {self.size:,} rows {what}", self.job, batches=batches).seconds


def maps(bench: Bench) -> Found:
    """Read and write one entry of each map."""
    return _scale(bench, map_jobs.by_large_map)


def lists(bench: Bench) -> Found:
    """Append to each list."""
    return _scale(bench, map_jobs.by_large_list)


def _scale(bench: Bench, make: jobs.Count) -> Found:
    large_size = bench.size(100_000, 5_000)
    with bench.scratch() as root:
        small = Containers.grow(bench, root / "small", make, SMALL)
        large = Containers.grow(bench, root / "large", make, large_size)
        for _ in range(bench.size(ROUNDS, 1)):
            small.touch(bench, bench.size(6, 2))
            large.touch(bench, bench.size(6, 2))
        newest = large.checkpoints.in_order[-1]
    medians = {"small_s": statistics.median(small.seconds), "large_s": statistics.median(large.seconds)}
    return {
        **medians,
        "slowest_large_s": max(large.seconds),
        "ratio": medians["large_s"] / medians["small_s"],
        "rows": USERS * large_size,
        "state_gib": newest.state_bytes / 2**30,
        "growing_s": large.grown_s,
        "most_files": large.checkpoints.most_files,
    }
