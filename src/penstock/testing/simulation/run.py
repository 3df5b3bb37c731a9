"""One run of the simulated job: the engine as Spark's query drives it, whose threads take turns as the seed says."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from penstock.checkpoint.commits import SinkCall
from penstock.checkpoint.events import Drain, Event, JobEnded, Tick
from penstock.engine.job_spec import JobSpec
from penstock.engine.observer import Observer
from penstock.engine.run import Run, make_coordinator
from penstock.engine.start import Start, forget_working_files, start_run
from penstock.errors import CheckpointFailedError, CorruptStateError, FencedError, UnavailableError
from penstock.ownership.claim import CLAIMANT_DIGITS, Claimant
from penstock.randomness import Randomness
from penstock.recovery.taking_over import Taken, TakeOver
from penstock.sinks.by_key.sink import AT_ONCE, WITH_THE_CHECKPOINT, UpsertSink
from penstock.sinks.functions.foreach import Foreach
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.snapshot.mailbox import Address
from penstock.snapshot.messages import Message
from penstock.snapshot.uploader import Upload
from penstock.state.backends import backend_named
from penstock.state.handle import FileRef, StateHandle
from penstock.testing.simulation.batch import Batch
from penstock.testing.simulation.counting import LAYOUT
from penstock.testing.simulation.external import SimulatedSink, TableWriter
from penstock.testing.simulation.flaky_sink import FlakySink
from penstock.testing.simulation.lifeline import Lifeline
from penstock.testing.simulation.machines import Machines, SharedTime, Work, perform
from penstock.testing.simulation.site import JOB, Conditions, Sinks, Site
from penstock.testing.simulation.spark_query import SimulatedQuery
from penstock.testing.simulation.topology import sink_of
from penstock.testing.simulation.violation import Violation
from penstock.testing.simulation.watched_storage import WatchedStorage
from penstock.testing.simulation.workload import MAX_PARALLELISM, SinkKind

_log = logging.getLogger(__name__)

MOST_STEPS = 20_000
LONGEST_STEP_S = 0.5
LONGEST_TICK_S = 2.0
FEWEST_FILES = 2
CALM = 0.5
NO_MAILBOX = Address("", 0, "")

EXPECTED_FAILURES = (UnavailableError, CheckpointFailedError, CorruptStateError, FencedError)
"""What ends a run and is answered by another one; a checkpoint that is really corrupt is found by the audit."""


class SimulatedRun:
    """From taking over to the end of the input, a cancel, a failure or death. Made anew after each."""

    def __init__(
        self, site: Site, conditions: Conditions, lifeline: Lifeline, claimant: Claimant | None = None
    ) -> None:
        self._site = site
        self._conditions = conditions
        self._names = Randomness(random.Random(conditions.index))  # noqa: S311 - replayable on purpose
        self._claimant = claimant or Claimant(self._names.token(CLAIMANT_DIGITS))
        self._machines = Machines(site.root, site.workload.machines)
        self._sinks = self._make_sinks(lifeline) if site.make_sinks is None else site.make_sinks(lifeline)
        self._spec = self._make_spec(lifeline)
        self.finished = False

    def live(self) -> None:
        """Run to the end; raises what made it impossible."""
        if self._conditions.alone:
            self._damage_working_files()
        start = start_run(
            self._spec,
            claimant=self._claimant,
            clock=self._site.clock,
            perform_all=self._take_over_all,
            randomness=self._names,
            on_restored=self._site.on_restored,
        )
        driver = Driver(
            self._site, self._conditions, self._spec, start, sinks=self._sinks, machines=self._machines
        )
        try:
            self.finished = driver.work_on()
        finally:
            forget_working_files(self._spec, start)

    def _make_spec(self, lifeline: Lifeline) -> JobSpec:
        work, run = self._site.workload, self._conditions.index
        topology, conditions = self._site.topology, self._conditions
        storage = WatchedStorage(self._site.storage, lifeline, conditions.rng, flakiness=conditions.flakiness)
        return JobSpec(
            name=JOB,
            owner=JOB,
            storage=storage,
            backend=backend_named(work.backend),
            checkpoint=work.settings(run),
            parallelism=work.parallelism(run),
            max_parallelism=MAX_PARALLELISM,
            working_folder=self._site.working_folder,
            local_recovery=work.local_recovery,
            layouts=dict.fromkeys(topology.operators, LAYOUT),
            upstream=topology.upstream,
            sinks={uid: sink for sinks in self._sinks.values() for uid, sink in sinks.items()},
            streams={"source": 1},
            replayable=(True,),
        )

    def _make_sinks(self, lifeline: Lifeline) -> Sinks:
        flakiness = self._conditions.flakiness

        def flaky(sink: TwoPhaseCommitSink) -> TwoPhaseCommitSink:
            return FlakySink(sink, lifeline, self._conditions.rng, flakiness=flakiness)

        return {
            uid: {sink_of(uid, kind): flaky(self._sink(kind)) for kind in self._site.workload.sinks}
            for uid in self._site.topology.operators
        }

    def _sink(self, kind: SinkKind) -> TwoPhaseCommitSink:
        external, staging = self._site.external, self._site.staging
        match kind:
            case SinkKind.TRANSACTIONS:
                return SimulatedSink(external)
            case SinkKind.BY_KEY_AT_ONCE:
                return UpsertSink(TableWriter(external), visible=AT_ONCE, staging=None)
            case SinkKind.BY_KEY_STAGED:
                return UpsertSink(TableWriter(external), visible=WITH_THE_CHECKPOINT, staging=staging)
            case SinkKind.CALLS:
                return Foreach(external.call)

    def _damage_working_files(self) -> None:
        """What a crash of the machine can leave of files that were not synced."""
        for path in self._machines.working_files():
            if self._conditions.rng.random() < self._conditions.mischief:
                size = path.stat().st_size
                path.unlink()  # storage may hold the same file by another link
                path.write_bytes(bytes(size))

    def _take_over_all(self, take_over: TakeOver, handles: Sequence[StateHandle]) -> list[Taken]:
        return [self._take_over(take_over, handle, attempt) for attempt, handle in enumerate(handles)]

    def _take_over(self, take_over: TakeOver, handle: StateHandle, attempt: int) -> Taken:
        machine, _ = self._machines.pick(self._conditions.rng)
        here = self._machines.local_dir(take_over.local_dir, machine)
        return replace(take_over, local_dir=here)(handle, attempt)


class Driver:
    """The threads of a driver that has come up. Whatever waits for one of them moves when chance has it."""

    def __init__(
        self,
        site: Site,
        conditions: Conditions,
        spec: JobSpec,
        start: Start,
        *,
        sinks: Sinks,
        machines: Machines,
    ) -> None:
        self._site = site
        self._work = site.workload
        self._conditions = conditions
        self._rng = conditions.rng
        self._run_number = start.point.run
        self._sinks = sinks
        self._machines = machines
        self._events: deque[Event] = deque()
        self._messages: list[Message] = []
        self._commits: list[SinkCall] = []
        self._background: list[Callable[[], None]] = []
        self._attempts = count()
        self._backend = spec.backend
        self._coordinator = make_coordinator(
            spec,
            start,
            clock=site.clock,
            post=self._events.append,
            run_commit=self._commits.append,
            on_completed=site.on_completed,
        )
        self._engine = Run(
            spec,
            start,
            self._coordinator,
            post=self._events.append,
            clock=site.clock,
            observer=Observer(),
            in_background=self._background.append,
            choose_merge=self._choose_merge,
        )
        self._query = SimulatedQuery(site.storage, start.log.folder, site.source)
        self._batch: Iterator[None] | None = None
        self._draining = False

    def work_on(self) -> bool:
        """Take turns until the input is done; false when somebody has stopped the job before."""
        try:
            return self._take_turns()
        except EXPECTED_FAILURES:
            self._site.orphans += self._left_to_workers()
            self._finish_commits()
            raise

    def _take_turns(self) -> bool:
        for _ in range(MOST_STEPS):
            if self._draining and self._coordinator.settled:
                self._stop()
                return True
            if self._trouble(1 / 20):
                self._stop()
                return False
            self._step()
        raise Violation(f"run {self._run_number} makes no progress: {self._coordinator.story()}")

    def _trouble(self, share: float) -> bool:
        return self._conditions.troubled and self._rng.random() < self._conditions.mischief * share

    # ── taking turns ───────────────────────────────────────────────────────────────────────────

    def _step(self) -> None:
        self._site.clock.advance(self._rng.random() * LONGEST_STEP_S)
        work = self._work
        uploading = [worker for worker in self._machines.workers() if worker.has_uploads]
        merging = [worker for worker in self._machines.workers() if worker.has_merges]
        choices: list[tuple[Callable[[], None], float]] = [(self._tick, 1)]
        choices += [(self._handle_event, 6)] if self._events else []
        choices += [(self._deliver, work.message_pace)] if self._messages else []
        choices += [(self._commit, work.commit_pace)] if self._commits else []
        choices += (
            [(lambda: self._perform(self._rng.choice(uploading).next_upload(self._rng)), work.upload_pace)]
            if uploading
            else []
        )
        choices += [(lambda: self._perform(self._rng.choice(merging).next_merge()), 2)] if merging else []
        choices += [(self._in_background, 2)] if self._background else []
        choices += [(self._advance_batch, 8)] if not self._draining else []
        choices += [(self._orphan, 1)] if self._site.orphans else []
        actions, weights = zip(*choices, strict=True)
        self._rng.choices(actions, weights)[0]()

    def _tick(self) -> None:
        self._site.clock.advance(self._rng.random() * LONGEST_TICK_S)
        self._events.append(Tick())
        self._engine.look_after()
        if self._trouble(1):
            self._lose_working_files()
        if self._trouble(1 / 4):
            self._machines.die(self._rng.randrange(self._work.machines))

    def _handle_event(self) -> None:
        self._coordinator.handle(self._events.popleft())

    def _deliver(self) -> None:
        """Messages overtake each other."""
        self._engine.deliver(self._messages.pop(self._rng.randrange(len(self._messages))))

    def _commit(self) -> None:
        """What a sink has to do is done in order; which sink moves is chance."""
        sink = self._rng.choice(sorted({call.sink for call in self._commits}))
        first = next(index for index, call in enumerate(self._commits) if call.sink == sink)
        self._commits.pop(first)()

    def _perform(self, work: Work | None) -> None:
        if work is not None and not self._trouble(1 / 4):  # otherwise its worker died
            self._messages.append(perform(work))

    def _upload_meanwhile(self) -> None:
        """A task waits: on other machines uploads go on."""
        uploading = [worker for worker in self._machines.workers() if worker.has_uploads]
        if uploading:
            self._perform(self._rng.choice(uploading).next_upload(self._rng))

    def _in_background(self) -> None:
        self._background.pop(self._rng.randrange(len(self._background)))()

    def _choose_merge(self, files: Sequence[FileRef]) -> range | None:
        """Any neighbours at any time: what the policy would choose is among it."""
        if self._backend.choose_merge(files) is None and (
            len(files) < FEWEST_FILES or self._rng.random() < CALM
        ):
            return None
        first, last = sorted(self._rng.sample(range(len(files) + 1), 2))
        return range(first, last)

    def _orphan(self) -> None:
        """A worker of a run that failed is still at it."""
        self._site.disturbed = True
        orphan = self._site.orphans.pop()
        if isinstance(orphan, Upload):
            perform(replace(orphan, storage=self._site.storage))
        else:
            here = replace(orphan.workplace, storage=self._site.storage, clock=self._site.clock)
            perform(replace(orphan, workplace=here))

    def _advance_batch(self) -> None:
        if self._batch is None and self._query.positions == self._site.source.end:
            self._draining = True
            self._events.append(Drain())
            return
        if self._batch is None:
            self._batch = self._run_batch()
        try:
            if next(self._batch, self) is self:
                self._batch = None
        except Exception as error:
            self._receive_all()  # what a task said before it failed is there before Spark has given up
            raise (self._engine.explained(error) or error) from error

    def _receive_all(self) -> None:
        while self._messages:
            self._deliver()

    def _lose_working_files(self) -> None:
        for path in self._machines.working_files():
            if _of_run(path) == self._run_number and self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
                path.unlink()

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def _run_batch(self) -> Iterator[None]:
        query, source = self._query, self._site.source
        query.plan(lambda: source.cut(query.positions, self._work.batch_size, self._rng))
        under_way = self._engine.begin_batch(query.next_batch, NO_MAILBOX)
        batch = Batch(
            under_way.assignment,
            self._site.topology,
            self._sinks,
            self._conditions,
            self._machines,
            SharedTime(self._site.clock, self._upload_meanwhile),
            self._messages.append,
            self._attempts,
        )
        yield
        yield from batch.steps(source.between(query.positions, query.until))
        self._engine.end_batch(under_way, batch.answers)
        query.done()

    # ── ending ─────────────────────────────────────────────────────────────────────────────────

    def _stop(self) -> None:
        """As `CoordinatorLoop.stop`: what is in the queues now is done, what follows from it is not."""
        self._coordinator.stop()
        self._receive_all()
        self._engine.close()
        commits = len(self._commits)
        self._events.append(JobEnded())
        for _ in range(len(self._events)):
            self._handle_event()
        for _ in range(commits):
            self._commit()
        self._site.orphans += self._left_to_workers()

    def _left_to_workers(self) -> list[Work]:
        return [work for worker in self._machines.workers() for work in worker.left()]

    def _finish_commits(self) -> None:
        """The thread that commits does what is in its queue, even when the coordinator has failed."""
        self._coordinator.stop()
        try:
            while self._commits:
                self._commit()
        except EXPECTED_FAILURES as error:
            _log.info("run %d: %s", self._run_number, error)


def _of_run(path: Path) -> int:
    """The run whose working file this is: .../run-<k>-<token>/state/<operator>/<file>."""
    return int(path.parents[2].name.split("-")[1])
