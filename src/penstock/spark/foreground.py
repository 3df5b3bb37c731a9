"""A job in the foreground: its display, and its reaction to Ctrl-C and SIGTERM. Driver.

The first signal stops the job with a last checkpoint. The second one means "now": the job is left as if the driver had died, and the
exception of the signal is raised. While the job is starting, the second signal waits until the start is done; a third one does not.

Under a supervisor (`penstock run --keep-alive`) the supervisor decides which signals count, see `supervise.channel`, and SIGHUP stops the
job, too.

Spark's JVM gets the same signals when a terminal, `timeout` or systemd sends them to all processes of a job. PySpark makes it ignore
SIGINT, this module the others. The JVM ends when the driver ends, for whatever reason.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from penstock.clock import SYSTEM_CLOCK
from penstock.spark.java import QUIET_S, make_if_missing
from penstock.spark.job_handle import JobHandle
from penstock.spark.local_session import is_alive
from penstock.spark.terminal_output import JobDisplay, job_display
from penstock.status.live import Progress
from penstock.supervise.channel import ProgramReport, Supervisor, hears_hangup, supervisor

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)

POLL_S = 0.2
NOW_S = 5.0
"""How long the second signal waits for the job to end."""
STOPPING_AFTER_START = (
    "%s received while the job is starting: it stops with a last checkpoint as soon as it has started; a second signal ends it then "
    "without a checkpoint, a third one ends the process at once"
)
STOPPING = "stopping with a last checkpoint; Ctrl-C or SIGTERM once more ends the job now, without it"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def in_foreground(job: Job, start: Callable[[], JobHandle]) -> JobHandle:
    """Start the job, display its progress, and return when it has ended, possibly after a signal."""
    watching = supervisor()
    with job_display() as display, _signals(watching) as signals, _java_deaf_to_signals(job, signals.numbers):
        display.starting()
        try:
            handle = _run(job, start, signals, display, watching)
        except BaseException as error:
            if watching is not None:
                watching.failed(error)
            raise
        if watching is not None:
            watching.ended()
    return handle


def _run(
    job: Job,
    start: Callable[[], JobHandle],
    signals: _Signals,
    display: JobDisplay,
    watching: Supervisor | None,
) -> JobHandle:
    if watching is not None:
        watching.say(ProgramReport(job=job.name, storage=job.storage.uri))
    with display.of_work():
        # The second signal does not interrupt this: the job may be running already, and only this thread knows it.
        handle = start()
    try:
        signals.raise_from_now_on()
        _until_ended(handle, signals, display, watching)
    except (KeyboardInterrupt, SystemExit):
        _log.warning("%s", _left(handle, in_time=handle.abandon(NOW_S)))
        raise
    return handle


def _left(handle: JobHandle, *, in_time: bool) -> str:
    checkpoint = handle.progress.checkpoint
    follows = f"goes back to checkpoint {checkpoint}" if checkpoint >= 0 else "begins from nothing"
    batch = "" if in_time else ", in the middle of a batch that does not end"
    return f"ended now, without a last checkpoint{batch}; the next start {follows}"


class _Signals:
    """Notes the first signal without interrupting anything, and raises at the second; during the start at the third."""

    def __init__(self, watching: Supervisor | None = None) -> None:
        self.numbers = _SIGNALS if watching is None or not hears_hangup() else (*_SIGNALS, signal.SIGHUP)
        """The signals that it handles."""
        self._watching = watching
        self._numbers: list[int] = []
        self._is_starting = True

    @property
    def noted(self) -> bool:
        return bool(self._numbers)

    def __call__(self, number: int, _frame: FrameType | None = None) -> None:
        times = 1 if self._watching is None else self._watching.counts(number)
        if times and not self.noted and self._is_starting:
            _log.warning(STOPPING_AFTER_START, signal.Signals(number).name)
        self._numbers += [number] * times
        self._raise_if_too_many()

    def raise_from_now_on(self) -> None:
        """The job has started: raise at the second signal."""
        self._is_starting = False
        self._raise_if_too_many()

    def _raise_if_too_many(self) -> None:
        if len(self._numbers) <= (2 if self._is_starting else 1):
            return
        if self._numbers[-1] == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self._numbers[-1])


@contextmanager
def _signals(watching: Supervisor | None = None) -> Iterator[_Signals]:
    signals = _Signals(watching)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals) for number in signals.numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _java_deaf_to_signals(job: Job, numbers: Collection[int]) -> Iterator[None]:
    """Let Java ignore the signals, except SIGINT, which it ignores already.

    Only if Python has started Java: under spark-submit Java came first, and a signal to it must end both.
    """
    session: SparkSession | None = job.graph.sources[0].frame.sparkSession if job.graph.sources else None
    gateway = None if session is None else session.sparkContext._gateway
    if session is None or gateway is None or getattr(gateway, "proc", None) is None:
        yield
        return
    java = gateway.jvm.sun.misc
    names = [signal.Signals(number).name.removeprefix("SIG") for number in numbers if number != signal.SIGINT]
    before = [(one, java.Signal.handle(one, java.SignalHandler.SIG_IGN)) for one in map(java.Signal, names)]
    try:
        yield
    finally:
        if is_alive(session):
            for one, handler in before:
                java.Signal.handle(one, handler)


class _SupervisorReports:
    """Reports to the supervisor when the job has started to process."""

    def __init__(self, watching: Supervisor | None) -> None:
        self._watching = watching
        self._going = False

    def look(self, progress: Progress) -> bool:
        """Look at the progress; to be called at short intervals. Returns True if the job has just processed its first batch."""
        if self._watching is None or self._going or not progress.batches:
            return False
        self._going = True
        self._watching.say(ProgramReport(going=True))
        return True


def _until_ended(
    handle: JobHandle, signals: _Signals, display: JobDisplay, watching: Supervisor | None
) -> None:
    stopping, quiet_at, reports = False, 0.0, _SupervisorReports(watching)
    reports.look(handle.progress)
    while not handle.wait(POLL_S):
        if signals.noted and not stopping:
            stopping = True
            _log.warning(STOPPING)
            handle.stop(wait=False)
        if reports.look(handle.progress):
            quiet_at = SYSTEM_CLOCK.monotonic() + QUIET_S
        if quiet_at and SYSTEM_CLOCK.monotonic() > quiet_at:
            quiet_at = 0.0
            make_if_missing()
        display.watch(handle, stopping=stopping)
