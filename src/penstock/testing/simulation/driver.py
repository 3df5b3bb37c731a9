"""The driver of a simulated run: the engine as Spark's query drives it, whose threads take turns as the seed says."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from penstock.checkpoint.commits import SinkCall
from penstock.checkpoint.events import AnswerTaken, CheckpointWanted, Drain, Event, JobEnded, TimePassed
from penstock.errors import CheckpointFailedError, FencedError, PenstockError, UnavailableError
from penstock.ids import NO_CHECKPOINT, CheckpointId
from penstock.job_spec import JobSpec
from penstock.recovery.start import Start, make_coordinator
from penstock.run.run import BatchUnderWay, Run
from penstock.snapshot.mailbox import Address, Message
from penstock.snapshot.uploader import Upload
from penstock.state.handle import FileRef
from penstock.state.lifetimes import Moment
from penstock.status.observer import Observer
from penstock.testing.simulation.counting import newest_of
from penstock.testing.simulation.lifeline import Violation
from penstock.testing.simulation.site import Conditions, Machines, SharedTime, Sinks, Site, Work, perform
from penstock.testing.simulation.spark_query import Batch, SimulatedQuery
from penstock.testing.simulation.workload import Record

_log = logging.getLogger(__name__)

MOST_STEPS = 20_000
LONGEST_STEP_S = 0.5
LONGEST_TICK_S = 2.0
FEWEST_FILES = 2
CALM = 0.5
NO_MAILBOX = Address("", 0, "")

EXPECTED_FAILURES = (UnavailableError, CheckpointFailedError, FencedError)
"""Errors that end a run and are answered by the next one. The simulation does not damage storage, so corrupt state is a bug."""


class Driver:
    """The threads of a started driver. A random choice decides which waiting thread moves next."""

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
        self._run_number = start.plan.run
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
            listener=site.listener,
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
            wake=self._wake,
        )
        self._until_us: int | None = None
        """The time at which all input was read: what is due by the clock later is left to the next run."""
        self._drained = not site.workload.drains
        self._query = SimulatedQuery(site.storage, start.log, site.source, tuple(spec.streams))
        self._batch: Iterator[None] | None = None
        self._finished = NO_CHECKPOINT
        """The last batch of this run that is finished."""
        self._wanted: dict[str, CheckpointId] = {}
        """The requests that wait for a checkpoint, and the batch that each must contain."""
        self._draining = False

    def work_on(self) -> bool:
        """Take turns until the input is processed; false if the job was stopped before."""
        try:
            return self._take_turns()
        except EXPECTED_FAILURES:
            self._site.orphans += self._left_to_workers()
            self._finish_commits()
            raise

    def _take_turns(self) -> bool:
        for _ in range(MOST_STEPS):
            self._look_for_answers()
            heard = not (self._wanted and self._events)  # every request was received
            if self._draining and self._coordinator.settled and heard:
                self._engine.check_claim()
                self._nobody_waits_in_vain()
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
        choices += [(self._want, work.wants)] if work.wants and not self._draining else []
        actions, weights = zip(*choices, strict=True)
        self._rng.choices(actions, weights)[0]()

    def _tick(self) -> None:
        self._site.clock.advance(self._rng.random() * LONGEST_TICK_S)
        self._events.append(TimePassed())
        self._engine.look_after()
        if self._trouble(1):
            self._lose_working_files()
        if self._trouble(1 / 4):
            self._machines.die(self._rng.randrange(self._work.machines))

    def _handle_event(self) -> None:
        self._coordinator.handle(self._events.popleft())

    def _want(self) -> None:
        """Request a checkpoint of all finished batches."""
        token = f"{self._run_number}-{next(self._attempts)}"
        self._wanted[token] = self._finished
        self._events.append(CheckpointWanted(token))

    def _look_for_answers(self) -> None:
        for token, at_least in list(self._wanted.items()):
            found = self._coordinator.answer_to(token, committed=True)
            if found is None:
                continue
            del self._wanted[token]
            self._events.append(AnswerTaken(token))
            promised = {one.transaction["id"] for one in found.transactions if "id" in one.transaction}
            hidden = sorted(promised - set(self._site.external.visible))
            if found.id < at_least or hidden:
                raise Violation(
                    f"a checkpoint of batch {at_least} was wanted with all it promised, and the answer is {found.id} without {hidden}"
                )

    def _nobody_waits_in_vain(self) -> None:
        if any(at_least > NO_CHECKPOINT for at_least in self._wanted.values()):
            raise Violation(f"all is settled, but requests still wait for checkpoints of {self._wanted}")

    def _deliver(self) -> None:
        """Deliver a random message: messages may overtake each other."""
        self._engine.deliver(self._messages.pop(self._rng.randrange(len(self._messages))))

    def _commit(self) -> None:
        """Run the next call of a random sink: the calls of each sink stay in order."""
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

    def _wake(self, batch: CheckpointId) -> frozenset[str]:
        """Sometimes all subtasks run, and the batch fails."""
        every = self._work.wakes_every
        return frozenset(self._site.topology.operators) if every and batch % every == 0 else frozenset()

    def _choose_merge(self, files: Sequence[FileRef], now: Moment) -> range | None:
        """Any neighbours at any time: what the policy would choose is among it."""
        if self._backend.choose_merge(files, now) is None and (
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
        if self._batch is None:
            self._batch = self._next_batch()
        if self._batch is None:
            self._draining = True
            self._events.append(Drain())
            return
        try:
            if next(self._batch, self) is self:
                self._batch = None
        except Exception as error:
            self._receive_all()  # a task's message about its failure arrives before Spark gives up
            if isinstance(error, PenstockError):
                raise  # of the driver itself
            raise (self._engine.explained(error) or error) from error

    def _next_batch(self) -> Iterator[None] | None:
        """The next batch; None if the input is processed and nothing else is left to do."""
        engine, done = self._engine, self._query.positions == self._query.end
        if engine.time_is_over:
            # otherwise an earlier run came to the end, and at most once this one may have older state
            if self._drained:
                engine.check_nothing_waits()
            return self._run_empty(engine.begin_anew)
        if not self._work.timers:
            return None if done else self._run_batch()
        if done and self._until_us is None:
            self._until_us = engine.time_us
        looked_us = engine.time_us
        if engine.is_due(self._until_us, looked_us=looked_us) and (done or self._rng.random() < CALM):
            return self._run_empty(partial(engine.begin_tick, looked_us=looked_us))
        if not done:
            return self._run_batch()
        if self._drained or not engine.ends_with_event_time:
            return None
        self._drained = True
        return self._run_empty(engine.begin_end_of_time)

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
        query.plan(lambda: source.cut(query.positions, query.end, self._work.batch_size, self._rng))
        records = list(source.between(query.positions, query.until))
        under_way = self._engine.begin_batch(query.next_batch, NO_MAILBOX)
        query.begun()
        yield from self._run(under_way, records)
        query.done()

    def _run_empty(self, begin: Callable[[Address], BatchUnderWay]) -> Iterator[None]:
        """One that the driver begins by itself, because of the time."""
        yield from self._run(begin(NO_MAILBOX), [])

    def _run(self, under_way: BatchUnderWay, records: list[Record]) -> Iterator[None]:
        batch = Batch(
            under_way.assignment,
            self._site.topology_of(self._conditions.index),
            self._sinks,
            self._conditions,
            self._machines,
            SharedTime(self._site.clock, self._upload_meanwhile),
            self._messages.append,
            self._attempts,
        )
        yield
        yield from batch.steps(records)
        self._engine.end_batch(under_way, batch.answers, newest_of(records) if self._work.timers else {})
        self._finished = under_way.assignment.batch

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
