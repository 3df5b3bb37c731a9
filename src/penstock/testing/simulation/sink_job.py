"""A simulated job that writes through a real sink, and dies after a step of its life. Called by the contract suite of sinks.

Everything but Spark is the real thing: coordinator, protocol, recovery, state, and the sink with its server.
"""

from __future__ import annotations

import enum
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from penstock.config import Checkpointing
from penstock.sinks.two_phase_commit import Transaction, TwoPhaseCommitSink
from penstock.testing.faulty_storage import SimulatedCrash
from penstock.testing.simulation.audit import Audit
from penstock.testing.simulation.external import WatchedSink
from penstock.testing.simulation.lifeline import Lifeline, Violation
from penstock.testing.simulation.simulated_run import SimulatedRun
from penstock.testing.simulation.site import JOB, Conditions, Sinks, Site
from penstock.testing.simulation.topology import sink_of
from penstock.testing.simulation.workload import Record, ScriptedSource, Workload

MOST_RUNS = 5
OFFSETS_OF_A_PARTITION = 100
ROWS_OF_A_SINK = 1_000
_RAM_DISK = Path("/dev/shm")  # noqa: S108 - a folder with a name of its own is made in it
_WORKLOAD = Workload(
    checkpoint=Checkpointing(interval="1s"),
    records=8,
    upload_pace=12.0,
    message_pace=12.0,
    keys=3,
    batch_size=4,
    in_sequence=False,
    parallelisms=(2, 2, 1),
)


NewDriver = Callable[[], TwoPhaseCommitSink]
"""Gives the sink as a driver that has just started has it: validated."""


class Step(enum.Enum):
    """The driver dies right after this; the value is how the I/O call begins or ends."""

    BEGIN = "begin"
    WRITE = "write"
    PRE_COMMIT = "pre_commit"
    COMPLETE = "_metadata"
    HALF_OF_THE_COMMITS = "half_of_the_commits"
    COMMIT = "commit"
    FIND = "find_transactions"
    ABORT = "abort"

    def is_done_by(self, call: str) -> bool:
        """Whether this I/O call takes the step."""
        return (
            call.startswith("create") and call.endswith(self.value)
            if self is Step.COMPLETE
            else (call.partition(" ")[0] == self.value)
        )


class DiesAfter(Lifeline):
    """A process that dies when it has taken a step `times` times."""

    def __init__(self, step: Step, times: int) -> None:
        super().__init__()
        self._step = step
        self._left = times

    def leave(self) -> None:
        """Count the call and die there if planned; see `Lifeline.leave`."""
        if self._step.is_done_by(self.calls[-1]):
            self._left -= 1
            if self._left == 0:
                self.dead = True
                raise SimulatedCrash(f"after {self.calls[-1]}")


class SinkJob:
    """One job with two sinks on one target. Rows are known by number, each belongs to one record and one sink."""

    def __init__(
        self,
        new_driver: NewDriver,
        batch_of: Callable[[Iterable[int]], pa.RecordBatch],
        root: Path,
        *,
        drops_attempts: float = 0.0,
    ) -> None:
        self._new_driver = new_driver
        self._batch_of = batch_of
        self._drops_attempts = drops_attempts
        source = ScriptedSource(
            _WORKLOAD.partitions,
            _WORKLOAD.records,
            _WORKLOAD.keys,
            random.Random("source"),  # noqa: S311 - replayable on purpose
        )
        self._site = Site(_WORKLOAD, root, source)
        self._site.make_sinks = self._sinks
        self._runs = 0

    # ── what a test does with it ───────────────────────────────────────────────────────────────

    def dies_after(self, step: Step, *, times: int = 1) -> None:
        """Start it, and let it die; it is an error when it gets to its end without taking the step."""
        run, lifeline = self._next_run(DiesAfter(step, times))
        try:
            run.live()
        except SimulatedCrash:
            return
        raise Violation(f"the job came to its end without {times} times {step.name}: {lifeline.calls}")

    def comes_to_its_end(self) -> None:
        """Start it, again if need be, until the input is done."""
        for _ in range(MOST_RUNS):
            run, _ = self._next_run(Lifeline())
            run.live()
            if run.finished:
                return
        raise Violation(f"the job is not finished after {MOST_RUNS} more runs")

    def promised(self) -> list[int]:
        """The rows that completed checkpoints stand for: no other may be visible."""
        done = Audit(self._site).checkpoints()
        if not done:
            return []
        source = self._site.source
        return self._numbers(source.between(source.start, source.at(done[-1].barrier.positions)))

    def all_rows(self) -> list[int]:
        """The rows that must be visible in the end."""
        source = self._site.source
        return self._numbers(source.between(source.start, source.end))

    def unfinished(self) -> list[Transaction]:
        """The transactions that are neither committed nor aborted."""
        sink = self._new_driver()
        return [
            found
            for uid in self._site.topology.operators
            for found in sink.find_transactions(JOB, sink_of(uid))
        ]

    # ── parts ──────────────────────────────────────────────────────────────────────────────────

    def _next_run(self, lifeline: Lifeline) -> tuple[SimulatedRun, Lifeline]:
        conditions = Conditions(
            index=self._runs,
            rng=random.Random(f"run {self._runs}"),  # noqa: S311 - replayable on purpose
            troubled=False,
            drops_attempts=self._drops_attempts,
            mischief=0.0,
            flakiness=0.0,
            lost_answers=0.0,
            alone=True,
        )
        self._runs += 1
        return SimulatedRun(self._site, conditions, lifeline), lifeline

    def _sinks(self, lifeline: Lifeline) -> Sinks:
        return {
            uid: {sink_of(uid): WatchedSink(self._new_driver(), lifeline, self._rows_of(operator))}
            for operator, uid in enumerate(self._site.topology.operators)
        }

    def _rows_of(self, operator: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def rows(results: pa.RecordBatch) -> pa.RecordBatch:
            records = [record for result in results.to_pylist() for record in result["records"]]
            return self._batch_of(_number(operator, record) for record in records)

        return rows

    def _numbers(self, records: Iterable[Record]) -> list[int]:
        read = list(records)
        return [
            _number(operator, record.id) for operator in range(self._site.topology.number) for record in read
        ]


def _number(operator: int, record: str) -> int:
    partition, _, offset = record.partition(":")
    return operator * ROWS_OF_A_SINK + int(partition) * OFFSETS_OF_A_PARTITION + int(offset)


@contextmanager
def sink_job(
    new_driver: NewDriver,
    batch_of: Callable[[Iterable[int]], pa.RecordBatch],
    *,
    drops_attempts: float = 0.0,
) -> Iterator[SinkJob]:
    """A job in its own folder, in memory if possible, because syncing its storage does not test the sink."""
    in_memory = _RAM_DISK if os.access(_RAM_DISK, os.W_OK) else None
    with TemporaryDirectory(prefix="penstock-sink-job-", dir=in_memory) as root:
        yield SinkJob(new_driver, batch_of, Path(root), drops_attempts=drops_attempts)
