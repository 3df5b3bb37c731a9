"""A run with one operator, whose batches a test plans, begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

import penstock as ps
from penstock.graph import TimeSettings
from penstock.ids import SparkBatch
from penstock.job_spec import JobSpec
from penstock.operators.state.timers import moment
from penstock.ownership.claim import Claimant
from penstock.recovery.start import make_coordinator, start_run
from penstock.run.assignment import OperatorAnswer
from penstock.run.reading import partition_name
from penstock.run.run import Run
from penstock.snapshot.mailbox import Address
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.status.events import Event
from penstock.status.observer import Observer
from penstock.storage import LocalStorage
from penstock.testing.virtual import VirtualClock

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
            event_times={"s": TimeSettings("at", 0, 10 * SECOND_US, None, ("p",), in_positions=True)},
            timed_by={"op": frozenset(["s"])},
        )
        start = start_run(spec, claimant=Claimant(), clock=self.clock, run_tasks=lambda *_: [])
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
        batch = self.run.begin_batch(SparkBatch(number), MAILBOX, planned_us=planned_us)
        newest = {"s": {partition_name([name]): second * SECOND_US for name, second in newest_s.items()}}
        self.run.end_batch(batch, [OperatorAnswer("op", 0, None, None)], newest)

    def watermark_s(self) -> float:
        """Where the next batch would bring time, if it reads nothing."""
        self.run.end_batch(self.run.begin_tick(MAILBOX), [OperatorAnswer("op", 0, None, None)])
        reached = self.observer.progress.watermarks["op"]
        assert self.observer.progress.sources["s"].watermark_us is not None
        assert reached is not None
        return (reached - moment(-1)).total_seconds()
