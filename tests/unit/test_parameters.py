"""An operator whose function cannot be called is refused when it is made part of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.operators.process.operator import check_parameters


def keyed(function: Callable[..., Any]) -> ps.KeyedProcess:
    operator: ps.KeyedProcess = type("Mine", (ps.KeyedProcess,), {"process": function})()
    return operator


def batch(function: Callable[..., Any]) -> ps.BatchProcess:
    operator: ps.BatchProcess = type("Mine", (ps.BatchProcess,), {"process_batch": function})()
    return operator


@pytest.mark.parametrize(
    "operator",
    [
        keyed(lambda self, key, rows: None),
        keyed(lambda self, key, rows, ctx, more: None),
        keyed(lambda self, key, rows, ctx, *, more: None),
        keyed(lambda self: None),
        batch(lambda self, keys, batch: None),
    ],
)
def test_a_function_that_cannot_be_called(operator: ps.KeyedProcess | ps.BatchProcess) -> None:
    """The error says what it has, with what it is called, what to write and where."""
    with pytest.raises(ps.ConfigError) as refused:
        check_parameters(operator, "visits")
    given = "key, rows, ctx" if isinstance(operator, ps.KeyedProcess) else "keys, batch, state"
    assert str(refused.value).startswith("operator 'visits': Mine.")
    assert f"(self, {given})" in str(refused.value)
    assert refused.value.__notes__[0].startswith(f"  at: {Path(__file__)}:")


@pytest.mark.parametrize(
    "operator",
    [
        keyed(lambda self, key, rows, ctx: None),
        keyed(lambda self, k, r, c, more=None: None),
        keyed(lambda self, *anything: None),
        batch(lambda self, keys, batch, state: None),
        batch(lambda self, *anything, **named: None),
    ],
)
def test_a_function_that_can_be_called(operator: ps.KeyedProcess | ps.BatchProcess) -> None:
    """Names are free, and more parameters with defaults are fine."""
    check_parameters(operator, "visits")


class LackingTimer(ps.KeyedProcess):
    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        """Does nothing."""

    def on_timer(self, key: Any, ctx: Any) -> None:  # type: ignore[override]
        """Lacks the timer."""


class LackingTimers(ps.BatchProcess):
    def process_batch(self, keys: Any, batch: Any, state: Any) -> None:
        """Does nothing."""

    def on_timers(self, timers: Any) -> None:  # type: ignore[override]
        """Lacks the keys and their state."""


@pytest.mark.parametrize(
    ("operator", "write"),
    [
        (LackingTimer(), r"write def on_timer\(self, key, timer, ctx\)"),
        (LackingTimers(), r"write def on_timers\(self, keys, timers, state\)"),
    ],
)
def test_so_is_what_is_called_for_timers(operator: Any, write: str) -> None:
    """It would fail only when the first timer fires, perhaps days later."""
    with pytest.raises(ps.ConfigError, match=write):
        check_parameters(operator, "visits")


def test_it_is_refused_by_process(tmp_path: Path) -> None:
    """Before anything is started, and before the operator is part of the job."""
    job = ps.Job("visits", storage=tmp_path)
    source: Any = type("Frame", (), {"isStreaming": True})()
    stream = job.read(source, uid="clicks").key_by("app")
    with pytest.raises(ps.ConfigError, match=r"cannot be called with key, rows, ctx"):
        stream.process(keyed(lambda self, key: None), schema="app string", uid="visits")
    assert job.graph.operators == []
