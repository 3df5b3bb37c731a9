"""One attempt to run the job as a Spark query: passes its batches to `run.Run`, until the end or a failure. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.clock import SYSTEM_CLOCK, Stopwatch
from penstock.ids import CheckpointId, SparkBatch
from penstock.job_spec import JobSpec
from penstock.log_fields import of_job
from penstock.recovery.restart import Failure
from penstock.recovery.start import Start, forget_working_files, make_coordinator
from penstock.requests.job_actions import JobActions
from penstock.run import run
from penstock.run.assignment import Answer
from penstock.run.run import BatchUnderWay, Run
from penstock.snapshot.mailbox import Address, Mailbox, Message, TaskFailed, places
from penstock.snapshot.transfer import Room, in_background
from penstock.spark.batch_plans import BatchPlans, BatchRun
from penstock.spark.compiled import Compiled, with_settings
from penstock.spark.event_times import NewestTimes
from penstock.spark.failure_messages import BatchFailedError, cause_of, explained, ownership_failure
from penstock.spark.frames import merged_sources
from penstock.spark.log_source import set_paces, when_caught_up
from penstock.spark.plan_template import plain_log
from penstock.spark.query_reports import WAITING, EmptyBatches, IdleCheck, SourceRowCounts, in_group, waits
from penstock.spark.tasks import SparkExecutor
from penstock.status.observer import Observer
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)

LOG_WRITER = "spark.sql.streaming.checkpointFileManagerClass"
LONGEST_START_MS = 10_000
_one_start = threading.Lock()
"""Held while a session has a setting for the query that starts: another start would restore the wrong one."""
POLL_S = 0.1
BATCH_GRACE_S = 60.0
TICK_PAUSE_S = 0.25
"""If the job has a trigger, the driver waits this long after a batch for Spark's next one before it begins a tick."""
ACCOUNT_GRACE_S = 1.0
"""How long a stop waits for Spark's report on the last batch. Without it, its rows are not counted, and nothing else is lost."""


