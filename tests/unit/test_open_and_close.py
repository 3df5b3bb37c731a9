"""`open` and `close` of own code: once in each task that calls it, around all other calls."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.operators.process.user_code import OpenedCode
from penstock.types import BatchKeys, BatchRows, BatchState, Context, Rows, TimeWindow

CALLS: list[str] = []
"""What was called. Own code is copied for every task, so that it cannot remember that itself."""
CONTEXT = Context("op", 1, 0, 1)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


class Noted:
    """Notes that it is opened and closed."""

    def open(self, ctx: Context) -> None:
        assert not hasattr(self, "client"), "something is left of an earlier task"
        self.client = f"client of {ctx.operator}"
        CALLS.append("open")

    def close(self) -> None:
        CALLS.append(f"close {self.client}")


class ByKey(Noted, ps.KeyedProcess):
    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        CALLS.append(f"process {key}")
        for row in rows:
            if row.n < 0:
                raise ValueError("negative")


class InColumns(Noted, ps.BatchProcess):
    def process_batch(self, keys: BatchKeys, batch: BatchRows, state: BatchState) -> Any:
        CALLS.append("process_batch")


class WithoutKey(Noted, ps.Process):
    def process(self, rows: Rows, ctx: Context) -> Any:
        CALLS.append("process")


class OverWindow(Noted, ps.WindowProcess):
    def process(self, key: Any, window: TimeWindow | None, rows: Rows, ctx: Context) -> Any:
        CALLS.append(f"process {key}")


ROWS = "k string, n long"
AB = [{"k": "a", "n": 1}, {"k": "b", "n": 2}]


def harness(code: Any, **options: Any) -> Any:
    return ps.testing.harness(
        code, input_schema=ROWS, schema="k string", key=() if isinstance(code, ps.Process) else "k", **options
    )


@pytest.mark.parametrize(
    ("code", "calls"),
    [(ByKey(), ["process a", "process b"]), (InColumns(), ["process_batch"]), (WithoutKey(), ["process"])],
)
def test_once_in_every_task(code: Any, calls: list[str]) -> None:
    """Each batch opens the code before its first call and closes it after its last; nothing is left for the next batch."""
    under_test = harness(code)
    for _ in range(2):
        under_test.batch(AB)
        assert [CALLS[0], *sorted(CALLS[1:-1]), CALLS[-1]] == [
            "open",
            *calls,
            "close client of operator",
        ]
        CALLS.clear()


def test_a_window_that_stays_open_opens_nothing() -> None:
    """A task that only keeps rows calls no own code. The one in which a window is full opens it once."""
    under_test = harness(OverWindow(), window=ps.windows.count(2))
    under_test.batch(AB)
    assert CALLS == []
    under_test.batch(AB)
    assert CALLS[0] == "open"
    assert sorted(CALLS[1:-1]) == ["process a", "process b"]
    assert CALLS[-1].startswith("close")


def test_closed_when_a_call_raises() -> None:
    """The error of the call is the one that is raised, whatever close() does."""
    with pytest.raises(ValueError, match="negative"):
        harness(ByKey()).batch([{"k": "a", "n": -1}])
    assert CALLS[0] == "open"
    assert CALLS[-1].startswith("close")


class Broken(ByKey):
    def open(self, ctx: Context) -> None:
        raise OSError("no server")


def test_what_open_raises_ends_the_task() -> None:
    """No call follows, and nothing is closed; bad rows that are skipped have nothing to do with it."""
    with pytest.raises(OSError, match="no server"):
        harness(Broken(), on_bad_record="skip").batch(AB)
    assert CALLS == []


class BrokenClose(ByKey):
    def close(self) -> None:
        raise RuntimeError("still busy")


def test_the_error_of_close() -> None:
    """It is raised where nothing else went wrong, and a note of the first error otherwise."""
    with pytest.raises(RuntimeError, match="still busy"), OpenedCode(BrokenClose(), CONTEXT) as opened:
        opened.open()
    with pytest.raises(ValueError, match="negative") as raised:
        harness(BrokenClose()).batch([{"k": "a", "n": -1}])
    assert "close() raised, too: RuntimeError: still busy" in raised.value.__notes__


class WrongOpen(ByKey):
    def open(self) -> None:  # type: ignore[override]
        """Takes no context."""


def test_an_open_that_cannot_be_called() -> None:
    """It is refused before anything starts."""
    with pytest.raises(ps.ConfigError, match=r"cannot be called with ctx.*def open\(self, ctx\)"):
        harness(WrongOpen())


class Prices(ps.KeyedProcess):
    open = ps.ValueState("long", default=0)  # type: ignore[assignment]

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.open.value += len(rows)  # type: ignore[attr-defined]
        yield (f"{key}{self.open.value}",)  # type: ignore[attr-defined]


def test_a_state_may_be_called_open() -> None:
    """It is no method, and is not called."""
    assert [row["k"] for row in harness(Prices()).batch(AB[:1])] == ["a1"]
