"""Several ways to count the same clicks, measured in turns, so that whatever else the machine does meets all of them. Driver."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bench import Bench
from data import Clicks
from measure import Runs
from process import ROWS_AND_KEYS

TURNS = 3
WARM_UP = 2


def in_turns(bench: Bench, clicks: Clicks, sides: Mapping[str, Runs]) -> dict[str, float]:
    """The median seconds of a batch of each; the first batches of each turn are left out."""
    rows, keys = bench.size(*ROWS_AND_KEYS)
    batches, turns = bench.size((WARM_UP + 5, TURNS), (WARM_UP + 2, 1))
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(turns):
        clicks.uniform(rows, keys, batches=batches)
        for side, runs in sides.items():
            what = f"{side}, turn {turn + 1} of {turns}"
            seconds[side] += bench.run(what, runs, batches=batches).seconds[WARM_UP:]
    return {side: statistics.median(times) for side, times in seconds.items()}
