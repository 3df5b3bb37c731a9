"""What exactly once costs in throughput: the same job at least once, both with a checkpoint every batch."""

from __future__ import annotations

import statistics

import jobs
from bench import Bench
from data import Clicks
from measure import Found

import penstock as ps

ROUNDS = 3
WARM_UP = 1


def measure(bench: Bench) -> Found:
    """The modes take turns; rows a second of the median batch."""
    rows, keys = bench.size((500_000, 200_000), (50_000, 20_000))
    batches, turns = bench.size((WARM_UP + 4, ROUNDS), (WARM_UP + 2, 1))
    seconds: dict[ps.Mode, list[float]] = {ps.AT_LEAST_ONCE: [], ps.EXACTLY_ONCE: []}
    with bench.scratch() as root:
        clicks = Clicks(root)
        modes = {
            mode: jobs.PenstockJob(clicks, root / mode.value, jobs.by_aggregate, mode=mode)
            for mode in seconds
        }
        for turn in range(turns):
            clicks.uniform(rows, keys, batches=batches)
            for mode, job in modes.items():
                what = f"{mode.value}, turn {turn + 1} of {turns}"
                seconds[mode] += bench.run(what, job, batches=batches).seconds[WARM_UP:]
    least, exact = (statistics.median(times) for times in seconds.values())
    return {
        "at_least_once_s": least,
        "exactly_once_s": exact,
        "ratio": exact / least,
        "at_least_once_rows_per_second": rows / least,
        "exactly_once_rows_per_second": rows / exact,
    }
