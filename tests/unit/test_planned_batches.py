"""A batch that begins long after Spark had planned it, because sinks had to catch up first: what came meanwhile nobody has seen."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders.planned_batches import MAILBOX, SECOND_US, Batches
from penstock.ids import CheckpointId
from penstock.snapshot.mailbox import Address
from penstock.spark.query import QueryRun
from penstock.testing.virtual import VirtualClock


@pytest.mark.parametrize(("waited_s", "told", "reached_s"), [(60, True, 2), (60, False, 100), (5, False, 2)])
def test_silence_is_counted_up_to_the_plan(tmp_path: Path, waited_s: int, told: bool, reached_s: int) -> None:
    """A partition without rows in a batch was silent until Spark planned it. Had Spark just planned it, it were idle by now."""
    batches = Batches(tmp_path)
    batches.read({"0": 1, "1": 1}, {"0": 1, "1": 2}, planned_us=None)
    batches.clock.advance(1)
    planned_us = batches.run.time_us
    batches.clock.advance(waited_s)
    batches.read({"0": 2, "1": 1}, {"0": 100}, planned_us=planned_us if told else None)
    assert batches.watermark_s() == reached_s


def test_a_batch_was_planned_before_it_waits_for_commits() -> None:
    """Spark hands it over then: the time is taken at once."""
    clock = VirtualClock(100.0)
    seen: list[int] = []

    class Engine:
        next_batch = CheckpointId(0)

        @property
        def time_us(self) -> int:
            return int(clock.wall() * SECOND_US)

        def begin_batch(self, read: CheckpointId, mailbox: Address, *, planned_us: int) -> None:
            seen.append(planned_us)

    query = SimpleNamespace(
        _spec=SimpleNamespace(name="views"),
        _run=Engine(),
        _unreported={},
        _wait_for_commits=lambda: clock.advance(60),
        _batch_lock=threading.Lock(),
        _closed=False,
        _failure=None,
        _silence=SimpleNamespace(broken=lambda: None),
        _run_batch=lambda frame, begin, place: begin(MAILBOX),
    )
    QueryRun._on_batch(cast("Any", query), cast("Any", None), 7)
    assert seen == [100 * SECOND_US]
