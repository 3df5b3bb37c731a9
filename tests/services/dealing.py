"""How tests are dealt out to processes: the dearest first, so that all processes end together.

What a module took is measured, and written down in `seconds.json` by `make test ARGS=--write-seconds`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
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
)
"""Where each test starts Spark or a server for itself, or takes a minute: nothing is won by keeping a module together."""
TOGETHER = {
    "tests/contract/test_kafka_crashes.py": "Kafka",
    "tests/contract/test_kafka_login.py": "Kafka",
    "tests/contract/test_kafka_sink.py": "Kafka",
    "tests/spark/test_flink_client.py": "child driver",
    "tests/spark/test_kafka.py": "Kafka",
    "tests/spark/test_requests_to_jobs.py": "child driver",
    "tests/spark/test_several_sinks.py": "Kafka",
    "tests/spark/test_signals.py": "child driver",
}
"""Modules that go to one process, which so starts their server or their driver once."""
GUESSES = {"tests/chaos/": 30.0, "tests/spark/": 2.0, "tests/protocol/": 1.0, "tests/contract/": 0.2, "": 0.1}
"""Seconds a test by the beginning of its name, for what was not measured yet; the first that fits says it."""
spent: defaultdict[str, float] = defaultdict(float)
"""What the tests of this run have taken so far, by scope."""


def scope_of(test: str) -> str:
    """What is measured as a whole: a module, or one test of those that stand alone."""
    return test if test.startswith(ONE_BY_ONE) else test.partition("::")[0]


def dealt_with(test: str) -> str:
    """What goes to one process as a whole: a scope, or the scopes that use one server."""
    scope = scope_of(test)
    return TOGETHER.get(scope, scope)


def measured_s() -> dict[str, float]:
    """What the scopes took when they were last measured."""
    found: dict[str, float] = json.loads(SECONDS.read_text())
    return found


def cost_s(tests: Collection[str], measured: Mapping[str, float]) -> float:
    """About what these tests take, whole scopes of them."""
    return sum(
        measured.get(scope, _guess_s(scope) * number)
        for scope, number in Counter(scope_of(test) for test in tests).items()
    )


def _guess_s(scope: str) -> float:
    return next(seconds for start, seconds in GUESSES.items() if scope.startswith(start))


def write_seconds(path: Path, measured: Mapping[str, float]) -> None:
    """Replace what is known of the scopes that ran; what is gone from the tests goes."""
    known = {**measured, **{scope: round(seconds, 1) for scope, seconds in spent.items()}}
    kept = {scope: known[scope] for scope in sorted(known) if (ROOT / scope.partition("::")[0]).exists()}
    path.write_text(json.dumps(kept, indent=1) + "\n")


class ByCost(LoadScopeScheduling):
    """A process that has nothing left gets the dearest scope of those that wait."""

    def _split_scope(self, nodeid: str) -> str:
        return dealt_with(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        measured = measured_s()
        dearest = max(self.workqueue, key=lambda scope: cost_s(self.workqueue[scope], measured))
        self.workqueue.move_to_end(dearest, last=False)
        super()._assign_work_unit(node)
