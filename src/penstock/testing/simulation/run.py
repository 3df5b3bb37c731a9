"""One run of the simulated job: a driver as `spark.query` has it, whose threads take turns as the seed says."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from penstock.checkpoint.commits import SinkCall
from penstock.checkpoint.completed import Completed
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import (
    BatchFinished,
    Drain,
    Event,
    JobEnded,
    SnapshotDeclined,
    SnapshotDurable,
    Tick,
)
from penstock.checkpoint.protocol import Identity, Now, Protocol
from penstock.config import Mode
from penstock.errors import CheckpointFailedError, CorruptStateError, FencedError, UnavailableError
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.rescale import redistribute
from penstock.recovery.restore import RestorePoint, restore
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.snapshot.compactor import Merge
from penstock.snapshot.compactor import perform as compact
from penstock.snapshot.messages import MergeDone, Message, UploadDone, UploadFailed
from penstock.snapshot.uploader import Upload, perform
from penstock.spark.progress_log import ProgressLog, set_out
from penstock.spark.reading import Reading
from penstock.state.backends import backend_named
from penstock.state.backends.base import Workplace
from penstock.state.compaction import Compactions, Merged
from penstock.state.handle import RunRef, StateHandle, state_stem
from penstock.state.local_files import begin_run, earlier_runs
from penstock.testing.simulation.batch import Batch
from penstock.testing.simulation.counting import DESCRIBED_LAYOUT, LAYOUT
from penstock.testing.simulation.external import SimulatedSink
from penstock.testing.simulation.lifeline import Lifeline
from penstock.testing.simulation.site import FIRST, JOB, OPERATORS, SECOND, Conditions, Site, sink_of
from penstock.testing.simulation.spark_query import SimulatedQuery
from penstock.testing.simulation.violation import Violation
from penstock.testing.simulation.watched_storage import WatchedStorage
from penstock.testing.simulation.workload import MAX_PARALLELISM

_log = logging.getLogger(__name__)

MOST_STEPS = 20_000
LONGEST_STEP_S = 0.5
LONGEST_TICK_S = 2.0
FEWEST_RUNS = 2
CALM = 0.5

EXPECTED_FAILURES = (UnavailableError, CheckpointFailedError, CorruptStateError, FencedError)
"""What ends a run and is answered by another one; a checkpoint that is really corrupt is found by the audit."""


class SimulatedRun:
    """From taking over to the end of the input, a cancel, a failure or death. Made anew after each."""

    def __init__(self, site: Site, conditions: Conditions, lifeline: Lifeline) -> None:
        self._site = site
        self._work = site.workload
        self._conditions = conditions
        self._rng = conditions.rng
        self._parallelism = self._work.parallelism(conditions.index)
        self._settings = self._work.settings(conditions.index)
        self._backend = backend_named(self._work.backend)
        self._storage = WatchedStorage(site.storage, lifeline, self._rng, flakiness=conditions.flakiness)
        self._sinks = self._make_sinks(lifeline) if site.make_sinks is None else site.make_sinks(lifeline)
        self._events: deque[Event] = deque()
        self._commits: list[SinkCall] = []
        self._uploads: list[Upload] = []
        self._merges: list[Merge] = []
        self._compactions = Compactions(self._choose_merge)
        self._batch: Iterator[None] | None = None
        self._draining = False
        self.finished = False

    def _make_sinks(self, lifeline: Lifeline) -> Mapping[str, TwoPhaseCommitSink]:
        external, flakiness = self._site.external, self._conditions.flakiness
        sink = SimulatedSink(external, lifeline, self._rng, flakiness=flakiness)
        return {sink_of(uid): sink for uid in OPERATORS}

    # ── life ───────────────────────────────────────────────────────────────────────────────────

    def live(self) -> None:
        """Run to the end; raises what made it impossible."""
        self._take_over()
        try:
            self._work_on()
        except EXPECTED_FAILURES:
            self._site.orphans += [*self._uploads, *self._merges]
            self._finish_commits()
            raise

    def _work_on(self) -> None:
        for _ in range(MOST_STEPS):
            if self._draining and self._coordinator.settled:
                self._stop()
                self.finished = True
                return
            if self._conditions.troubled and self._rng.random() < self._conditions.mischief / 20:
                self._stop()
                return
            self._step()
        raise Violation(f"run {self._point.run} makes no progress: {self._story()}")

    def _story(self) -> str:
        return f"after batch {self._last_batch}, {self._coordinator.story()}"

    # ── coming up ──────────────────────────────────────────────────────────────────────────────

    def _take_over(self) -> None:
        clock, mode = self._site.clock, self._settings.delivery_mode
        self._point = restore(self._storage, self._sinks, owner=JOB, mode=mode, now=clock.wall())
        self._site.on_restored(self._point)
        self._local_dir = self._site.local_dir(self._point.run)
        self._begin_local_dir()
        self._handles = self._restored_handles(self._point)
        self._last_batch = self._point.last_read
        log = ProgressLog(self._storage, self._point.run)
        sources = set_out(log, self._point.last_read, self._point.barrier)
        self._coordinator = self._make_coordinator()
        self._reading = Reading(
            *(log, sources, {"source": 1}, self._point), mode=mode, hold=self._coordinator.hold
        )
        self._query = SimulatedQuery(self._site.storage, log.folder, self._site.source)

    def _begin_local_dir(self) -> None:
        named = self._point.checkpoint.files if self._point.checkpoint else frozenset()
        begin_run(self._local_dir, named)
        for earlier in earlier_runs(self._local_dir) if self._conditions.alone else ():
            for path in sorted(earlier.glob("state/*/*")):
                if self._rng.random() < self._conditions.mischief:
                    _zero(path)

    def _restored_handles(self, point: RestorePoint) -> dict[SubtaskId, StateHandle]:
        handles: dict[SubtaskId, StateHandle] = {}
        for uid, stored in (point.checkpoint.operators if point.checkpoint else {}).items():
            handles |= redistribute(
                stored.handles,
                uid=uid,
                parallelism=self._parallelism,
                version=point.id,
                backend=self._backend.name,
            )
        if point.checkpoint is not None and point.checkpoint.parallelism != self._parallelism:
            return {subtask: self._take_over_state(handle) for subtask, handle in handles.items()}
        return handles

    def _take_over_state(self, handle: StateHandle) -> StateHandle:
        """After a change of parallelism every subtask makes its state its own, before the first batch."""
        workplace = Workplace(
            storage=self._storage,
            local_dir=self._local_dir,
            subtask=handle.subtask,
            parallelism=self._parallelism,
            max_parallelism=MAX_PARALLELISM,
            version=handle.version,
            stem=state_stem(self._point.run, handle.version, handle.subtask.index, 0),
        )
        with closing(self._backend.open(workplace, LAYOUT, handle)) as state:
            taken = state.freeze()
        for name in sorted(taken.files - handle.files):
            self._storage.upload(workplace.local_path(name), name)
        return taken

    def _make_coordinator(self) -> Coordinator:
        layouts = dict.fromkeys(OPERATORS, DESCRIBED_LAYOUT)
        upstream = {FIRST: (), SECOND: (FIRST,) if self._work.in_sequence else ()}
        identity = Identity(
            JOB, self._point.run, self._parallelism, MAX_PARALLELISM, layouts, upstream, self._point.id
        )
        now = Now(self._site.clock.monotonic(), self._site.clock.wall())
        retained, held = self._point.retained, self._point.begun_files
        protocol = Protocol(self._settings, identity, retained, now, self._handles.values(), held=held)
        return Coordinator(
            protocol,
            storage=self._storage,
            sinks=self._sinks,
            claim=self._point.claim,
            owner=JOB,
            clock=self._site.clock,
            post=self._events.append,
            run_commit=self._commits.append,
            on_completed=self._completed,
        )

    def _completed(self, completed: Completed) -> None:
        self._site.on_completed(completed)

    # ── taking turns ───────────────────────────────────────────────────────────────────────────

    def _step(self) -> None:
        self._site.clock.advance(self._rng.random() * LONGEST_STEP_S)
        choices: list[tuple[Callable[[], None], float]] = [(self._tick, 1)]
        choices += [(self._deliver, 6)] if self._events else []
        choices += [(self._commit, self._work.commit_pace)] if self._commits else []
        choices += [(self._upload, self._work.upload_pace)] if self._uploads else []
        choices += [(self._merge, 2)] if self._merges else []
        choices += [(self._advance_batch, 8)] if not self._draining else []
        choices += [(self._orphan, 1)] if self._site.orphans else []
        actions, weights = zip(*choices, strict=True)
        self._rng.choices(actions, weights)[0]()

    def _tick(self) -> None:
        self._site.clock.advance(self._rng.random() * LONGEST_TICK_S)
        self._events.append(Tick())
        if self._conditions.troubled and self._rng.random() < self._conditions.mischief:
            self._lose_local_files()

    def _deliver(self) -> None:
        self._coordinator.handle(self._events.popleft())

    def _commit(self) -> None:
        """What a sink has to do is done in order; which sink moves is chance."""
        sink = self._rng.choice(sorted({task.sink for task in self._commits}))
        first = next(index for index, task in enumerate(self._commits) if task.sink == sink)
        self._commits.pop(first)()

    def _upload(self) -> None:
        upload = self._uploads.pop(self._rng.randrange(len(self._uploads)))
        if self._conditions.troubled and self._rng.random() < self._conditions.mischief / 4:
            return  # its worker died
        self._events.append(_as_event(perform(upload)))

    def _merge(self) -> None:
        merge = self._merges.pop(self._rng.randrange(len(self._merges)))
        if self._conditions.troubled and self._rng.random() < self._conditions.mischief / 4:
            return  # its worker died
        match compact(merge):
            case MergeDone() as done:
                self._compactions.done(Merged(done.subtask, done.replaced, done.merged))
            case _:
                self._compactions.failed(merge.order.subtask, self._site.clock.monotonic())

    def _choose_merge(self, runs: Sequence[RunRef]) -> range | None:
        """Any neighbours at any time: what the policy would choose is among it."""
        if self._backend.choose_merge(runs) is None and (
            len(runs) < FEWEST_RUNS or self._rng.random() < CALM
        ):
            return None
        first, last = sorted(self._rng.sample(range(len(runs) + 1), 2))
        return range(first, last)

    def _orphan(self) -> None:
        """A worker of a run that failed is still at it."""
        self._site.disturbed = True
        orphan = self._site.orphans.pop()
        if isinstance(orphan, Upload):
            perform(replace(orphan, storage=self._site.storage))
        else:
            compact(replace(orphan, workplace=replace(orphan.workplace, storage=self._site.storage)))

    def _advance_batch(self) -> None:
        if self._batch is None and self._query.positions == self._site.source.end:
            self._draining = True
            self._events.append(Drain())
            return
        if self._batch is None:
            self._batch = self._run_batch()
        if next(self._batch, self) is self:
            self._batch = None

    def _lose_local_files(self) -> None:
        for path in sorted(self._local_dir.glob("state/*/*")):
            if self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
                path.unlink()

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def _run_batch(self) -> Iterator[None]:
        query, source = self._query, self._site.source
        query.plan(lambda: source.cut(query.positions, self._work.batch_size, self._rng))
        number = query.next_batch
        barrier = self._reading.begin(number, after=self._last_batch)
        batch = self._assign(number)
        yield
        yield from batch.steps(source.between(query.positions, query.until))
        self._compactions.not_taken(set(batch.merges) - batch.with_rows)
        self._handles, self._last_batch = batch.handles, number
        transactions = tuple(batch.transactions)
        finished = BatchFinished(number, barrier, batch.handles, transactions, batch.reports)
        self._coordinator.batch_finished(finished)
        query.done()

    def _assign(self, number: CheckpointId) -> Batch:
        self._handles, merged = self._compactions.adopt(self._handles)
        opening = self._coordinator.begin_batch(number, self._handles.values(), merged)
        merges = self._compactions.order(self._handles.values(), self._site.clock.monotonic())
        return Batch(
            number=number,
            run=self._point.run,
            parallelism=self._parallelism,
            storage=self._storage,
            backend=self._backend,
            local_dir=self._local_dir,
            sinks=self._sinks,
            before=self._handles,
            undurable=opening.undurable,
            required=number in opening.awaited,
            newest_will_do=self._settings.delivery_mode is Mode.AT_LEAST_ONCE,
            in_sequence=self._work.in_sequence,
            emits_once=self._work.emits_once,
            drops_attempts=self._conditions.drops_attempts,
            rng=self._rng,
            submit=self._submit,
            submit_merge=self._submit_merge,
            merges=merges,
            merging=self._compactions.merging,
        )

    def _submit(self, upload: Upload) -> None:
        """A worker drops what waits in front of a newer version; another worker would not know."""
        subtask = upload.handle.subtask
        self._uploads = [
            one
            for one in self._uploads
            if one.required or one.handle.subtask != subtask or self._rng.random() < 0.5  # noqa: PLR2004 - a fair coin
        ]
        self._uploads.append(upload)

    def _submit_merge(self, merge: Merge) -> None:
        self._merges.append(merge)

    # ── ending ─────────────────────────────────────────────────────────────────────────────────

    def _stop(self) -> None:
        """As `CoordinatorLoop.stop`: what is in the queues now is done, what follows from it is not."""
        self._coordinator.stop()
        self._coordinator.give_back(self._compactions.unused(), CheckpointId(self._last_batch + 1))
        commits = len(self._commits)
        self._events.append(JobEnded())
        for _ in range(len(self._events)):
            self._deliver()
        for _ in range(commits):
            self._commit()
        self._site.orphans += [*self._uploads, *self._merges]

    def _finish_commits(self) -> None:
        """The thread that commits does what is in its queue, even when the coordinator has failed."""
        self._coordinator.stop()
        try:
            while self._commits:
                self._commit()
        except EXPECTED_FAILURES as error:
            _log.info("run %d: %s", self._point.run, error)


def _zero(path: Path) -> None:
    """What a crash of the machine can leave of a file."""
    size = path.stat().st_size
    path.unlink()  # storage may hold the same file by another link
    path.write_bytes(bytes(size))


def _as_event(message: Message) -> Event:
    match message:
        case UploadDone():
            return SnapshotDurable(message.handle, message.async_ms)
        case UploadFailed():
            return SnapshotDeclined(message.subtask, message.version, message.cause, message.files)
    raise Violation(f"an upload answered {message}")
