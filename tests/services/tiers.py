"""Which tests each command runs: `make check`, `make test`, `make test-all`, `make chaos`.

Each command runs what the one before it runs, and more. `LATER` is the only place where a test is moved to a later command;
CONTRIBUTING.md has the same table. Without `--tier`, pytest runs all it is asked for, as `make test-all` would.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import NamedTuple

import pytest

from services import dealing

SLOW_S = 2.0
"""A unit test module that took longer, in `seconds.json`, is not in `make check`."""
SERVERS = frozenset(
    ("spark", "postgres_server", "mariadb_server", "redis_server", "kafka", "flink", "chromium")
)
"""Fixtures that start a program; tests with one of them are not in `make check`."""


class Tier(IntEnum):
    """A command that runs tests."""

    CHECK = 0
    TEST = 1
    ALL = 2
    CHAOS = 3

    @property
    def command(self) -> str:
        return {Tier.ALL: "make test-all"}.get(self, f"make {self.name.lower()}")


MARKERS = {Tier.TEST: "slow", Tier.ALL: "full", Tier.CHAOS: "chaos_long"}
"""The marker of a test, by the first command that runs it."""


class Moved(NamedTuple):
    """Tests that only a later command runs: modules, tests, or single cases of them."""

    tier: Tier
    what: str
    names: tuple[str, ...]


LATER = (
    Moved(
        Tier.ALL,
        "Flink's own client and pages, which need 329 MB",
        ("tests/spark/test_flink_client.py", "tests/dashboard/test_flink_pages.py"),
    ),
    Moved(
        Tier.ALL, "a job on the oldest Spark, which needs half a GB", ("tests/spark/test_oldest_spark.py",)
    ),
    Moved(Tier.ALL, "the screens of mistakes, a process for each", ("tests/spark/test_screens.py",)),
    Moved(
        Tier.ALL,
        "a second browser, against a server of its own",
        ("tests/dashboard/test_server_in_a_browser.py",),
    ),
    Moved(
        Tier.ALL,
        "two of three demonstrations, the others' promises being kept by tests/spark/test_modes.py",
        ("tests/spark/test_demo.py::test_at_least_once", "tests/spark/test_demo.py::test_at_most_once"),
    ),
    Moved(
        Tier.ALL,
        "kills of jobs with timers, and a chain of savepoints with a kill",
        ("tests/chaos/test_timed_kills.py", "tests/chaos/test_savepoint_chain.py::test_two_places"),
    ),
    Moved(
        Tier.CHAOS,
        "a chain of savepoints on every backend, and drivers that are frozen at random",
        (
            "tests/chaos/test_savepoint_chain.py::test_every_backend_and_several_parallelisms",
            "tests/chaos/test_zombies.py::test_a_stopped_driver_wakes_up_fenced",
        ),
    ),
    Moved(
        Tier.CHAOS,
        "installing into an empty environment, and making the archive of Spark's classes",
        (
            "tests/docs/test_five_minutes.py::test_the_first_screen_in_an_empty_environment",
            "tests/unit/test_class_archive.py::test_java_starts_with_the_archive_that_was_made",
        ),
    ),
    Moved(
        Tier.CHAOS,
        "thousands of seeds of the simulation",
        ("tests/protocol/test_random_seeds.py::test_many_seeds",),
    ),
    Moved(
        Tier.CHAOS,
        "a checkpoint of an earlier version in the other backends",
        (
            "tests/spark/test_golden_jobs.py::test_a_checkpoint_of_an_earlier_version[memory]",
            "tests/spark/test_golden_jobs.py::test_a_checkpoint_of_an_earlier_version[rocksdb]",
        ),
    ),
)

_PERCENT = {Tier.CHECK: 10, Tier.TEST: 30, Tier.ALL: 100, Tier.CHAOS: 100}
_FEW = 5
_current = Tier.ALL
left: dict[str, int] = {}
"""How many tests this run leaves to which later command, and what they are."""


def use(name: str | None) -> None:
    """From now on `share` counts for this command."""
    global _current  # noqa: PLW0603 - test modules ask when they are imported
    _current = Tier.ALL if name is None else Tier[name.upper()]


def share(most: int) -> int:
    """How many random cases the current command tries: `most` in `make test-all`, fewer before it."""
    return max(min(most, _FEW), most * _PERCENT[_current] // 100)


def everything() -> bool:
    """Whether the current command tries every case that can be counted, such as a crash at every call."""
    return _current >= Tier.ALL


def mark(item: pytest.Item) -> None:
    """Give a test the marker of the first command that runs it."""
    moved = _moved(item.nodeid)
    if moved is not None:
        item.add_marker(MARKERS[moved.tier])
    elif item.get_closest_marker("spark") or _is_slow(item.nodeid) or _needs_a_server(item):
        item.add_marker(MARKERS[Tier.TEST])


def leave_out(config: pytest.Config, items: list[pytest.Item], name: str) -> None:
    """Deselect what only later commands run, and count it in `left`."""
    kept, dropped = [], []
    for item in items:
        first = next(
            (tier for tier, marker in MARKERS.items() if item.get_closest_marker(marker)), Tier.CHECK
        )
        if first <= Tier[name.upper()]:
            kept.append(item)
        else:
            dropped.append(item)
            moved = _moved(item.nodeid)
            what = moved.what if moved else "tests with Spark or a server, and slow unit tests"
            left[f"{first.command}: {what}"] = left.get(f"{first.command}: {what}", 0) + 1
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def _needs_a_server(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and not SERVERS.isdisjoint(item.fixturenames)


def _moved(test: str) -> Moved | None:
    return next((moved for moved in LATER if any(_within(test, name) for name in moved.names)), None)


def _within(test: str, name: str) -> bool:
    """Whether a test is the one of this name, or one of its cases, or in the module of this name."""
    return test == name or test.startswith((f"{name}::", f"{name}["))


@functools.cache
def _slow_modules() -> frozenset[str]:
    return frozenset(scope for scope, seconds in dealing.measured_s().items() if seconds > SLOW_S)


def _is_slow(test: str) -> bool:
    return test.startswith("tests/unit/") and test.partition("::")[0] in _slow_modules()
