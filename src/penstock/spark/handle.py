"""A running job in the user's hand, and the loop that brings it back after a failure. Driver."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Duration, OnCancel, choice, seconds
from penstock.engine import story
from penstock.engine.adopting import Savepoint, adopt
from penstock.engine.answering import LOOK_S, Answering
from penstock.engine.deeds import JobDeeds
from penstock.engine.job_spec import JobSpec
from penstock.engine.observer import Observer, Progress
from penstock.engine.run_ends import RunEnds
from penstock.engine.start import check_fits, start_run
from penstock.errors import ConfigError, JobFailedError, shown_alone
from penstock.guarantee import Guarantee
from penstock.ownership.claim import Claimant
from penstock.ownership.descent import read_descents
from penstock.ownership.ends import How
from penstock.ownership.heartbeat import beating, refuse_if_running
from penstock.ownership.requests import LONGEST_ERROR, Facts, Kind, Request
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.recovery.changes import Changes
from penstock.recovery.forget import forget_everything
from penstock.recovery.history import read_history
from penstock.recovery.repeated import Failure, times_in_a_row, would_come_again
from penstock.recovery.restore import JobRecord, check_job_record
from penstock.savepoint.manifest import Manifest
from penstock.spark.compiled import Compiled, compile_job, spec_of
from penstock.spark.inspection import guarantee_of
from penstock.spark.latest_positions import LatestPositions
from penstock.spark.query import QueryRun
from penstock.spark.quiet_logs import quiet_logs, quiet_logs_for
from penstock.spark.session import is_alive
from penstock.spark.tasks import take_over_all
from penstock.spark.verdicts import add_what_follows, given_up, is_final, may_come_up, restart_line
from penstock.state.local_files import forget_earlier_runs, job_dir, make_job_dir, run_dir
from penstock.storage import Storage
from penstock.wording import counted, storable

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)


class Status(enum.Enum):
    """Where a job is in its life."""

    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class StartOptions:
    """What a start was asked for, see `Job.start`."""

    available_now: bool = False
    restore: int | None = None
    takeover: bool = False
    drop_state: tuple[str, ...] = ()
    drain: bool = False
    savepoint: Savepoint | None = None
    changes: Changes = field(default_factory=Changes)


class JobHandle:
    """Returned by `Job.start`."""

    def __init__(
        self, job: Job, compiled: Compiled, spec: JobSpec, guarantee: Guarantee, options: StartOptions
    ) -> None:
        self._job = job
        self._guarantee = guarantee
        self._compiled = compiled
        self._spec = spec
        self._options = options
        self._restore = options.restore
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._cancelled = False
        self._forgetting = False
        self._met = Failure()
        self._status = Status.RUNNING
        self._failure: BaseException | None = None
        self._observer = Observer()
        self._claimant = Claimant()
        self._ends = RunEnds(spec.storage, self._claimant, self._observer)
        self._latest = LatestPositions(compiled.session, job.graph.sources)
        self._run: QueryRun | None = None
        self._deeds = JobDeeds(
            spec.storage,
            self._claimant,
            present=self._present_loop,
            stop=self._stopping.set,
            cancel=self._begin_to_cancel,
        )
        self._answering = Answering(
            spec.storage, self._claimant, self._deeds, in_background=self._in_background
        )
        self._helpers: list[threading.Thread] = []
        """Threads that make what somebody has asked for."""
        self._thread = threading.Thread(target=self._work, name=f"penstock-{job.name}", daemon=True)

    @classmethod
    def start(cls, job: Job, options: StartOptions) -> JobHandle:
        """Check everything, take the job over, and run it in the background. See `Job.start`."""
        job.storage.check_place()
        if (
            not options.takeover
        ):  # a courtesy before Spark is asked for anything; looked at again when all else is right
            refuse_if_running(job.storage, SYSTEM_CLOCK.wall())
        guarantee = guarantee_of(job)
        with quiet_logs_for(job.graph.sources):
            compiled = compile_job(job.graph)
        job.storage.check_writable()
        make_job_dir(job_dir(job.local_dir, job.name, job.storage.uri))
        record = check_job_record(
            job.storage,
            JobRecord(job.name, job.max_parallelism),
            may_have_other_groups=options.savepoint is not None,
        )
        handle = cls(job, compiled, spec_of(job, compiled, record.owner), guarantee, options)
        try:
            handle._run = handle._prepared_run()
        except BaseException as error:
            if not may_come_up(error):
                handle._status = Status.FAILED
                handle._ends.ended(How.FAILED, error)  # or the next start is told that this one is running
                raise
            _log.warning("job %s cannot come up yet, it is tried again: %s", job.name, error)
            handle._ends.restarted(error)
        handle._thread.start()
        threading.Thread(target=handle._look_for_requests, name="penstock-requests", daemon=True).start()
        return handle

    # ── what the user can do ───────────────────────────────────────────────────────────────────

    @property
    def status(self) -> Status:
        """Where the job is in its life."""
        return self._status

    @property
    def progress(self) -> Progress:
        """What it has done so far."""
        return self._observer.progress

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, if it did."""
        return self._failure

    def wait(self, timeout: Duration | float | None = None) -> bool:
        """Wait for the end; True when it has come. Raises what made the job fail.

        `timeout` is a duration such as "30s", or seconds, as Python's own `wait` takes them.
        A signal handler that raises interrupts it, and it can be called again. (It waits for an event: a `Thread.join` that is
        interrupted takes the thread for dead, on CPython 3.11 and 3.12.)
        """
        if not self._ended.wait(_timeout_s(timeout)):
            return False
        if self._failure is not None:
            failure = shown_alone(self._failure)
            raise failure
        return True

    def stop(
        self, *, wait: bool = True, savepoint: str | Path | bool = False, drain: bool = False
    ) -> str | None:
        """End after the current batch, with a last checkpoint that is completed and committed. The next run goes on from there.

        `savepoint`: make one of that checkpoint, in this folder, or with True in a new one beside the job's; returns where it is.
        `drain`: event time comes to its end before, all windows close, all its timers fire.
        """
        token, wish = self._deeds.asked_here(Kind.STOP, 0.0, _folder(savepoint))
        self._deeds.stop(token, msgspec.structs.replace(wish, savepoint=savepoint is not False, drain=drain))
        if not wait:
            return None
        self.wait()
        failure = self._deeds.why_the_stop_failed()
        if failure is not None and (savepoint is not False or drain):
            raise shown_alone(failure)
        return None if savepoint is False else str((self._deeds.how_to_stop.made or {})["savepoint"])

    def savepoint(self, to: str | Path | None = None, *, timeout: Duration = "10min") -> str:
        """Make a savepoint of all that is processed by now, while the job goes on; returns the folder it is in.

        `to`: a folder that holds none yet; without it a new one beside the job's. `timeout`: for the checkpoint that it is made of.
        """
        token, wish = self._asked_here(Kind.SAVEPOINT, timeout, None if to is None else str(to))
        return str(self._deeds.savepoint(token, wish)["savepoint"])

    def trigger_checkpoint(self, *, timeout: Duration = "10min") -> int:
        """Complete a checkpoint of all that is processed by now, whatever the interval says; returns its number."""
        token, wish = self._asked_here(Kind.CHECKPOINT, timeout)
        return int(self._deeds.checkpoint(token, wish)["checkpoint"])

    def _asked_here(self, kind: Kind, timeout: Duration, to: str | None = None) -> tuple[str, Request]:
        if self._ended.is_set():
            raise ConfigError(
                f"the job {self._job.name} has ended ({self._status.value}): it makes no {kind} any more"
            )
        return self._deeds.asked_here(kind, seconds("timeout", timeout), to)

    def cancel(self) -> None:
        """End now, without a last checkpoint. What is kept is decided by `checkpoint.on_cancel`."""
        self._begin_to_cancel()
        self.wait()

    def _begin_to_cancel(self) -> None:
        self._forgetting = True
        self._end_now()

    def abandon(self, timeout: float) -> bool:
        """End now, in the middle of a batch, and forget nothing, as if the driver had died; whether it ended within the time."""
        run = self._end_now()
        if run is not None and is_alive(self._compiled.session):
            run.interrupt()
        return self._ended.wait(timeout)

    def _end_now(self) -> QueryRun | None:
        self._cancelled = True
        run = self._run
        if run is not None:
            run.cancel()
        self._stopping.set()
        return run

    def checkpoints(self) -> list[Completed]:
        """The completed checkpoints in storage, oldest first, with what every subtask measured."""
        storage = self._job.storage
        return read_history(storage, read_descents(storage)).whole

    # ── the loop around the runs ───────────────────────────────────────────────────────────────

    def _prepared_run(self) -> QueryRun:
        if (
            not self._claimant.has_claimed and not self._options.takeover
        ):  # also when it is long after the start
            refuse_if_running(self._spec.storage, SYSTEM_CLOCK.wall(), self._claimant.token)
        self._adopt_savepoint()
        start = start_run(
            self._spec,
            claimant=self._claimant,
            clock=SYSTEM_CLOCK,
            perform_all=partial(take_over_all, self._compiled.session),
            wanted=self._restore,
            drop_state=self._options.drop_state,
            changes=self._options.changes,
            latest=self._latest,
            on_restored=self._observer.restored,
        )
        now = SYSTEM_CLOCK.wall()
        story.LIFE.info(
            story.started(self._spec.name, self._spec.parallelism, self._guarantee, start.point, now)
        )
        self._restore = None  # later attempts go on from the newest checkpoint
        return QueryRun(
            self._job,
            self._compiled,
            self._spec,
            start,
            self._observer,
            available_now=self._options.available_now,
            stopping=self._stopping,
            drain=self._options.drain,
            deeds=self._deeds,
        )

    def _adopt_savepoint(self) -> None:
        """Once for this start, before its first run."""
        savepoint, dropped = self._options.savepoint, self._options.drop_state
        if savepoint is None or self._claimant.has_claimed:
            return
        story.LIFE.info(story.given(self._spec.name, savepoint.folder.uri, savepoint.manifest))
        done = adopt(
            self._spec,
            savepoint,
            clock=SYSTEM_CLOCK,
            perform_all=partial(take_over_all, self._compiled.session),
            check=lambda point: check_fits(self._spec, point, dropped, self._options.changes, self._latest),
            rekey=self._rekey,
            token=self._claimant.token,
            alive=lambda mine: beating(mine.storage, mine.run, SYSTEM_CLOCK),
            drop_state=dropped,
        )
        story.LIFE.info(story.adopted(self._spec.name, now=done))

    def _rekey(self, savepoint: Savepoint, to: Storage, max_parallelism: int) -> Manifest:
        from penstock.spark.savepoint_rewriting import rekeyed

        return rekeyed(self._compiled.session, savepoint.folder, savepoint.manifest, to, max_parallelism)

    def _work(self) -> None:
        met: BaseException | None
        try:
            with quiet_logs(self._compiled.session):
                met = self._run_until_done()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            _log.debug("job %s failed for good", self._job.name, exc_info=error)
            add_what_follows(error, self._observer.progress)
            self._status, self._failure = Status.FAILED, error
            met = error
        else:
            self._status = self._ended_as()
        try:
            self._let_helpers_end()
            self._ends.ended(How(self._status.value), met)
            self._answer_those_who_wait_for_the_end(met)
            story.LIFE.info(story.ended(self._job.name, self._status.value, self.progress))
            self._tell_what_is_open()
        finally:
            self._ended.set()

    def _tell_what_is_open(self) -> None:
        if self._status not in (Status.FINISHED, Status.STOPPED):
            return
        drainable = self._status is Status.FINISHED and not self._options.drain
        told = story.event_time_left(self._job.name, self.progress, drainable=drainable)
        if told:
            story.LIFE.info(told)

    # ── what others ask for ────────────────────────────────────────────────────────────────────

    def _look_for_requests(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._answering.look()

    def _present_loop(self) -> CoordinatorLoop | None:
        run = self._run
        return None if run is None else run.loop

    def _in_background(self, work: Callable[[], None]) -> None:
        helper = threading.Thread(target=work, name="penstock-savepoint", daemon=True)
        self._helpers = [*(one for one in self._helpers if one.is_alive()), helper]
        helper.start()

    def _let_helpers_end(self) -> None:
        """Who waits for a checkpoint need not; a savepoint that is being written is finished, unless all is to end now.

        Nothing more is taken on: how the job ends is decided, and there is to be no helper that nobody waits for.
        """
        self._answering.close()
        self._deeds.no_further_run()
        for helper in self._helpers if not self._cancelled else ():
            helper.join()

    def _answer_those_who_wait_for_the_end(self, met: BaseException | None) -> None:
        facts: Facts = {"status": self._status.value, "checkpoint": self.progress.checkpoint}
        facts |= {} if met is None else {"failing": storable(f"{type(met).__name__}: {met}")[:LONGEST_ERROR]}
        facts |= self._deeds.how_to_stop.made or {}
        failed = None if self._cancelled else self._failure or self._deeds.why_the_stop_failed()
        self._answering.ended(facts, failed)

    def _ended_as(self) -> Status:
        if self._cancelled:
            return Status.CANCELLED
        return Status.STOPPED if self._stopping.is_set() else Status.FINISHED

    def _run_until_done(self) -> Exception | None:
        """Returns what the last run had failed with when the job was stopped or cancelled; raises what it failed with for good."""
        failed: Exception | None = None
        failures: list[float] = []
        met: list[Failure] = []
        while True:
            try:
                self._attempt()
            except Exception as error:
                if is_final(error):
                    raise
                self._check_spark(error)
                if self._cancelled:
                    _log.warning("job %s is cancelled while it fails: %s", self._job.name, error)
                    failed = error
                    break
                failures.append(SYSTEM_CLOCK.monotonic())
                met.append(self._met)
                self._give_up_what_comes_again(error, met, failures)
                self._go_back_or_give_up(error, self._job.restart.delay_s(failures, SYSTEM_RANDOMNESS), met)
                if self._stopping.is_set():
                    _log.warning(
                        "job %s is stopped while it goes back: there is no last checkpoint, the next start goes on from the one before. It "
                        "had failed with: %s",
                        *(self._job.name, error),
                    )
                    failed = error
                    break
            else:
                break
        if self._forgetting:
            self._forget_if_asked(failed)
        return failed

    def _check_spark(self, error: Exception) -> None:
        """A restart needs the session: without it every attempt would fail, and the job would look alive for ever."""
        if not is_alive(self._compiled.session):
            raise JobFailedError(
                f"job {self._job.name} cannot restart, Spark is gone: the session was stopped or its JVM died ({error}); "
                "start the program again, the job goes on from its last checkpoint"
            ) from error

    def _attempt(self) -> None:
        self._met = Failure()
        if self._run is None:
            self._run = self._prepared_run()
            self._status = Status.RUNNING
        if self._cancelled:  # while it was being prepared, when there was no run to tell it to
            self._run.cancel()
        run = self._run
        try:
            run.run()
        finally:
            self._met = run.met
            self._run = None

    def _give_up_what_comes_again(self, error: Exception, met: list[Failure], times_s: list[float]) -> None:
        if self._job.restart.counts_attempts or not would_come_again(
            met, times_s, available_now=self._options.available_now
        ):
            return
        times = times_in_a_row(met)
        why = (
            f"It came {times} times in a row at the same place, in batch {met[-1].batch}: it is in the code or in the data. (A restart "
            "strategy with `attempts` tries as often as it says.)"
        )
        raise given_up(self._job.name, error, why, failures=len(met), batch=met[-1].batch)

    def _go_back_or_give_up(self, error: Exception, delay_s: float | None, met: list[Failure]) -> None:
        if delay_s is None:
            why = f"After {counted(len(met), 'failure')} the restart strategy {self._job.restart} allows no further restart."
            raise given_up(self._job.name, error, why, failures=len(met))
        met_before = bool(met[-1].cause) and met[-1] in met[:-1]
        _log.warning("%s", restart_line(self._job.name, error, delay_s, met_before=met_before))
        self._ends.restarted(error)
        self._status = Status.RESTARTING
        self._observer.restarting()
        self._ends.pause(delay_s, self._stopping)

    def _forget_if_asked(self, failed: Exception | None) -> None:
        on_cancel = choice("checkpoint.on_cancel", self._job.checkpoint.on_cancel, OnCancel)
        if on_cancel is OnCancel.DELETE_ON_CANCELLATION and self._claimant.has_claimed:
            storage = self._job.storage
            self._ends.ended(How.CANCELLED, failed)  # forgetting is a run of its own
            run = forget_everything(storage, SYSTEM_CLOCK.wall(), self._claimant)
            forget_earlier_runs(run_dir(job_dir(self._job.local_dir, self._job.name, storage.uri), run))


def _folder(savepoint: str | Path | bool) -> str | None:
    return None if isinstance(savepoint, bool) else str(savepoint)


def _timeout_s(timeout: Duration | float | None) -> float | None:
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool)):
        return timeout
    return seconds("timeout", timeout)
