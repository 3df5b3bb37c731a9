"""How tests are dealt out to processes: the dearest first, so that all processes end together.

What a module took is measured, and written down in `seconds.json` by `make test ARGS=--write-seconds`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SECONDS = Path(__file__).with_name("seconds.json")
ROOT = Path(__file__).parents[2]
ONE_BY_ONE = (
    "tests/chaos/test_driver_kills.py",
    "tests/chaos/test_executor_kills.py",
    "tests/chaos/test_worker_kills.py",
    "tests/spark/test_demo.py",
    "tests/spark/test_several_sinks.py",
)
"""Where each test starts Spark or a server for itself, or takes a minute: nothing is won by keeping a module together."""
GUESSES = {"tests/chaos/": 30.0, "tests/spark/": 2.0, "tests/protocol/": 1.0, "tests/contract/": 0.2, "": 0.1}
"""Seconds a test by the beginning of its name, for what was not measured yet; the first that fits says it."""
spent: defaultdict[str, float] = defaultdict(float)
"""What the tests of this run have taken so far, by scope."""


def scope_of(test: str) -> str:
    """What goes to one process as a whole: a module, or one test of those that stand alone."""
    return test if test.startswith(ONE_BY_ONE) else test.partition("::")[0]


def measured_s() -> dict[str, float]:
    """What the scopes took when they were last measured."""
    found: dict[str, float] = json.loads(SECONDS.read_text())
    return found


def cost_s(scope: str, tests: Collection[str], measured: Mapping[str, float]) -> float:
    """What a scope takes in about."""
    guess = next(seconds for start, seconds in GUESSES.items() if scope.startswith(start))
    return measured.get(scope, guess * len(tests))


def write_seconds(path: Path, measured: Mapping[str, float]) -> None:
    """Replace what is known of the scopes that ran; what is gone from the tests goes."""
    known = {**measured, **{scope: round(seconds, 1) for scope, seconds in spent.items()}}
    kept = {scope: known[scope] for scope in sorted(known) if (ROOT / scope.partition("::")[0]).exists()}
    path.write_text(json.dumps(kept, indent=1) + "\n")


class ByCost(LoadScopeScheduling):
    """A process that has nothing left gets the dearest scope of those that wait."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        measured = measured_s()
        dearest = max(self.workqueue, key=lambda scope: cost_s(scope, self.workqueue[scope], measured))
        self.workqueue.move_to_end(dearest, last=False)
        super()._assign_work_unit(node)
