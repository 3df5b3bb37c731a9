"""One run of the simulated job: its settings, sinks and machines, its restore, and its start from a savepoint."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path

from penstock.checkpoint.metadata import is_committed
from penstock.checkpoint.model import Completed
from penstock.config import Mode
from penstock.errors import ConfigError, CorruptStateError, FencedError
from penstock.ids import CheckpointId, Randomness
from penstock.job_spec import JobSpec
from penstock.ownership.claim import CLAIMANT_DIGITS, Claimant, newest_run, read_descents
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.recovery.history import read_history
from penstock.recovery.restore_options import RestoreOptions
from penstock.recovery.restore_plan import RestorePlan
from penstock.recovery.start import forget_working_files, start_run
from penstock.recovery.state_migration import RestoredSubtask, RestoreTask, RunRestoreTasks
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import Manifest, read_manifest
from penstock.savepoint.restore import GivenSavepoint, restore_savepoint
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.sinks.upsert import AT_ONCE, WITH_THE_CHECKPOINT, UpsertSink
from penstock.sinks.user_functions import Foreach
from penstock.state.backends import backend_named
from penstock.state.handle import StateHandle
from penstock.storage import Storage
from penstock.testing.faulty_storage import SimulatedCrash
from penstock.testing.simulation.counting import TIME
from penstock.testing.simulation.driver import Driver
from penstock.testing.simulation.external import FlakySink, Row, SimulatedSink, TableWriter
from penstock.testing.simulation.lifeline import Lifeline, Violation, WatchedObjectStore, WatchedStorage
from penstock.testing.simulation.site import JOB, Conditions, Machines, Sinks, Site
from penstock.testing.simulation.topology import echoes_of, letters_of, sink_of
from penstock.testing.simulation.workload import MAX_PARALLELISM, Fault, SinkKind, fault_of
from penstock.testing.virtual import VirtualObjectStore, VirtualStorage

MOVES_TO_ANOTHER_MACHINE = 0.5


class SavepointStart:
    """Makes a savepoint of the newest checkpoint before a run, and starts the run from it."""

    def __init__(self, site: Site, spec: JobSpec, lifeline: Lifeline, rng: random.Random) -> None:
        self._site, self._spec = site, spec
        self._plain = VirtualStorage("virtual://savepoint")
        self._folder: Storage = WatchedStorage(self._plain, lifeline, rng)

    def begin(self, run_tasks: RunRestoreTasks, names: Randomness) -> None:
        """Make it and adopt it, where there is a checkpoint whose promises are kept."""
        check_job_record(self._site.storage, JobRecord(self._spec.name, self._spec.max_parallelism))
        newest = self._newest()
        manifest = None if newest is None else self._made(newest, names)
        if manifest is None:
            return
        if read_manifest(self._plain) != manifest:
            raise Violation("a savepoint is not what it was when it was made")
        try:
            restore_savepoint(
                self._spec,
                GivenSavepoint(self._folder, manifest),
                clock=self._site.clock,
                run_tasks=run_tasks,
                randomness=names,
            )
        except ConfigError as refused:
            begun_beyond = "has started batch" in str(refused) and Mode.AT_MOST_ONCE in (
                self._spec.mode,
                self._site.workload.promise_of_state,
            )
            if not self._site.disturbed and not begun_beyond:
                raise Violation(
                    f"no other run was active, and the savepoint is refused: {refused}"
                ) from refused
            logging.getLogger(__name__).info("another run continued meanwhile: %s", refused)

    def _newest(self) -> Completed | None:
        storage = self._spec.storage
        whole = read_history(storage, read_descents(storage)).whole
        if not whole or (whole[-1].transactions and not is_committed(storage, whole[-1])):
            return None
        return whole[-1]

    def _made(self, newest: Completed, names: Randomness) -> Manifest | None:
        scratch = Path(self._site.root / "scratch")
        scratch.mkdir(exist_ok=True)
        try:
            return create_savepoint(
                self._spec.storage,
                newest,
                self._folder,
                token="simulated",  # noqa: S106 - a name
                clock=self._site.clock,
                scratch=scratch,
                randomness=names,
            )
        except (FileNotFoundError, CorruptStateError):
            if not self._site.disturbed:
                raise
            return None  # a run thought dead has subsumed it: there is no hold here


class SimulatedRun:
    """One run, from its claim to the end of the input, a cancel, a failure or its death."""

    def __init__(
        self,
        site: Site,
        conditions: Conditions,
        lifeline: Lifeline,
        claimant: Claimant | None = None,
        wanted: CheckpointId | None = None,
    ) -> None:
        self._site = site
        self._wanted = wanted
        self._conditions = conditions
        self._names = Randomness(random.Random(conditions.index))  # noqa: S311 - replayable on purpose
        self.claimant = claimant or Claimant(self._names.token(CLAIMANT_DIGITS))
        self._machines = Machines(site.root, site.workload.machines)
        self._sinks = self._make_sinks(lifeline) if site.make_sinks is None else site.make_sinks(lifeline)
        self._spec = self._make_spec(lifeline)
        self._begins = claimant is None and wanted is None
        self._savepoint = SavepointStart(site, self._spec, lifeline, conditions.rng)
        self.finished = False

    def live(self) -> None:
        """Run to the end; raises what made it impossible."""
        if self._conditions.alone:
            self._damage_working_files()
        if self._site.workload.savepoints and self._conditions.index and self._begins:
            self._savepoint.begin(self._take_over_all, self._names)
        may_be_lost = self._site.topology.may_be_lost if self._site.workload.changes else ()
        start = start_run(
            self._spec,
            RestoreOptions(drop_state=may_be_lost),
            claimant=self.claimant,
            clock=self._site.clock,
            run_tasks=self._take_over_all,
            randomness=self._names,
            wanted=self._wanted,
            on_restored=self._restored,
        )
        driver = Driver(
            self._site, self._conditions, self._spec, start, sinks=self._sinks, machines=self._machines
        )
        try:
            self.finished = driver.work_on() and len(self._spec.streams) == self._site.workload.partitions
        except SimulatedCrash:
            raise  # which leaves its working files
        except BaseException as error:
            forget_working_files(self._spec, start)
            if isinstance(error, FencedError) and newest_run(self._site.storage) == start.plan.run:
                raise Violation(f"run {start.plan.run} owns the job, and takes itself for fenced") from error
            raise
        forget_working_files(self._spec, start)

    def _restored(self, point: RestorePlan) -> None:
        if self._wanted is not None and point.id != self._wanted:
            raise Violation(f"checkpoint {self._wanted} was requested, but the run continues from {point.id}")
        self._site.on_restored(point)

    def _make_spec(self, lifeline: Lifeline) -> JobSpec:
        work, run = self._site.workload, self._conditions.index
        topology, conditions = self._site.topology_of(run), self._conditions
        sources = work.sources(run, self._site.source.uids)
        return JobSpec(
            name=JOB,
            owner=JOB,
            storage=self._watched(lifeline),
            backend=backend_named(work.backend_of(run)),
            checkpoint=work.settings(run),
            parallelism=work.parallelism(run),
            max_parallelism=MAX_PARALLELISM,
            working_folder=self._site.working_folder,
            local_recovery=work.local_recovery,
            layouts=dict.fromkeys(topology.operators, topology.layout),
            upstream=topology.upstream,
            sinks={uid: sink for sinks in self._sinks.values() for uid, sink in sinks.items()},
            streams=dict.fromkeys(sources, 1),
            event_times=dict.fromkeys(sources, TIME) if work.timers else {},
            timed_by=dict.fromkeys(topology.operators, frozenset(sources if work.timers else ())),
            replayable=[True] * len(sources),
            log_place=WatchedStorage(self._disk(), lifeline, conditions.rng) if work.object_store else None,
        )

    def _watched(self, lifeline: Lifeline) -> Storage:
        site, conditions = self._site, self._conditions
        if not isinstance(site.storage, VirtualObjectStore):
            return WatchedStorage(site.storage, lifeline, conditions.rng, flakiness=conditions.flakiness)
        return WatchedObjectStore(
            site.storage,
            lifeline,
            conditions.rng,
            flakiness=conditions.flakiness,
            lost_answers=conditions.lost_answers,
            clock=site.clock,
        )

    def _disk(self) -> VirtualStorage:
        """Of the driver's machine: often another one than in the run before."""
        if self._conditions.rng.random() < MOVES_TO_ANOTHER_MACHINE:
            self._site.disk = VirtualStorage(self._site.disk.uri)
        return self._site.disk

    def _make_sinks(self, lifeline: Lifeline) -> Sinks:
        flakiness = self._conditions.flakiness

        def flaky(sink: TwoPhaseCommitSink) -> TwoPhaseCommitSink:
            return FlakySink(sink, lifeline, self._conditions.rng, flakiness=flakiness)

        sinks = {
            uid: {sink_of(uid, kind): flaky(self._sink(kind)) for kind in self._site.workload.sinks}
            for uid in self._site.topology.operators
        }
        if self._site.workload.bad_records:
            for uid, own in sinks.items():
                own[letters_of(uid)] = flaky(SimulatedSink(self._site.external))
                own[echoes_of(uid)] = flaky(SimulatedSink(self._site.external))
        return sinks

    def _sink(self, kind: SinkKind) -> TwoPhaseCommitSink:
        external, staging = self._site.external, self._site.staging
        match kind:
            case SinkKind.TRANSACTIONS:
                return SimulatedSink(external, self._refuses)
            case SinkKind.BY_KEY_AT_ONCE:
                return UpsertSink(TableWriter(external), visible=AT_ONCE, staging=None)
            case SinkKind.BY_KEY_STAGED:
                return UpsertSink(TableWriter(external), visible=WITH_THE_CHECKPOINT, staging=staging)
            case SinkKind.CALLS:
                return Foreach(external.call)

    def _refuses(self, row: Row) -> bool:
        likelihood = self._site.workload.bad_records
        return any(fault_of(record, likelihood) is Fault.REFUSED for record in row["records"])

    def _damage_working_files(self) -> None:
        """Damage files that were not synced, as a crash of the machine can."""
        for path in self._machines.working_files():
            if self._conditions.rng.random() < self._conditions.mischief:
                size = path.stat().st_size
                path.unlink()  # storage may hold the same file by another link
                path.write_bytes(bytes(size))

    def _take_over_all(self, take_over: RestoreTask, handles: Sequence[StateHandle]) -> list[RestoredSubtask]:
        return [self._take_over(take_over, handle, attempt) for attempt, handle in enumerate(handles)]

    def _take_over(self, take_over: RestoreTask, handle: StateHandle, attempt: int) -> RestoredSubtask:
        machine, _ = self._machines.pick(self._conditions.rng)
        here = self._machines.local_dir(take_over.local_dir, machine)
        return take_over.at(here)(handle, attempt)
