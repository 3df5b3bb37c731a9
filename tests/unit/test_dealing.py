"""Dealing out tests to processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from services.dealing import DEAREST, ONE_BY_ONE, SECONDS_A_TEST, ByCost, cost_s

ROOT = Path(__file__).parents[2]


def test_the_table_names_what_exists():
    """A module that is renamed or goes takes its line in the table with it."""
    names = {*DEAREST, *ONE_BY_ONE, *SECONDS_A_TEST}
    assert [name for name in names if not (ROOT / name).exists()] == []


class Process:
    """A test process that writes down what it is told to run."""

    shutting_down = False

    def __init__(self) -> None:
        self.told: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.told += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_dearest_module_goes_first():
    """Who asks gets the dearest of what waits: tests that stand alone one by one, a module whole."""
    cheap, module = "tests/unit/test_a.py::test_1", [f"tests/contract/test_b.py::test_{n}" for n in range(9)]
    alone = [f"tests/chaos/test_zombies.py::test_{n}" for n in range(2)]
    tests = [cheap, *module, *alone]
    option = SimpleNamespace(loadscopereorder=True)
    dealing = ByCost(SimpleNamespace(option=option, getvalue=lambda _: ["popen"]))
    process = Process()
    dealing.add_node(process)
    dealing.add_node_collection(process, tests)
    dealing.schedule()
    assert [tests[number] for number in process.told] == alone
    done = 0
    while not process.shutting_down:
        dealing.mark_test_complete(process, process.told[done])
        done += 1
    assert [tests[number] for number in process.told] == [*alone, *module, cheap]
    assert cost_s(alone) > cost_s(module) > cost_s([cheap])
