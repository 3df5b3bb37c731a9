"""Spark's query as far as the protocol sees it: where it continues, its progress log, and its batches.

It reads and writes the log as Spark does: without syncing, without checking who owns the job, and without a crash in between. A batch runs
the engine's own tasks, one attempt after the other, on the machines of a virtual cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.clock import Clock
from penstock.config import OnBadRecord
from penstock.errors import UnavailableError
from penstock.ids import SparkBatch
from penstock.operators.outputs import BAD, RESULTS, declared_sides, side_tags, untagged
from penstock.operators.process.task import ProcessSpec
from penstock.ownership.claim import newest_run
from penstock.recovery.progress_log import ProgressLog, positions
from penstock.run.assignment import Answer, Assignment
from penstock.run.sink_writer import SinkWriter
from penstock.run.subtask import Subtask
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.snapshot.mailbox import Message
from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.testing.simulation.counting import KEY, OUTPUT, as_items, as_rows, subtask_of, with_wake_row
from penstock.testing.simulation.lifeline import Violation
from penstock.testing.simulation.site import Conditions, Machines, VirtualExecutor
from penstock.testing.simulation.topology import Topology, echoes_of, letters_of
from penstock.testing.simulation.workload import Item, Positions, Record, ScriptedSource

COMPACT_EVERY = 3


class SimulatedQuery:
    """Starts on the folder of a run, and continues after the last batch that is recorded there as done.

    Each source lists what it has read, and records the start that it chose when it had no position: `sources/<its place>/...`.
    """

    def __init__(
        self, storage: Storage, log: ProgressLog, source: ScriptedSource, uids: Sequence[str]
    ) -> None:
        self._job = storage
        self._storage = _without_faults(log.place) if log.is_disposable else storage
        """Where the log lies."""
        self._folder = log.folder
        folder = self._folder
        self._choices_count = not log.is_disposable
        """Whether what a source has chosen counts at once: if the log can be lost, it counts when it is recorded."""
        self._source = source
        self._uids = uids
        """The sources of the query, in its order."""
        last = max((number for number, name in self._numbered("offsets")), default=-1)
        done = last >= 0 and f"{folder}/commits/{last}" in self._storage.names(f"{folder}/commits")
        self.next_batch = SparkBatch(last + 1 if done else max(last, 0))
        self.end = source.end_of(uids)
        self.positions = self._begin(self._entry(self.next_batch - 1) if self.next_batch else {})
        self._reads = self._read_until(self.next_batch - 1) if self.next_batch else {}
        """How many batches each source has noted; batches of the job that read nothing are not among them."""
        self._noted = self._reads
        self._check_where_it_is()
        self._check_what_was_read()

    def plan(self, choose_end: Callable[[], Positions]) -> None:
        """Note where the next batch ends; one that was noted before is repeated as it was."""
        batch = self.next_batch
        if batch not in dict(self._numbered("offsets")):
            until = dict(zip(self._source.uids, choose_end(), strict=True))
            reads = {uid: self._reads.get(uid, 0) + 1 for uid in self._uids}
            lines = [json.dumps(until[uid]) for uid in self._uids]
            self._put(f"offsets/{batch}", "\n".join(["v1", json.dumps({"reads": reads}), *lines]))
            for place, uid in enumerate(self._uids):
                read = reads[uid] - 1
                compacts = read % COMPACT_EVERY == COMPACT_EVERY - 1
                self._put(f"{_read(place)}/{read}{'.compact' if compacts else ''}", json.dumps(until[uid]))
        self.until, self._noted = self._source.at(self._entry(batch)), self._read_until(batch)

    def begun(self) -> None:
        """The batch has begun: where its sources began is in the job's storage, and no later run may choose again."""
        if not self._choices_count and newest_run(self._job) == int(self._folder.rpartition("/")[2]):
            for uid in self._uids:
                self._source.decide_start(uid)

    def done(self) -> None:
        """Record that the batch is over."""
        self._put(f"commits/{self.next_batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self._reads = self._noted
        self.positions, self.next_batch = self.until, SparkBatch(self.next_batch + 1)

    def _begin(self, entry: Mapping[str, object]) -> Positions:
        """The position at which each source continues or begins."""
        known = {
            uid: self._decide_where_to_begin(place, uid) if entry.get(uid) is None else entry[uid]
            for place, uid in enumerate(self._uids)
        }
        return self._source.at(known)

    def _decide_where_to_begin(self, place: int, uid: str) -> int:
        """As with 'latest': a source that decides again later starts at the end."""
        name = f"{self._folder}/sources/{place}/start/0"
        if name not in self._storage.names(f"{self._folder}/sources"):
            self._refuse_if_replaced()  # decisions of a zombie do not count
            choose = self._source.decide_start if self._choices_count else self._source.next_start
            self._storage.put(name, json.dumps(choose(uid)).encode())
        return int(json.loads(self._storage.get(name)))

    def _check_where_it_is(self) -> None:
        """The position of another source may lie where this one has nothing."""
        if any(at > end for at, end in zip(self.positions, self.end, strict=True)):
            raise Violation(f"{self._folder} continues at {self.positions}, after the end {self.end}")

    def _check_what_was_read(self) -> None:
        """A file source that misses an entry since the last compacted one would read files again."""
        for place, uid in enumerate(self._uids):
            entries = dict(self._numbered(_read(place)))
            compacted = max(
                (number for number, name in entries.items() if name.endswith(".compact")), default=0
            )
            missing = set(range(compacted, self._reads.get(uid, 0))) - set(entries)
            if missing:
                self._refuse_if_replaced()
                raise Violation(
                    f"{self._folder} continues with batch {self.next_batch} without {uid}/{missing}"
                )

    def _refuse_if_replaced(self) -> None:
        if newest_run(self._job) > int(self._folder.rpartition("/")[2]):
            raise UnavailableError(f"{self._folder} is not whole: another run has taken the job over")

    def _read_until(self, batch: int) -> dict[str, int]:
        entry = self._storage.get(f"{self._folder}/offsets/{batch}").decode()
        reads: dict[str, int] = json.loads(entry.splitlines()[1])["reads"]
        return reads

    def _entry(self, batch: int) -> dict[str, object]:
        found = positions(self._storage.get(f"{self._folder}/offsets/{batch}").decode())
        return dict(zip(self._uids, found, strict=True))

    def _numbered(self, folder: str) -> list[tuple[int, str]]:
        names = self._storage.names(f"{self._folder}/{folder}")
        return [(int(name.rpartition("/")[2].removesuffix(".compact")), name) for name in names]

    def _put(self, name: str, text: str) -> None:
        self._storage.put(f"{self._folder}/{name}", text.encode())


def _without_faults(place: Storage) -> Storage:
    """Spark does not crash while it writes its log."""
    return place.inner if isinstance(place, ForwardingStorage) else place


def _read(place: int) -> str:
    return f"sources/{place}/read"


MOST_ATTEMPTS = 2
"""Spark's is 4; a failure here is followed by another sooner."""


class JobAbortedError(Exception):
    """The error that a driver sees of a task that failed for good: Spark's message, not that of the task."""


@dataclass
class Batch:
    """Runs the tasks of one batch as Spark does; `answers` are those of the attempts that it kept."""

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
            # Spark loses results that were used already, and runs the task again
            self.answers += executor.answers
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
