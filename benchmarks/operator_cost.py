"""What each further operator of a job costs: chains of one, two, three and five counts over the same batches. Driver.

The first operator makes 1,000 results of 50,000 rows; each further one counts the results of the one before it, by the same key.
A further operator has little to count, so its cost is that of its shuffle, its tasks and its state.
"""

from __future__ import annotations

from functools import partial

import jobs
from bench import Bench
from data import Clicks
from measure import Found, median_of

import penstock as ps

CHAINS = (1, 2, 3, 5)
ROWS, KEYS = 50_000, 1_000
WARM_UP = 5


def measure(bench: Bench) -> Found:
    """Median seconds of a batch by the number of operators; the ratio is what one of the further four adds, over a batch with one."""
    rounds = bench.size(3, 1)
    seconds: dict[int, list[float]] = {operators: [] for operators in CHAINS}
    with bench.scratch() as root:
        clicks = Clicks(root)
        batches = clicks.uniform(ROWS, KEYS, batches=bench.size(20, 8))
        for number in range(1 + rounds):  # the first one warms up
            for operators in CHAINS:
                job = jobs.PenstockJob(clicks, root / f"{operators}-{number}", partial(chain, operators))
                times = bench.run(f"{operators} operators", job, batches=batches)
                if number > 0:
                    seconds[operators] += times.seconds[WARM_UP:]
    medians = {operators: median_of(found, warm_up=0) for operators, found in seconds.items()}
    names = dict(zip(CHAINS, ("one", "two", "three", "five"), strict=True))
    added = (medians[5] - medians[1]) / 4
    return {
        **{f"{names[operators]}_s": median for operators, median in medians.items()},
        "added_by_each_s": added,
        "ratio": added / medians[1],
    }


def chain(operators: int, clicks: ps.types.Stream) -> ps.types.Stream:
    """Counts of counts."""
    for number in range(operators):
        clicks = clicks.key_by("user").process(
            jobs.PenstockCount(), schema=jobs.RESULT, uid=f"count-{number}"
        )
    return clicks
