"""A batch that begins long after Spark had planned it, because sinks had to catch up first: what came meanwhile nobody has seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.assignment import OperatorAnswer
from penstock.engine.coordinating import make_coordinator
from penstock.engine.job_spec import JobSpec
from penstock.engine.run import Run
from penstock.engine.source_partitions import partition_name
from penstock.engine.start import start_run
from penstock.graph import EventTime
from penstock.ids import CheckpointId
from penstock.operators.timers import moment
from penstock.ownership.claim import Claimant
from penstock.snapshot.mailbox import Address
from penstock.spark.query import QueryRun
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.status.events import Event
from penstock.status.observer import Observer
from penstock.storage import LocalStorage
from penstock.testing.virtual_clock import VirtualClock

SECOND_US = 1_000_000
MAILBOX = Address("", 0, "")


class Batches:
    """A run with one operator behind a source of two partitions, each of which is idle after ten seconds."""

    def __init__(self, root: Path) -> None:
        self.clock = VirtualClock()
        self.storage = LocalStorage(root / "storage")
        self.told: list[Event] = []
        self.observer = Observer(tell=self.told.append)
        spec = JobSpec(
            "job",
            "job-1",
            self.storage,
            backend_named("memory"),
            ps.Checkpointing(),
            1,
            128,
            root / "local",
            local_recovery=True,
            layouts={"op": StateLayout(pa.schema([("k", pa.string())]), pa.schema([]))},
            upstream={"op": ()},
            sinks={},
            streams={"s": 1},
            event_times={"s": EventTime("at", 0, 10 * SECOND_US, None, ("p",), in_positions=True)},
            timed_by={"op": frozenset(["s"])},
        )
        start = start_run(spec, claimant=Claimant(), clock=self.clock, perform_all=lambda *_: [])
        ignore: Callable[..., None] = lambda *_: None  # noqa: E731 - nobody listens
        coordinator = make_coordinator(spec, start, clock=self.clock, post=ignore, run_commit=ignore)
        self._log = start.log.folder
        self.run = Run(
            spec,
            start,
            coordinator,
            post=ignore,
            clock=self.clock,
            observer=self.observer,
            in_background=ignore,
        )

    def read(self, until: Mapping[str, int], newest_s: Mapping[str, int], *, planned_us: int | None) -> None:
        """One batch, up to these positions, with these newest times."""
        number = self.run.next_batch
        entry = "{" + ",".join(f'"{name}":{position}' for name, position in until.items()) + "}"
        self.storage.put(f"{self._log}/offsets/{number}", f"v1\n{{}}\n{entry}".encode())
        batch = self.run.begin_batch(number, MAILBOX, planned_us=planned_us)
        newest = {"s": {partition_name([name]): second * SECOND_US for name, second in newest_s.items()}}
        self.run.end_batch(batch, [OperatorAnswer("op", 0, None, None)], newest)

    def watermark_s(self) -> float:
        """Where the next batch would bring time, if it reads nothing."""
        self.run.end_batch(self.run.begin_tick(MAILBOX), [OperatorAnswer("op", 0, None, None)])
        reached = self.observer.progress.watermarks["op"]
        assert self.observer.progress.source_watermarks["s"] is not None
        assert reached is not None
        return (reached - moment(-1)).total_seconds()


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
        _engine=Engine(),
        _batch_of={},
        _wait_for_commits=lambda: clock.advance(60),
        _batch_lock=threading.Lock(),
        _closed=False,
        _failure=None,
        _silence=SimpleNamespace(broken=lambda: None),
        _run_batch=lambda frame, begin, place: begin(MAILBOX),
    )
    QueryRun._on_batch(cast("Any", query), cast("Any", None), 7)
    assert seen == [100 * SECOND_US]