class QueryRun:
    """One run of the job, with its own fencing token. Each restart makes a new one; `run` is called once."""

    def __init__(
        self,
        job: Job,
        compiled: Compiled,
        spec: JobSpec,
        start: Start,
        observer: Observer,
        *,
        available_now: bool,
        stopping: threading.Event,
        drain: bool = False,
        actions: JobActions | None = None,
    ) -> None:
        self._job = job
        self._actions = actions
        self._compiled = compiled
        self._spec = spec
        self._start = start
        self._observer = observer
        self._available_now = available_now
        self._drain = drain
        self._stopping = stopping
        self._failure: BaseException | None = None
        self.met = Failure()
        """The failure, in a form that can be compared with later ones."""
        self._batch_lock = threading.Lock()
        self._closed = False
        self._cancelled = False
        self._given_up = False
        self._query: StreamingQuery | None = None
        self._plans = BatchPlans(compiled, spec)
        self._caught_up = threading.Event()
        self._read = SparkBatch(start.plan.last_read)
        """Spark's number of the last completed batch."""
        self._ended_s = SYSTEM_CLOCK.monotonic()
        """When the last batch ended."""
        self._input_rows = SourceRowCounts(after=start.plan.last_read, numbers=spec.source_numbers)
        self._unreported: dict[SparkBatch, tuple[CheckpointId, dict[str, float]]] = {}
        """Our number of a batch and our phases by Spark's number, for batches on which Spark has not reported yet."""
        self._loop = CoordinatorLoop(self._make_coordinator, claim=start.plan.claim, on_failure=self._fail)
        self._run = Run(
            spec,
            start,
            self._loop.coordinator,
            post=self._loop.post,
            clock=SYSTEM_CLOCK,
            observer=observer,
            in_background=in_background,
            room=Room(),
        )
        self._merged = merged_sources(job.graph.sources, self._plans.columns)
        self._empty = EmptyBatches(compiled.session, self._merged.schema)
        self._silence = IdleCheck(job.trigger_s or 0.0)
        self._mailbox = self._open_mailbox()

    def _make_coordinator(self, post: Post, run_commit: RunCommit) -> Coordinator:
        return make_coordinator(
            self._spec,
            self._start,
            clock=SYSTEM_CLOCK,
            post=post,
            run_commit=run_commit,
            listener=self._observer,
        )

    def _open_mailbox(self) -> Mailbox:
        context = self._compiled.session.sparkContext
        conf = context.getConf()
        driver_host, bind_address = conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress")
        bind, host = places(str(context.master), driver_host, bind_address)
        return Mailbox(bind, self._deliver, host=host)

    @property
    def loop(self) -> CoordinatorLoop:
        """The loop of the coordinator, for checkpoint requests."""
        return self._loop

    def rests(self) -> bool:
        """Whether Spark has looked at all sources since its last batch, found nothing, and is not looking now."""
        query = self._query
        if query is None or self._closed:
            return False
        status = query.status
        return waits(status) and not status["isDataAvailable"]

    def has_nothing_left(self) -> bool:
        """Whether it rests, and everything before is committed."""
        committed = self._loop.coordinator.newest_committed
        done = CheckpointId(self._run.next_batch - 1)
        return self.rests() and committed is not None and committed.id >= done

    # ── running ────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Run until the input ends (available_now), `stopping` is set, or something fails; then raise the failure."""
        of_job(self._spec.name)
        try:
            self._loop.start()
            self._finish_earlier_drain()
            if self._failure is None:
                self._run_query()
            if self._failure is None and not self._cancelled:
                self._loop.drain(self._run.look_after, lambda: self._cancelled)
                self._run.check_claim()
                if self._actions is not None and not self._cancelled and self._stopping.is_set():
                    self._actions.settled()
        except Exception as error:  # noqa: BLE001 - raised below, when everything is closed
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._plans.close()
            self._mailbox.close()  # first, because pending messages may name files that the coordinator has to discard
            self._run.close()
            self._loop.stop(lambda: self._cancelled)
            forget_working_files(self._spec, self._start)
        if self._failure is not None:
            raise ownership_failure(self._failure, self._run, self._spec.name)

    def _run_query(self) -> None:
        looked_us = self._run.time_us  # everything that has arrived by now is read
        self._query = query = self._start_query()
        try:
            self._watch(query)
            self._finish_input(looked_us)
        finally:
            self._close(query)
        if self._stopping.is_set() and self._actions is not None and self._actions.how_to_stop.drain:
            self._drain_after_stop(self._actions)

    def cancel(self) -> None:
        """End without a last checkpoint; the caller must set `stopping` next."""
        self._cancelled = True

    def interrupt(self) -> None:
        """Cancel the Spark jobs of the current batch, including retries of their tasks."""
        query, context = self._query, self._compiled.session.sparkContext
        if query is not None:
            context.cancelJobGroup(str(query.runId))
        context.cancelJobGroup(self._name)

    @property
    def _name(self) -> str:
        return f"{self._spec.name}-{self._start.plan.run}"

    def _deliver(self, message: Message) -> None:
        """Take a message. A failing task waits until this returns, so Spark cancels a hopeless batch before it sees the task fail."""
        self._run.deliver(message)
        if isinstance(message, TaskFailed) and self._run.is_hopeless and not self._given_up:
            self._given_up = True
            try:
                self.interrupt()
            except (
                Py4JError,
                OSError,
            ) as error:  # then Spark makes all its attempts, and the batch fails later
                _log.debug("batch %d could not be given up early: %s", message.batch, error)

    def _start_query(self) -> StreamingQuery:
        writer = (
            self._merged.writeStream.queryName(self._name)
            .option("checkpointLocation", self._start.log.location)
            .foreachBatch(self._on_batch)
        )
        frames = [source.frame for source in self._job.graph.sources]
        if set_paces(frames, available_now=self._available_now):
            query = self._started(writer)
            when_caught_up(query, self._caught_up.set)
            return query
        if self._available_now:
            writer = writer.trigger(availableNow=True)
        elif self._job.trigger_s is not None:
            writer = writer.trigger(processingTime=f"{int(self._job.trigger_s * 1000)} milliseconds")
        return self._started(writer)

    def _started(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query. Its sources, which Spark makes in the query's thread, find the writer of their logs in the user's session."""
        session = self._compiled.session
        with _one_start, with_settings(session, {LOG_WRITER: plain_log(session.sparkContext._gateway)}):
            query = writer.start()
            with suppress(Exception):  # a failure ends the query, and is found when it is watched
                query._jsq.streamingQuery().awaitInitialization(LONGEST_START_MS)
        return query

    def _watch(self, query: StreamingQuery) -> None:
        while not (self._stopping.is_set() or self._caught_up.is_set()) and self._failure is None:
            self._run.look_after()
            self._count_input(query)
            self._report_when_up(query)
            self._tick_if_due()
            try:
                if query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    return
            except Exception as error:  # noqa: BLE001 - Spark wraps failures in exceptions of its own
                self._fail(error)

    def _report_when_up(self, query: StreamingQuery) -> None:
        if self._observer.is_coming_up:
            status = query.status
            if str(status["message"]).startswith(WAITING) and not status["isDataAvailable"]:
                self._observer.has_nothing_to_read()

    def _close(self, query: StreamingQuery) -> None:
        """Stop the query between two batches: an interrupt in Python code leaves Spark's thread in disorder."""
        got = self._batch_lock.acquire(timeout=BATCH_GRACE_S)
        self._closed = True
        if got:
            self._batch_lock.release()
        until_s = SYSTEM_CLOCK.monotonic() + ACCOUNT_GRACE_S
        while not self._count_input(query) and SYSTEM_CLOCK.monotonic() < until_s:
            SYSTEM_CLOCK.sleep(POLL_S / 10)
        query.stop()

    def _count_input(self, query: StreamingQuery) -> bool:
        """Count the rows that Spark reports. Returns whether all completed batches are counted, or a failure makes counting pointless."""
        if self._failure is None and not self._input_rows.knows(self._read):
            for account in self._input_rows.read(query):
                batch, phases_ms = self._unreported.pop(account.read, (self._run.next_batch, {}))
                took = replace(account.took, phases_ms=account.took.phases_ms | phases_ms)
                self._observer.rows_read(batch, account.sources, took, self._plans.planned_anew)
        return self._failure is not None or self._input_rows.knows(self._read)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = explained(error, self._run, self._job.graph, shows_rows=self._spec.shows_rows)

    # ── batches that read nothing ──────────────────────────────────────────────────────────────

    def _tick_if_due(self) -> None:
        """Run a tick if something is due and Spark has looked and found nothing. With a backlog, Spark's next batch does what is due."""
        if not self._batch_lock.acquire(blocking=False):
            return
        try:
            looked_us = self._looked_us()
            nothing_comes = looked_us is not None or self._rests_between_triggers()
            if nothing_comes and self._may_begin and self._run.is_due(looked_us=looked_us):
                self._run_empty(partial(self._run.begin_tick, looked_us=looked_us))
        finally:
            self._batch_lock.release()

    def _looked_us(self) -> int | None:
        """When Spark looked and found nothing. Without event time this is asked only if something is due: it calls into Java."""
        if self._spec.event_times or self._run.is_due():
            return self._silence.looked_us(self._query, self._run.time_us)
        return None

    def _rests_between_triggers(self) -> bool:
        """Whether Spark waits for its next trigger, and begins no batch before, even if there are rows."""
        query, quiet_s = self._query, SYSTEM_CLOCK.monotonic() - self._ended_s
        if query is None or not self._job.trigger_s or quiet_s < TICK_PAUSE_S or not self._run.is_due():
            return False
        return waits(query.status)

    @property
    def _may_begin(self) -> bool:
        return (
            not self._closed
            and self._failure is None
            and self._run.waiting_commits < run.MOST_WAITING_COMMITS
        )

    def _run_empty(self, begin: Callable[[Address], BatchUnderWay]) -> None:
        """Run a batch without input; the caller holds the batch lock. A failure is kept and ends the run, as in a batch of Spark's."""
        session = self._compiled.session
        with suppress(BatchFailedError), in_group(session.sparkContext, self._name, "what is due in time"):
            self._run_batch(self._empty.frame, begin, self._run.next_batch)

    def _finish_earlier_drain(self) -> None:
        """Finish a drain that an earlier run began: remove the state that expired at the end of event time."""
        with self._batch_lock:
            if self._run.time_is_over:
                self._run_empty(self._run.begin_anew)

    def _finish_input(self, looked_us: int) -> None:
        """All input is read: do what is due by now, and with `drain` everything that waits in event time."""
        if not self._available_now:
            return
        if self._goes_on and not self._stopping.is_set():
            self._run.read_to_the_end(looked_us)
        self._do_what_is_due(lambda: self._goes_on and not self._stopping.is_set())
        if self._drain and not self._stopping.is_set():
            self._end_time()

    def _do_what_is_due(self, goes_on: Callable[[], bool]) -> None:
        until_us = self._run.time_us
        while goes_on() and self._run.is_due(until_us):
            with self._batch_lock:
                self._run_empty(self._run.begin_tick)

    def _end_time(self) -> None:
        """Nothing more is read: close all windows and fire all event-time timers."""
        if self._goes_on and self._run.ends_with_event_time:
            with self._batch_lock:
                self._run_empty(self._run.begin_end_of_time)
                if self._failure is None:
                    self._run.check_nothing_waits()
                    self._run_empty(self._run.begin_anew)

    def _drain_after_stop(self, actions: JobActions) -> None:
        """Drain after a stop, when Spark reads nothing more. If a batch was cut off, it fails, and there is no drain."""
        if self._batch_lock.acquire(timeout=BATCH_GRACE_S):
            self._batch_lock.release()
            self._do_what_is_due(lambda: self._goes_on)
            self._end_time()
            actions.how_to_stop.drained = self._goes_on

    @property
    def _goes_on(self) -> bool:
        return self._failure is None and not self._cancelled

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        of_job(self._spec.name)  # in a thread of Spark's
        planned_us = self._run.time_us
        self._wait_for_commits()
        with self._batch_lock:
            if self._closed or self._failure is not None:
                return  # Spark notes the batch as done in the log of this run, which no later run reads
            self._silence.broken()
            read, batch = SparkBatch(number), self._run.next_batch
            begin = partial(self._run.begin_batch, read, planned_us=planned_us)
            self._unreported[read] = batch, self._run_batch(frame, begin, read)
            self._read = read

    def _run_batch(
        self, frame: DataFrame, begin: Callable[[Address], BatchUnderWay], place: int
    ) -> dict[str, float]:
        """Run one batch; the caller holds the batch lock. Returns its phases. Raises `BatchFailedError`, and keeps the failure itself.

        `place` is the same when the same rows are read again: it is Spark's number, which does not count ticks.
        """
        number, watch = self._run.next_batch, Stopwatch()
        try:
            batch = begin(self._mailbox.address)
            executor = SparkExecutor.of(frame.sparkSession, self._mailbox.address)
            work = BatchRun(frame, batch.assignment, executor, NewestTimes.of(self._spec, batch))
            answers = self._perform(work)
            if self._run.is_hopeless:  # the batch was about to be cancelled, and Spark finished first
                raise BatchFailedError(number)  # noqa: TRY301 - as if Spark had raised it
            self._run.end_batch(batch, answers, work.times.found)
            return work.phases_ms(watch, answers)
        except BaseException as error:  # noqa: BLE001 - kept as the failure of this run; Spark gets a short error
            if self._failure is None:
                self.met = Failure(place, cause_of(error, self._run.task_failure))
            self._fail(error)
            _log.debug(
                "batch %d of job %s failed",
                number,
                self._spec.name,
                exc_info=error if self._spec.shows_rows else None,
            )
            raise BatchFailedError(number) from None
        finally:
            self._ended_s = SYSTEM_CLOCK.monotonic()

    def _wait_for_commits(self) -> None:
        warned = False
        while (waiting := self._run.waiting_commits) >= run.MOST_WAITING_COMMITS:
            if self._closed or self._failure is not None or self._stopping.is_set():
                self._closed = True  # Spark considers this batch done: none may follow it
                return
            if not warned:
                _log.warning(
                    "%s for their commit, the most is %d: the next batch begins when the sinks have caught up",
                    *(counted(waiting, "transaction waits", "transactions wait"), run.MOST_WAITING_COMMITS),
                )
                warned = True
            self._stopping.wait(POLL_S)

    def _perform(self, work: BatchRun) -> list[Answer]:
        try:
            return self._plans.run(work)
        finally:
            work.release()
