"""The world of a simulation: run after run of one job until its input is processed, with all failures on the way.

Between runs a person may intervene (`Intervention`). A `Reader` that does not own the job reads its newest checkpoint, with a hold, while
the job goes on. It runs the code of real readers, in a process that pauses before every I/O call. Its hold is renewed whenever the job
moves, as its own thread would renew it. So nothing that it reads may vanish, except for one retry at the start.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.checkpoint.model import Completed
from penstock.config import Mode
from penstock.errors import CheckpointFailedError, ConfigError, FencedError, PenstockError, UnavailableError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.ownership.claim import Claimant, newest_run, read_descents, read_run
from penstock.ownership.holds import ANY, HOLD_S, put_hold, release_hold
from penstock.recovery.cleanup import forget_everything
from penstock.recovery.history import read_history, read_newest
from penstock.recovery.restore_plan import RestorePlan
from penstock.storage import Storage
from penstock.testing.faulty_storage import SimulatedCrash
from penstock.testing.simulation.audit import Audit
from penstock.testing.simulation.driver import EXPECTED_FAILURES
from penstock.testing.simulation.lifeline import Fate, Lifeline, SimulatedProcess, Violation, WatchedStorage
from penstock.testing.simulation.simulated_run import SimulatedRun
from penstock.testing.simulation.site import Conditions, Site
from penstock.testing.simulation.workload import Intervention, ScriptedSource, Workload
from penstock.testing.virtual import VirtualObjectStore


class Reader:
    """One reading, from its hold to the last file."""

    def __init__(self, site: Site, token: str, rng: random.Random) -> None:
        self._site = site
        self._token = token
        self._lifeline = Lifeline(Fate(pauses_before=1))
        self._storage = WatchedStorage(site.storage, self._lifeline, rng)
        self._holds = False
        self._chosen = ANY, 0
        self._there_was_one = bool(read_history(site.storage, read_descents(site.storage)).whole)
        self.read: list[CheckpointId] = []
        """The checkpoints that it has begun to read."""
        self._process = SimulatedProcess(self._work, self._lifeline)
        self._process.start()

    @property
    def alive(self) -> bool:
        """Whether it has more to do."""
        return self._process.alive

    def renew(self) -> None:
        """Its hold is good for as long as it lives."""
        if self._holds and self.alive:
            checkpoint, run = self._chosen
            put_hold(self._site.storage, self._token, self._site.clock.wall(), checkpoint=checkpoint, run=run)

    def go_on(self, calls: int | None) -> None:
        """Let it make this number of further I/O calls (None: no limit); raises `Violation` if what it held was not kept."""
        self._process.go_on(calls)
        failure = self._process.failure
        if isinstance(failure, ConfigError) and not self._there_was_one:
            return  # there was no checkpoint to read
        if failure is not None:
            raise Violation(
                f"a reader with a hold has begun with {self.read}, and failed: {type(failure).__name__}: {failure}"
            ) from failure

    def choose(self) -> None:
        """Let it come so far that it knows what it reads, and has read nothing."""
        while self.alive and not self.read:
            self.go_on(1)

    def die(self) -> None:
        """End it where it stands: its hold is left to end by itself."""
        self._process.kill()

    def _work(self) -> None:
        put_hold(self._storage, self._token, self._site.clock.wall())
        self._holds = True
        try:
            read_newest(self._storage, self._read, self._only)
        finally:
            self._holds = False
        release_hold(self._storage, self._token)

    def _only(self, checkpoint: int, run: int) -> None:
        self._chosen = checkpoint, run
        put_hold(self._storage, self._token, self._site.clock.wall(), checkpoint=checkpoint, run=run)

    def _read(self, completed: Completed) -> None:
        self.read.append(completed.id)
        for name in sorted(completed.files):
            self._storage.get(name)


CALLS_OF_A_CANCEL = 9
"""About how many I/O calls a run makes, so that a crash may hit any of them, or come after them."""


def far_back(site: Site) -> CheckpointId | None:
    """The oldest checkpoint that a person can choose, when there is a choice."""
    whole = read_history(site.storage, read_descents(site.storage)).whole
    return whole[0].id if len(whole) > 1 else None


def belongs_to(storage: Storage, claimant: Claimant) -> bool:
    """Whether the newest run of the job is one of this start."""
    owner = newest_run(storage)
    return bool(owner) and read_run(storage, owner).claimant == claimant.token


def forget(site: Site, claimant: Claimant, rng: random.Random) -> bool:
    """The driver that ran last is cancelled and forgets what is kept; it may die in the middle. Whether all is forgotten."""
    if not belongs_to(site.storage, claimant):
        _forget_in_vain(site, claimant)
        return False
    owner = newest_run(site.storage)
    dies_after = rng.choice([None, rng.randint(1, CALLS_OF_A_CANCEL)])
    storage = WatchedStorage(site.storage, Lifeline(Fate(dies_after=dies_after)), rng, flakiness=0.0)
    try:
        run = forget_everything(storage, site.clock.wall(), claimant)
    except SimulatedCrash:
        run = None
    if any(descent.run > owner for descent in read_descents(site.storage)):
        site.source.forget()  # a run that died continues from its checkpoint, without asking a source again
    if run is not None:
        _nothing_is_kept(site, run)
    return run is not None


def _forget_in_vain(site: Site, claimant: Claimant) -> None:
    """A zombie that stood still before its first claim has taken the job since: its driver keeps it, with all that there is."""
    before = site.storage.names()
    try:
        forget_everything(site.storage, site.clock.wall(), claimant)
    except FencedError:
        if site.storage.names() == before:
            return
    raise Violation("a driver that had lost the job was cancelled, and did not leave alone what is kept")


def _nothing_is_kept(site: Site, run: RunId) -> None:
    kept = [name for name in site.storage.names() if name.startswith(("chk-", "state/", "spark/"))]
    if kept:
        raise Violation(f"run {run} has forgotten everything, and there are {kept}")


MOST_RUNS = 60
ZOMBIE_MOVES = 0.08
"""How likely a zombie moves at an I/O call of the run that replaced it."""
READER_MOVES = 0.1
READER_DIES = 0.001
"""The same for a reader with a hold, and for its death."""

RESTARTED = (UnavailableError, CheckpointFailedError)
"""After these a living driver starts its next run by itself."""


class World:
    """Runs one workload. `fates` are those of the first runs; without them troubled runs get a random one."""

    def __init__(self, workload: Workload, seed: int, root: Path, fates: Sequence[Fate] = ()) -> None:
        self._workload = workload
        self._seed = seed
        self._rng = self._random("world")
        source = ScriptedSource(workload.partitions, workload.records, workload.keys, self._random("source"))
        self.site = Site(workload, root, source)
        if workload.object_store:
            self.site.storage = VirtualObjectStore()
        self.audit = Audit(self.site)
        self.site.listener = self.audit
        self.site.on_restored = self._restored
        self.site.external.before_visible = self.audit.visible
        self.site.external.checkpoints_decide = workload.promise is Mode.EXACTLY_ONCE
        self._fates = list(fates)
        self._zombies: dict[SimulatedProcess, SimulatedRun] = {}
        self._restarts = self._random("restarts")
        self._reading = self._random("readers")
        self._reader: Reader | None = None
        self._finished = False
        """Whether the input is processed. Later runs only check that nothing is left, without readers."""
        self.readings = 0
        """How many readers there were so far."""
        self.reads_before: int | None = None
        """If set, a reader with a hold chooses its checkpoint before this I/O call of the first run, and reads it in the end."""
        self._forgotten = False
        self._living: Claimant | None = None
        """Of a driver that lives on although its last run has failed."""
        self._last: Claimant | None = None
        """Of the driver that ran last and can be cancelled: what a crash leaves is more than what an orderly end does."""
        self.calls: list[list[str]] = []
        """The I/O calls of each run."""
        self.log: list[str] = []
        """How each run ended."""

    def live(self) -> None:
        """Let the job come to its end, check everything, and check that one more start changes nothing."""
        index = self._until_finished()
        if not self.site.disturbed and index >= self._workload.troubled_runs:
            self.audit.nothing_left_over()
        self._let_zombies_finish()
        self._let_the_reader_finish()
        self.audit.finished()
        visible = list(self.site.external.visible)
        self.site.orphans.clear()
        if not self._run(max(index + 1, self._workload.troubled_runs), Fate()):
            raise Violation("a job whose input is done does not end when it is started again")
        self.audit.finished()
        self.audit.nothing_left_over()
        # others are due by then
        if list(self.site.external.visible) != visible and not self._workload.timers:
            raise Violation("starting a finished job again changed its output")

    def _until_finished(self) -> int:
        for index in range(MOST_RUNS):
            if self._run(index, self._fate(index)):
                return index
            self.audit.whole_checkpoints()
        raise Violation(f"the job is not finished after {MOST_RUNS} runs: {self.log}")

    # ── one run ────────────────────────────────────────────────────────────────────────────────

    def _run(self, index: int, fate: Fate) -> bool:
        lifeline = Lifeline(fate, self._disturb)
        self.calls.append(lifeline.calls)
        self.site.disturbed = self.readings > 0  # files with a hold may be left over
        wanted = self._intervene(index)
        restarting = self._restarting() if wanted is None else None
        run = SimulatedRun(self.site, self._conditions(index), lifeline, restarting, wanted)
        if fate.pauses_before is not None:
            process = SimulatedProcess(run.live, lifeline)
            process.start()
            if process.alive:
                lifeline.on_call = None
                self._zombies[process] = run
                self.log.append(f"run {index} stands still before {lifeline.calls[-1]}")
                return False
            failure = process.failure
        else:
            failure = _failure_of(run)
        self._judge(index, failure)
        if restarting and isinstance(failure, FencedError) and belongs_to(self.site.storage, restarting):
            raise Violation(
                f"run {index} is a restart of the driver that has the job, and is fenced: {failure}"
            )
        self._living = run.claimant if isinstance(failure, RESTARTED) else None
        self._last = None if isinstance(failure, FencedError) else run.claimant
        return run.finished

    def _intervene(self, index: int) -> CheckpointId | None:
        """Perform the intervention before this run; returns the checkpoint to continue from, if one is chosen."""
        last, self._last = self._last, None
        # which may subsume what is chosen, as long as they have the job
        match self._workload.intervention(index):
            case Intervention.GO_FAR_BACK if not self._zombies:
                return far_back(self.site)
            case Intervention.FORGET if last and last.has_claimed:
                self._living = None
                all_of_it = forget(self.site, last, self._restarts)
                self._forgotten = self._forgotten or all_of_it
                what = "everything is forgotten" if all_of_it else "a person tries to delete all state"
                self.log.append(f"{what} before run {index}")
        return None

    def _restarting(self) -> Claimant | None:
        """The driver of the last run, if it starts the next one."""
        living, self._living = self._living, None
        lives_on = living and living.has_claimed and self._restarts.random() < self._workload.restarts
        return living if lives_on else None

    def _judge(self, index: int, failure: BaseException | None) -> None:
        self.log.append(
            f"run {index}: {type(failure).__name__}: {failure}" if failure else f"run {index} ended"
        )
        if failure is not None and not isinstance(failure, (SimulatedCrash, *EXPECTED_FAILURES)):
            raise failure

    def _conditions(self, index: int) -> Conditions:
        work = self._workload
        troubled = index < work.troubled_runs
        return Conditions(
            index=index,
            rng=self._random(f"run {index}"),
            troubled=troubled,
            drops_attempts=work.mischief,
            mischief=work.mischief if troubled else 0.0,
            flakiness=work.flakiness if troubled else 0.0,
            lost_answers=work.lost_answers if troubled else 0.0,
            alone=not self._zombies and not self.site.orphans,
        )

    def _fate(self, index: int) -> Fate:
        if index < len(self._fates):
            return self._fates[index]
        if self._fates or index >= self._workload.troubled_runs:
            return Fate()
        call = self._rng.randint(1, self._rng.choice([15, 60, 300]))
        kinds = [Fate(), Fate(dies_before=call), Fate(dies_after=call), Fate(pauses_before=call)]
        return self._rng.choices(kinds, [1, 2, 2, 3])[0]

    def _restored(self, point: RestorePlan) -> None:
        if self._forgotten and point.id != NO_CHECKPOINT:
            raise Violation(f"all state was deleted, but run {point.run} continues from {point.id}")
        self._forgotten = False
        self.audit.restored(point, undisturbed=not self.site.disturbed)

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed} {purpose}")  # noqa: S311 - replayable on purpose

    # ── zombies ────────────────────────────────────────────────────────────────────────────────

    def _disturb(self) -> None:
        """Called at every I/O call of the run that owns the job: sometimes a run thought dead moves, or a reader."""
        self._read_on()
        if not self._zombies:
            return
        zombie = self._rng.choice(list(self._zombies))
        wakes_at = zombie.lifeline.fate.wakes_at
        if wakes_at is not None and len(self.calls[-1]) == wakes_at:
            self._let_move(zombie, None)
        elif wakes_at is None and self._rng.random() < ZOMBIE_MOVES:
            self._let_move(zombie, self._rng.choice([1, 2, 5, 25]))

    def _let_move(self, zombie: SimulatedProcess, calls: int | None) -> None:
        self.site.disturbed = True
        zombie.go_on(calls)
        self._look_whether_it_ended(zombie)
        self.audit.history_is_kept()

    def _look_whether_it_ended(self, zombie: SimulatedProcess) -> None:
        if zombie.alive:
            return
        run = self._zombies.pop(zombie)
        self.log.append(f"a zombie ended: {type(zombie.failure).__name__}: {zombie.failure}")
        harmless = (SimulatedCrash, PenstockError, FileNotFoundError)
        if zombie.failure is not None and not isinstance(zombie.failure, harmless):
            raise zombie.failure
        if isinstance(zombie.failure, RESTARTED):
            self._let_restart(run.claimant)

    def _let_restart(self, claimant: Claimant) -> None:
        """A zombie whose run failed starts another one, and must learn that the job is not its own any more."""
        if not claimant.has_claimed or belongs_to(self.site.storage, claimant):
            return  # no other run has taken over yet: this driver dies now
        conditions = replace(self._conditions(MOST_RUNS), alone=False)
        try:
            SimulatedRun(self.site, conditions, Lifeline(), claimant).live()
        except FencedError as fenced:
            self.log.append(f"its restart: {fenced}")
            return
        raise Violation("a driver that had lost the job took it back by a restart")

    def _let_zombies_finish(self) -> None:
        while self._zombies:
            self._let_move(next(iter(self._zombies)), None)

    # ── readers ────────────────────────────────────────────────────────────────────────────────

    def _read_on(self) -> None:
        likely = self._workload.readers
        if self._finished:
            return
        if len(self.calls) == 1 and len(self.calls[0]) == self.reads_before:
            self._begin_to_read().choose()
        elif self._reader is not None:
            self._let_read(self._reader)
        elif likely and self._reading.random() < likely:
            self._begin_to_read()
        if self._reader is not None and not self._reader.alive:
            self._reader = None

    def _begin_to_read(self) -> Reader:
        self.site.disturbed = True
        self.readings += 1
        self._reader = Reader(self.site, f"{self.readings:x}", self._reading)
        return self._reader

    def _let_read(self, reader: Reader) -> None:
        rng = self._reading
        reader.renew()
        if self.reads_before is not None:
            return  # it stands still until the job has ended
        if rng.random() < READER_DIES:
            reader.die()
        elif rng.random() < READER_MOVES:
            reader.go_on(rng.choice([1, 1, 2, 15]))

    def _let_the_reader_finish(self) -> None:
        self._finished = True
        if self._reader is not None:
            self._reader.go_on(None)
            self._reader = None
        if self.readings:
            self.site.clock.advance(HOLD_S)  # those that died hold nothing any more

    def close(self) -> None:
        """End what still stands still."""
        if self._reader is not None:
            self._reader.die()
        for zombie in self._zombies:
            zombie.kill()


def _failure_of(run: SimulatedRun) -> BaseException | None:
    try:
        run.live()
    except (SimulatedCrash, *EXPECTED_FAILURES) as failure:
        return failure
    return None
