"""Dealing out tests to processes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from services import dealing
from services.dealing import GUESSES, ONE_BY_ONE, ROOT, TOGETHER, ByCost, cost_s, measured_s, write_seconds


def test_the_tables_name_what_exists():
    """A module that is renamed or goes takes its lines with it."""
    names = {*GUESSES, *ONE_BY_ONE, *TOGETHER, *(scope.partition("::")[0] for scope in measured_s())}
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_what_was_measured_replaces_what_was_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Modules that did not run keep their seconds; those that are gone lose them."""
    here = "tests/unit/test_dealing.py"
    monkeypatch.setattr(dealing, "spent", Counter({here: 1.26}))
    path = tmp_path / "seconds.json"
    write_seconds(path, {here: 9.0, "tests/conftest.py": 2.0, "tests/unit/test_gone.py": 3.0})
    assert json.loads(path.read_text()) == {here: 1.3, "tests/conftest.py": 2.0}
    tests = [f"{here}::test_one", f"{here}::test_two"]
    assert cost_s(tests, {here: 1.3}) == 1.3
    assert cost_s(tests, {}) == 2 * GUESSES[""]


class Process:
    """A test process that writes down what it is told to run."""

    shutting_down = False

    def __init__(self) -> None:
        self.told: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.told += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_dearest_module_goes_first(monkeypatch: pytest.MonkeyPatch):
    """Who asks gets the dearest of what waits, measured or guessed: what shares a server, a module, or a test that stands alone."""
    monkeypatch.setattr(
        dealing, "measured_s", lambda: {"tests/unit/test_a.py": 100.0, next(iter(TOGETHER)): 200.0}
    )
    dear, module = "tests/unit/test_a.py::test_1", [f"tests/contract/test_b.py::test_{n}" for n in range(9)]
    alone = [f"tests/chaos/test_driver_kills.py::test_{n}" for n in range(2)]
    cheap = "tests/unit/test_c.py::test_1"
    first = next(iter(TOGETHER.values()))
    served = [f"{module}::test_1" for module, group in TOGETHER.items() if group == first]
    tests = [served[0], cheap, *served[1:], *module, *alone, dear]
    option = SimpleNamespace(loadscopereorder=True)
    by_cost = ByCost(SimpleNamespace(option=option, getvalue=lambda _: ["popen"]))
    process = Process()
    by_cost.add_node(process)
    by_cost.add_node_collection(process, tests)
    by_cost.schedule()
    done = 0
    while not process.shutting_down:
        by_cost.mark_test_complete(process, process.told[done])
        done += 1
    assert [tests[number] for number in process.told] == [*served, dear, *alone, *module, cheap]
