"""One batch of a simulated run: the engine's own tasks, one attempt after the other, on the machines of a virtual cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.clock import Clock
from penstock.config import OnBadRecord
from penstock.operators.outputs import BAD, RESULTS, declared_sides, side_tags, untagged
from penstock.operators.process.task import ProcessSpec
from penstock.run.assignment import Answer, Assignment
from penstock.run.sink_writer import SinkWriter
from penstock.run.subtask import Subtask
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.snapshot.mailbox import Message
from penstock.testing.simulation.counting import KEY, OUTPUT, as_items, as_rows, subtask_of, with_wake_row
from penstock.testing.simulation.machines import Machines, VirtualExecutor
from penstock.testing.simulation.site import Conditions
from penstock.testing.simulation.source import Item, Record
from penstock.testing.simulation.topology import Topology, echoes_of, letters_of

MOST_ATTEMPTS = 2
"""Spark's is 4; a failure here is followed by another sooner."""


class JobAbortedError(Exception):
    """What a driver sees of a task that failed for good: Spark's words, not those of the task."""


@dataclass
class Batch:
    """What Spark does with the tasks of one batch; `answers` are those of the attempts that it kept."""

    assignment: Assignment
    topology: Topology
    sinks: Mapping[str, Mapping[str, TwoPhaseCommitSink]]
    """By operator, then by uid."""
    conditions: Conditions
    machines: Machines
    clock: Clock
    send: Callable[[Message], None]
    attempts: Iterator[int]
    answers: list[Answer] = field(default_factory=list)

    def steps(self, records: Iterable[Record]) -> Iterator[None]:
        """Perform the batch; others may move at every yield."""
        records = list(records)
        emitted: list[Item] = []
        for uid in self.topology.operators:
            items = self.topology.input_of(uid, records, emitted)
            emitted = []
            for index in range(self.assignment.place.parallelism):
                emitted += self._subtask(uid, index, self._of_subtask(items, index))
                yield

    def _of_subtask(self, items: Iterable[Item], index: int) -> list[Item]:
        place = self.assignment.place
        return [
            item for item in items if subtask_of(item.key, place.parallelism, place.max_parallelism) == index
        ]

    def _subtask(self, uid: str, index: int, items: list[Item]) -> list[Item]:
        if self._by_chance(self.conditions.drops_attempts):
            self._attempt(uid, index, items)  # its result is lost, or another attempt was quicker
        if self._by_chance(self.conditions.mischief / 10):
            executor, _ = self._attempt(uid, index, items)
            self.answers += (
                executor.answers
            )  # Spark loses results that were used already, and runs the task again
        executor, results = self._until_it_succeeds(uid, index, items)
        self.answers += executor.answers
        return results

    def _until_it_succeeds(
        self, uid: str, index: int, items: list[Item]
    ) -> tuple[VirtualExecutor, list[Item]]:
        for left in reversed(range(MOST_ATTEMPTS)):
            try:
                return self._attempt(uid, index, items)
            except Exception as error:
                if not left:
                    raise JobAbortedError(f"{uid}-{index}: {error!r}") from error
        raise AssertionError("there is a last attempt")

    def _attempt(self, uid: str, index: int, items: list[Item]) -> tuple[VirtualExecutor, list[Item]]:
        machine, worker = self.machines.pick(self.conditions.rng)
        executor = VirtualExecutor(next(self.attempts), index, worker, self.clock, self.send)
        place = self.assignment.place
        here = replace(place, local_dir=self.machines.local_dir(place.local_dir, machine))
        plan = replace(self.assignment, place=here)
        operator = self.topology.counting(
            self.conditions.rng, once=self.topology.emits_once, faults=self.topology.faults
        )
        policy = OnBadRecord.KEEP if self.topology.faults else OnBadRecord.FAIL
        sides = tuple(side_tags(declared_sides(operator))) if self.topology.faults else ()
        spec = ProcessSpec(operator, KEY, OUTPUT, sides, has_event_time=self.topology.timers)
        task = Subtask(uid, spec, plan, executor, policy)
        rows = as_rows(items, place.max_parallelism)
        if uid in plan.wake:
            rows = with_wake_row(rows, index)
        parts = [untagged(batch, task.tags) for batch in task(rows)]
        results = [part[RESULTS] for part in parts]
        letters = [part[BAD] for part in parts if BAD in part]
        echoes = [
            part[tag] for part in parts for tag in side_tags(declared_sides(operator)).values() if tag in part
        ]
        beside = {echoes_of(uid): echoes, letters_of(uid): letters}
        for sink_uid, sink in self.sinks[uid].items():
            if sink_uid not in beside:
                letters += SinkWriter(sink_uid, sink, plan, executor, policy)(results)
        for sink_uid, rows in beside.items():
            if rows:
                list(SinkWriter(sink_uid, self.sinks[uid][sink_uid], plan, executor)(rows))
        return executor, as_items(results)

    def _by_chance(self, likelihood: float) -> bool:
        return self.conditions.rng.random() < likelihood
