"""How tests are dealt out to processes: the dearest first, so that all processes end together."""

from __future__ import annotations

from collections.abc import Iterable

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SECONDS_A_TEST = {
    "tests/chaos/": 30.0,
    "tests/spark/": 5.0,
    "tests/docs/test_examples.py": 3.0,
    "tests/protocol/": 3.0,
    "tests/contract/": 0.5,
}
"""What a test takes in about, by the beginning of its name; only the order that follows matters."""
SECONDS_OF_OTHERS = 0.1
ONE_BY_ONE = (
    "tests/chaos/",
    "tests/spark/test_demo.py",
    "tests/spark/test_several_sinks.py",
)
"""Where each test starts Spark or a server for itself, or takes a minute: nothing is won by keeping a module together."""
DEAREST = {
    "tests/chaos/test_driver_kills.py": 90.0,
    "tests/chaos/test_zombies.py": 90.0,
    "tests/chaos/test_executor_kills.py": 70.0,
    "tests/spark/test_demo.py": 50.0,
    "tests/spark/test_kafka.py": 60.0,
    "tests/spark/test_several_sinks.py": 20.0,
}
"""Seconds a test where the folder says little; `make test` prints the slowest, to mend this."""


class ByCost(LoadScopeScheduling):
    """A process that has nothing left gets the dearest module of those that wait."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        dearest = max(self.workqueue, key=lambda scope: cost_s(self.workqueue[scope]))
        self.workqueue.move_to_end(dearest, last=False)
        super()._assign_work_unit(node)


def cost_s(tests: Iterable[str]) -> float:
    """What these tests take together, in about."""
    known = [*DEAREST.items(), *SECONDS_A_TEST.items()]  # the first that fits says it
    return sum(
        next((seconds for start, seconds in known if test.startswith(start)), SECONDS_OF_OTHERS)
        for test in tests
    )
