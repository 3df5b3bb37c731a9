"""What a time to live costs: the same count per key, with one and without. Driver."""

from __future__ import annotations

import jobs
from bench import Bench
from data import Clicks
from measure import Found
from process import ROWS_AND_KEYS
from turns import in_turns

import penstock as ps


class MortalCount(ps.KeyedProcess):
    """As `jobs.PenstockCount`, but a count that is not touched for a day is forgotten."""

    count = ps.ValueState("long", default=0, ttl="24h")

    def process(self, key, rows, ctx):
        self.count.value += len(rows)
        yield key, self.count.value


def by_mortal_process(stream: ps.types.Stream) -> ps.types.Stream:
    """Own Python code per key, with state that expires."""
    return stream.key_by("user").process(MortalCount(), schema=jobs.RESULT, uid="count")


def measure(bench: Bench) -> Found:
    """They take turns over the same rows."""
    with bench.scratch() as root:
        clicks = Clicks(root)
        medians = in_turns(
            bench,
            clicks,
            {
                "without": jobs.PenstockJob(clicks, root / "without", jobs.by_process),
                "with_ttl": jobs.PenstockJob(clicks, root / "with", by_mortal_process),
            },
        )
    return {
        **{f"{side}_s": median for side, median in medians.items()},
        "ratio": medians["with_ttl"] / medians["without"],
        "keys": bench.size(*ROWS_AND_KEYS)[1],
    }
