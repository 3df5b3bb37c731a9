"""When the driver begins a batch by itself: only when something is due and Spark has nothing to read."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.spark import query as of_query
from penstock.spark.query import QueryRun
from penstock.spark.query_reports import IdleCheck
from penstock.testing.virtual import VirtualClock

READING = "Getting offsets from a log"
NOTHING = "Waiting for data to arrive"
BETWEEN = "Waiting for next trigger"


class Ticks:
    """A query as far as ticks go, whose operators always have something due."""

    def __init__(
        self, patch: pytest.MonkeyPatch, trigger_s: float | None = None, *, due: bool = True
    ) -> None:
        self.clock = VirtualClock(100.0)
        patch.setattr(of_query, "SYSTEM_CLOCK", self.clock)
        self.said: dict[str, Any] = {}
        self.asked = 0
        self.ran = 0
        engine = SimpleNamespace(time_us=1, is_due=lambda **_: due, begin_tick=self._run, waiting_commits=0)
        self._query = SimpleNamespace(
            _run=engine,
            _spec=SimpleNamespace(event_times={}),
            _job=SimpleNamespace(trigger_s=trigger_s),
            _silence=IdleCheck(trigger_s or 0.0),
            _query=self,
            _batch_lock=threading.Lock(),
            _ended_s=self.clock.monotonic(),
            _may_begin=True,
            _run_empty=self._run,
        )
        for name in ("_looked_us", "_rests_between_triggers"):
            setattr(self._query, name, getattr(QueryRun, name).__get__(self._query))

    @property
    def status(self) -> dict[str, Any]:
        self.asked += 1
        return self.said

    def _run(self, begin: Any) -> None:
        self.ran += 1

    def says(self, message: str, *, data: bool) -> int:
        """What the query says of itself, long after its last batch; returns how many ticks there were."""
        self.clock.advance(60)
        active = not message.startswith("Waiting")
        self.said = {"message": message, "isDataAvailable": data, "isTriggerActive": active}
        QueryRun._tick_if_due(cast("Any", self._query))
        return self.ran


def test_there_is_no_tick_while_spark_has_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to begin the next batch: that one does what is due. A tick comes when Spark has looked and found nothing."""
    ticks = Ticks(monkeypatch)
    assert ticks.says(READING, data=True) == 0
    assert ticks.says(BETWEEN, data=True) == 0
    assert ticks.says("Processing new data", data=True) == 0
    assert ticks.says(NOTHING, data=False) == 1


def test_where_nothing_is_due_and_nobody_has_event_time_spark_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call into the JVM ten times a second is not made for nothing."""
    ticks = Ticks(monkeypatch, due=False)
    assert ticks.says(NOTHING, data=False) == ticks.asked == 0


def test_a_trigger_that_comes_seldom_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of its triggers Spark reads nothing, whatever there is: what is due is done then."""
    ticks = Ticks(monkeypatch, 3_600.0)
    assert ticks.says(READING, data=True) == 0
    assert ticks.says(BETWEEN, data=True) == 1
