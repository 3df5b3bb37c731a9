"""Where time and chance come from, and that they come from nowhere else."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import Stopwatch
from penstock.ids import Randomness, secret_bytes
from penstock.testing.virtual import VirtualClock

PACKAGE = Path(penstock.__file__).parent
SOURCES = {"time", "random", "secrets", "uuid"}
MAY_IMPORT = {"clock.py": {"time"}, "ids.py": {"random", "secrets"}}
FROM_A_HASH = {"uuid.uuid5", "uuid.NAMESPACE_URL", "uuid.UUID"}
SEEDED = {"random.Random"}
"""What the simulation draws its workloads and fates from, by a seed that is printed."""
READS_THE_TIME = {"now", "today", "utcnow", "urandom"}


def used(tree: ast.Module) -> Iterator[str]:
    """What a module uses of the sources of time and chance, such as `time.sleep`, and calls like `datetime.now()`."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module in SOURCES:
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Import(names=names):
                yield from (
                    f"{alias.name} as {alias.asname}"
                    for alias in names
                    if alias.name in SOURCES and alias.asname
                )
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in SOURCES | {"os"}:
                if (module in SOURCES and module in imported(tree)) or name == "urandom":
                    yield f"{module}.{name}"
            case ast.Call(func=ast.Attribute(attr=name)) if name in READS_THE_TIME:
                yield f"{name}()"
            case _:
                pass


def imported(tree: ast.Module) -> set[str]:
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def forbidden(path: Path, text: str) -> set[str]:
    """What a module uses and must not."""
    allowed = MAY_IMPORT.get(path.as_posix(), set())
    free = FROM_A_HASH | (SEEDED if path.parts[0] == "testing" else set())
    return {name for name in used(ast.parse(text)) if name.split(".")[0] not in allowed} - free


def test_time_and_chance_have_one_door_each() -> None:
    """Only `penstock.clock` reads the time and only `penstock.ids` draws; the simulation alone has seeded generators of its own."""
    modules = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = {path.as_posix(): names for path, text in modules.items() if (names := forbidden(path, text))}
    assert not found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time\ntime.sleep(1)", {"time.sleep"}),
        ("import time as t\nt.sleep(1)", {"time as t"}),
        ("from secrets import token_hex", {"secrets.token_hex"}),
        ("import random\nrandom.Random()", {"random.Random"}),
        ("from uuid import uuid4, uuid5", {"uuid.uuid4"}),
        ("from datetime import datetime, time\ndatetime.now()\ntime.min", {"now()"}),
        ("import os\nos.urandom(8)\nos.getpid()", {"os.urandom", "urandom()"}),
    ],
)
def test_what_goes_past_the_doors_is_seen(text: str, expected: set[str]) -> None:
    """An import under another name, of a single function, and a call without an import are all found."""
    assert forbidden(Path("spark/query.py"), text) == expected


def test_tokens() -> None:
    """Tokens have the digits asked for, differ, and are the same again from the same seed."""
    system = Randomness()
    assert len({system.token() for _ in range(100)}) == 100
    assert {len(system.token(8)) for _ in range(100)} == {8}
    first, again = (Randomness(random.Random(7)) for _ in range(2))
    assert [first.token(8), first.between(1, 2)] == [again.token(8), again.between(1, 2)]
    assert len(secret_bytes(16)) == 16


def test_a_stopwatch_goes_by_its_clock() -> None:
    """It shows what has passed on its clock, in both units."""
    clock = VirtualClock()
    watch = Stopwatch(clock)
    clock.advance(1.5)
    assert (watch.seconds, watch.ms) == (1.5, 1500.0)
