"""Runs a started job: one run after the other, restarts after failures, and requests from outside. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.checkpoint.metadata import found_checkpoints
from penstock.clock import SYSTEM_CLOCK, Stopwatch
from penstock.config import OnCancel, choice
from penstock.dashboard.web_server import ServerProcess, start_server_process
from penstock.errors import JobFailedError, is_final
from penstock.guarantee import Guarantee
from penstock.ids import NO_CHECKPOINT, SYSTEM_RANDOMNESS, CheckpointId, RunId
from penstock.job_spec import JobSpec
from penstock.log_fields import about, in_context, of_job
from penstock.ownership.claim import Claim, Claimant
from penstock.ownership.heartbeat import beating, refuse_if_running
from penstock.ownership.job_record import JobRecord, job_record_of, keep_job_record, record_key_groups
from penstock.ownership.runs import RunEnds, RunOutcome, earlier_attempts
from penstock.places import safe_text
from penstock.recovery.cleanup import forget_everything
from penstock.recovery.restart import Failure, would_come_again
from penstock.recovery.start import start_run
from penstock.requests.job_actions import LAST_MOMENT_S, JobActions
from penstock.requests.request_files import LONGEST_ERROR, Facts, Kind, Request
from penstock.requests.request_server import LOOK_S, LocalRequests, RequestServer
from penstock.savepoint.manifest import Manifest
from penstock.savepoint.restore import GivenSavepoint, given_savepoint, restore_savepoint
from penstock.spark.compiled import Compiled, compile_job, plan_of, spec_of
from penstock.spark.failure_messages import (
    add_next_step,
    failed_for_good,
    repeated_failure,
    restart_line,
    retries_start,
    why_final,
    why_restarted,
)
from penstock.spark.inspection import guarantee_of
from penstock.spark.local_session import is_alive
from penstock.spark.positions import LatestPositions, check_log_positions
from penstock.spark.query import QueryRun
from penstock.spark.quiet_logs import quiet_logs, quiet_logs_for
from penstock.spark.tasks import run_restore_tasks
from penstock.start_options import StartOptions
from penstock.state.local_files import forget_earlier_runs, job_dir, make_job_dir, run_dir
from penstock.status import sentences
from penstock.status.listeners import Listeners
from penstock.status.live import Status
from penstock.status.reporter import STARTING, STOPPING, JobReporter
from penstock.storage import Storage
from penstock.supervise.channel import ProgramReport, supervised_by, supervisor
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)


class JobRunner:
    """One start of a job. `JobHandle` is the user's view of it."""

    def __init__(
        self,
        job: Job,
        compiled: Compiled,
        spec: JobSpec,
        guarantee: Guarantee,
        options: StartOptions,
        *,
        savepoint: GivenSavepoint | None,
        record: JobRecord,
        page: ServerProcess | None = None,
    ) -> None:
        self.job = job
        self._guarantee = guarantee
        self.compiled = compiled
        self._spec = spec
        self._options = options
        self._savepoint = savepoint
        self._keep_record = partial(keep_job_record, spec.storage, record)
        self._restore = options.restore
        self._stopping = threading.Event()
        self.ended = threading.Event()
        self._cancelled = False
        self._forgetting = False
        self._met = Failure()
        self._not_up: BaseException | None = None
        """Why the first run could not start, until it is handled as any failure."""
        self.status = Status.RUNNING
        self.failure: BaseException | None = None
        self._claimant = Claimant(supervisor=supervised_by())
        plan = plan_of(job, compiled, guarantee, available_now=options.available_now)
        self.reporter = JobReporter(
            spec.storage,
            self._claimant,
            plan,
            status=self._doing,
            coordinator=self.coordinator,
            listeners=Listeners(options.listeners),
            page=page,
            shows_rows=spec.shows_rows,
        )
        self.observer = self.reporter.observer
        self._ends = RunEnds(spec.storage, self._claimant, self._newest_checkpoint)
        self._latest = LatestPositions(compiled.session, job.graph.sources)
        self.run: QueryRun | None = None
        self.actions = JobActions(
            spec.storage,
            self._claimant,
            present=self._present_loop,
            stop=self._stopping.set,
            cancel=self.begin_to_cancel,
            on_savepoint=self.observer.savepoint_made,
        )
        self._request_server = RequestServer(
            spec.storage,
            self._claimant,
            self.actions,
            in_background=self._in_background,
            apart=self._apart,
            on_taken=self.observer.asked,
            on_answered=self.observer.answered,
        )
        self.local_requests = LocalRequests(self.observer.asked, self.observer.answered)
        self._helpers: list[threading.Thread] = []
        """Threads that work on requests."""
        self._thread = threading.Thread(target=self._work, name=f"penstock-{job.name}", daemon=True)

    @classmethod
    def start(cls, job: Job, options: StartOptions) -> JobRunner:
        """Check everything, take the job over, and run it in the background. See `Job.start`."""
        savepoint = given_savepoint(job.storage, options.savepoint, claim=options.claim)
        job.storage.check_place()
        if (watching := supervisor()) is not None:
            watching.say(ProgramReport(storage=job.storage.uri))
        if options.restore is not None or options.takeover:
            options = options.without_done_actions(earlier_attempts(job.storage, supervised_by()))
        if not options.takeover:  # an early check, before Spark does any work; it is repeated later
            refuse_if_running(job.storage, SYSTEM_CLOCK.wall())
        with ExitStack() as if_refused:
            pages = options.pages
            page = None if pages is None else start_server_process(job.storage, job.name, pages)
            if page is not None:
                if_refused.callback(page.close)
                sentences.LIFE.info("job %s has its pages at %s", job.name, page.opening_address)
            runner = cls._made(job, options, savepoint, page)
            runner._begin()
            if_refused.pop_all()
        return runner

    @classmethod
    def _made(
        cls, job: Job, options: StartOptions, savepoint: GivenSavepoint | None, page: ServerProcess | None
    ) -> JobRunner:
        guarantee = guarantee_of(job)
        with quiet_logs_for(job.graph.sources):
            compiled = compile_job(job.graph)
        check_log_positions(job.graph.sources, options.changes, savepoint)
        job.storage.check_writable()
        make_job_dir(job_dir(job.local_dir, job.name, job.storage.uri))
        record = job_record_of(
            job.storage,
            JobRecord(job.name, job.max_parallelism),
            may_have_other_groups=savepoint is not None,
        )
        spec = spec_of(job, compiled, record.owner)
        return cls(job, compiled, spec, guarantee, options, savepoint=savepoint, record=record, page=page)

    def _begin(self) -> None:
        of_job(self._spec.name)
        self._request_server.close()  # a call of a sink may never return: a cancel is accepted even while the first run starts
        threading.Thread(
            target=in_context(self._look_for_requests), name="penstock-requests", daemon=True
        ).start()
        try:
            self.run = self._prepared_run()
        except BaseException as error:
            if retries_start(error):
                self._not_up = error
            else:
                self.status = Status.FAILED
                self._ends.ended(
                    RunOutcome.FAILED, error
                )  # otherwise the next start finds a job that seems to run
                self._answer_open_requests(error)
                self.reporter.ended(self.status.value, error)
                self.ended.set()
                raise
        self._request_server.open()
        self._thread.start()

    # ── ending it ──────────────────────────────────────────────────────────────────────────────

    def begin_to_cancel(self) -> None:
        """End without a last checkpoint, and delete what `checkpoint.on_cancel` says. Returns at once."""
        self._forgetting = True
        self.end_now()

    def end_now(self) -> QueryRun | None:
        """End without a last checkpoint, and delete nothing. Returns the current run, which may take a while to end."""
        self._cancelled = True
        self.actions.end_now()
        run = self.run
        if run is not None:
            run.cancel()
        self._stopping.set()
        return run

    # ── the loop around the runs ───────────────────────────────────────────────────────────────

    def _prepared_run(self) -> QueryRun:
        if (
            not self._claimant.has_claimed and not self._options.takeover
        ):  # again, because this may be long after the first check
            refuse_if_running(self._spec.storage, SYSTEM_CLOCK.wall(), self._claimant.token)
        savepoint = self._adopt_savepoint()
        if not self._claimant.has_claimed:
            self.observer.found(found_checkpoints(self._spec.storage))
        watch = Stopwatch()
        start = start_run(
            self._spec,
            self._options.changes,
            claimant=self._claimant,
            clock=SYSTEM_CLOCK,
            run_tasks=partial(run_restore_tasks, self.compiled.session),
            wanted=self._restore,
            latest=self._latest,
            on_restored=self.observer.restored,
            alive=_alive,
            before_claim=self._keep_record,
            given_up=lambda: self._cancelled,
        )
        if (
            self._savepoint is not None
        ):  # a crash may have come before the restore of the savepoint had done it
            record_key_groups(start.plan.claim, self._spec.max_parallelism)
        now = SYSTEM_CLOCK.wall()
        self.reporter.run_began(start.plan, watch.seconds, savepoint)
        sentences.LIFE.info(
            sentences.started(self._spec.name, self._spec.parallelism, self._guarantee, start.plan, now)
        )
        self._restore = None  # later attempts continue from the newest checkpoint
        return QueryRun(
            self.job,
            self.compiled,
            self._spec,
            start,
            self.observer,
            available_now=self._options.available_now,
            stopping=self._stopping,
            drain=self._options.drain,
            actions=self.actions,
        )

    def _adopt_savepoint(self) -> str:
        """Restore the savepoint, once for this start, before its first run. Returns its folder if this start restored it."""
        savepoint = self._savepoint
        if savepoint is None or self._claimant.has_claimed:
            return ""
        sentences.LIFE.info(sentences.given(self._spec.name, savepoint.folder.uri, savepoint.manifest))
        done = restore_savepoint(
            self._spec,
            savepoint,
            self._options.changes,
            clock=SYSTEM_CLOCK,
            run_tasks=partial(run_restore_tasks, self.compiled.session),
            latest=self._latest,
            rekey=self._rekey,
            token=self._claimant.token,
            alive=_alive,
            before_claim=self._keep_record,
        )
        sentences.LIFE.info(sentences.adopted(self._spec.name, now=done))
        return savepoint.folder.uri if done else ""

    def _rekey(self, savepoint: GivenSavepoint, to: Storage, max_parallelism: int) -> Manifest:
        from penstock.spark.savepoint_rewriting import rekeyed

        return rekeyed(self.compiled.session, savepoint.folder, savepoint.manifest, to, max_parallelism)

    def _work(self) -> None:
        met: BaseException | None = None
        with ExitStack() as at_last:  # whatever reporting raises, the pages end, and no caller waits forever
            at_last.callback(self.ended.set)
            at_last.callback(lambda: self.reporter.ended(self.status.value, met or self.failure))
            met = self._worked()
            self._report_end(met)

    def _worked(self) -> BaseException | None:
        """Run until the job ends. Returns the error that it ended with, if any."""
        try:
            with quiet_logs(self.compiled.session):
                met = self._run_until_done()
        except BaseException as error:  # noqa: BLE001 - `JobHandle.wait` raises it
            self.status, self.failure = Status.FAILED, error
            _log.debug("job %s failed for good", self.job.name, exc_info=error)
            self.reporter.run_failed(error, None, why_final(error))
            add_next_step(error, self.observer.progress)
            return error
        self.status = self._ended_as()
        return met

    def _report_end(self, met: BaseException | None) -> None:
        self._finish_helpers()
        self._ends.ended(RunOutcome(self.status.value), met)
        self._answer_open_requests(met)
        sentences.LIFE.info(sentences.ended(self.job.name, self.status.value, self.observer.progress))
        self._log_open_event_time()

    def _doing(self) -> str:
        if self.status is not Status.RUNNING:
            return str(self.status.value)
        if self._stopping.is_set():
            return STOPPING
        if not self.observer.is_coming_up:
            return Status.RUNNING.value
        return Status.RESTARTING.value if self.observer.progress.restarts else STARTING

    def _newest_checkpoint(self, run: RunId) -> CheckpointId:
        progress = self.observer.progress
        return CheckpointId(progress.checkpoint) if progress.run == run else NO_CHECKPOINT

    def coordinator(self) -> Coordinator | None:
        """The coordinator of the current run."""
        loop = self._present_loop()
        return None if loop is None else loop.coordinator

    def _log_open_event_time(self) -> None:
        if self.status not in (Status.FINISHED, Status.STOPPED):
            return
        drainable = self.status is Status.FINISHED and not self._options.drain
        left = sentences.event_time_left(self.job.name, self.observer.progress, drainable=drainable)
        if left:
            sentences.LIFE.info(left)

    # ── what others ask for ────────────────────────────────────────────────────────────────────

    def _look_for_requests(self) -> None:
        while not self.ended.wait(LOOK_S):
            self._request_server.look()

    def _present_loop(self) -> CoordinatorLoop | None:
        run = self.run
        return None if run is None else run.loop

    def _in_background(self, work: Callable[[], None]) -> None:
        helper = threading.Thread(target=in_context(work), name="penstock-savepoint", daemon=True)
        self._helpers = [*(one for one in self._helpers if one.is_alive()), helper]
        helper.start()

    def _apart(self, work: Callable[[], None]) -> None:
        threading.Thread(target=in_context(work), name="penstock-stop", daemon=True).start()

    def _finish_helpers(self) -> None:
        """Wait for the threads of requests. A savepoint that is being written is finished, or given up if the job ends now.

        Checkpoints are no longer waited for. Only a cancel is still accepted: the end of the job is decided, and no new thread may start.
        """
        self._request_server.close()
        self.actions.no_further_run()
        for helper in self._helpers:
            while helper.is_alive() and not self._cancelled:
                helper.join(LOOK_S)
        watch = Stopwatch()
        for helper in self._helpers:
            helper.join(max(0.0, LAST_MOMENT_S - watch.seconds))

    def _answer_open_requests(self, met: BaseException | None) -> None:
        facts: Facts = {"status": self.status.value, "checkpoint": self.observer.progress.checkpoint}
        facts |= {} if met is None else {"failing": safe_text(f"{type(met).__name__}: {met}")[:LONGEST_ERROR]}
        facts |= self.actions.how_to_stop.made or {}
        self._request_server.ended(facts, self._why_not)
        self.local_requests.ended(facts, self._why_not)

    def _why_not(self, request: Request) -> BaseException | None:
        """Why the job did not end as requested."""
        if request.kind is Kind.CANCEL and self._cancelled:
            return None
        cancelled = self.status is Status.CANCELLED
        failed = (
            self.actions.why_the_stop_failed(request, cancelled=cancelled)
            if request.kind is Kind.STOP
            else None
        )
        made = self.actions.how_to_stop.made
        if self.failure is None or (request.savepoint and made is not None):
            return failed
        return self.failure

    def _ended_as(self) -> Status:
        if self._cancelled:
            return Status.CANCELLED
        return Status.STOPPED if self._stopping.is_set() else Status.FINISHED

    def _run_until_done(self) -> Exception | None:
        """Run until the job ends. Returns the last failure if the job was stopped or cancelled after it; raises a final failure."""
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
                    _log.warning(
                        "job %s is cancelled while it fails: %s", self.job.name, safe_text(str(error))
                    )
                    failed = error
                    break
                self.observer.has_failed()
                failures.append(SYSTEM_CLOCK.monotonic())
                met.append(self._met)
                self._give_up_if_repeated(error, met, failures)
                self._restart_or_give_up(error, self.job.restart.delay_s(failures, SYSTEM_RANDOMNESS), met)
                if self._stopping.is_set():
                    _log.warning(
                        "job %s is stopped while it goes back: there is no last checkpoint, the next start goes on from the one before. It "
                        "had failed with: %s",
                        *(self.job.name, safe_text(str(error))),
                    )
                    failed = error
                    break
            else:
                break
        if self._forgetting:
            self._delete_if_requested(failed)
        return failed

    def _check_spark(self, error: Exception) -> None:
        """Fail if Spark is gone: without a session every restart would fail, and the job would look alive forever."""
        if not is_alive(self.compiled.session):
            raise JobFailedError(
                f"job {self.job.name} cannot restart, Spark is gone: the session was stopped or its JVM died ({error}); "
                "start the program again, the job goes on from its last checkpoint"
            ) from error

    def _attempt(self) -> None:
        self._met = Failure()
        not_up, self._not_up = self._not_up, None
        if not_up is not None:
            raise not_up
        if self.run is None:
            self.run = self._prepared_run()
            self.status = Status.RUNNING
        if self._cancelled:  # requested while it was being prepared, when there was no run to cancel
            self.run.cancel()
        run = self.run
        try:
            run.run()
        finally:
            self._met = run.met
            self.run = None

    def _give_up_if_repeated(self, error: Exception, met: list[Failure], times_s: list[float]) -> None:
        if not self.job.restart.counts_attempts and would_come_again(
            met, times_s, available_now=self._options.available_now
        ):
            raise repeated_failure(self.job.name, error, met)

    def _restart_or_give_up(self, error: Exception, delay_s: float | None, met: list[Failure]) -> None:
        if delay_s is None:
            why = f"After {counted(len(met), 'failure')} the restart strategy {self.job.restart} allows no further restart."
            raise failed_for_good(self.job.name, error, why, failures=len(met))
        met_before = bool(met[-1].cause) and met[-1] in met[:-1]
        _log.warning(
            "%s",
            restart_line(self.job.name, error, delay_s, self.observer.progress, met_before=met_before),
            extra=about(checkpoint=self.observer.progress.checkpoint, error=error),
        )
        self.reporter.run_failed(error, delay_s, why_restarted(str(self.job.restart), len(met), delay_s))
        self._ends.restarted(error)
        self.status = Status.RESTARTING
        self.observer.restarting()
        self._ends.pause(delay_s, self._stopping)

    def _delete_if_requested(self, failed: Exception | None) -> None:
        on_cancel = choice("checkpoint.on_cancel", self.job.checkpoint.on_cancel, OnCancel)
        if on_cancel is OnCancel.DELETE_ON_CANCELLATION and self._claimant.has_claimed:
            storage = self.job.storage
            self._ends.ended(RunOutcome.CANCELLED, failed)  # deleting is a run of its own
            run = forget_everything(storage, SYSTEM_CLOCK.wall(), self._claimant)
            forget_earlier_runs(run_dir(job_dir(self.job.local_dir, self.job.name, storage.uri), run))


def _alive(mine: Claim) -> AbstractContextManager[None]:
    return beating(mine.storage, mine.run, SYSTEM_CLOCK)
