"""The handle of a running job. Driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint.model import Completed
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Duration, seconds
from penstock.errors import ConfigError, shown_alone
from penstock.ids import NO_CHECKPOINT
from penstock.job_spec import Uids
from penstock.ownership.claim import read_descents
from penstock.recovery.history import read_history
from penstock.requests.request_files import Facts, Kind, Request
from penstock.spark.job_runner import JobRunner
from penstock.spark.local_session import is_alive
from penstock.spark.positions import SilentSince, SourceEnds
from penstock.start_options import StartOptions
from penstock.status.live import Progress, Status

if TYPE_CHECKING:
    from penstock.job import Job

CAUGHT_UP_POLL_S = 0.2
LOOK_GRACE_S = 0.5
"""A query looks at its sources every 10 ms. After this time, plus its trigger, a resting query has begun another look."""


class JobHandle:
    """A running job, as returned by `Job.start`."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner

    def __repr__(self) -> str:
        newest = self.progress.checkpoint
        checkpoint = "no checkpoint" if newest == NO_CHECKPOINT else f"newest checkpoint {newest}"
        return f"<JobHandle of {self._runner.job.name!r}: {self.status.value}, {checkpoint}>"

    @classmethod
    def start(cls, job: Job, options: StartOptions) -> JobHandle:
        """Check everything, take the job over, and run it in the background. See `Job.start`."""
        parts = (job.graph.sources, job.graph.operators, job.graph.outputs)
        options.changes.check_names(Uids(*([one.uid for one in kind] for kind in parts)))
        return cls(JobRunner.start(job, options))

    # ── what the user can do ───────────────────────────────────────────────────────────────────

    @property
    def status(self) -> Status:
        """The status of the job, such as "running"."""
        return self._runner.status

    @property
    def progress(self) -> Progress:
        """What the job has done so far: rows, batches, checkpoints, restarts."""
        return self._runner.observer.progress

    @property
    def ui_address(self) -> str:
        """The address of its pages, such as "http://127.0.0.1:8090"; '' if it has none. They ask for a token, see `Job.start`."""
        return self._runner.reporter.ui_address

    @property
    def failure(self) -> BaseException | None:
        """The error with which the job failed; None if it has not."""
        return self._runner.failure

    def wait(self, timeout: Duration | float | None = None) -> bool:
        """Wait for the end of the job. Returns False if it is not over within `timeout`. Raises the error that made the job fail.

        `timeout` is a duration such as "30s", or seconds, as in Python's own `wait`.
        A signal handler that raises interrupts the wait, which can be called again. (It waits for an event: after an interrupted
        `Thread.join`, CPython 3.11 and 3.12 consider the thread dead.)
        """
        if not self._runner.ended.wait(_timeout_s(timeout)):
            return False
        if self._runner.failure is not None:
            failure = shown_alone(self._runner.failure)
            raise failure
        return True

    def stop(
        self, *, wait: bool = True, savepoint: str | Path | bool = False, drain: bool = False
    ) -> str | None:
        """End after the current batch, with a last checkpoint that is completed and committed. The next run continues from there.

        `savepoint`: make a savepoint of that checkpoint, in this folder, or with True in a new one beside the job's. Returns its folder. A
        job without a checkpoint runs on until it has one, ten minutes at most.
        `drain`: end event time first, so that all windows close and all event-time timers fire.
        """
        self._runner.local_requests.stop(
            self._runner.actions.stop, savepoint=savepoint is not False, to=_folder(savepoint), drain=drain
        )
        if not wait:
            return None
        self.wait()
        failure = self._runner.actions.why_the_stop_failed()
        if failure is not None and (savepoint is not False or drain):
            raise shown_alone(failure)
        return None if savepoint is False else str((self._runner.actions.how_to_stop.made or {})["savepoint"])

    def savepoint(self, to: str | Path | None = None, *, timeout: Duration = "10min") -> str:
        """Make a savepoint of everything processed so far, while the job runs on. Returns its folder.

        `to`: a folder without a savepoint; by default a new one beside the job's. `timeout`: for the checkpoint of the savepoint.
        """
        folder = None if to is None else str(to)
        return str(
            self._performed(Kind.SAVEPOINT, self._runner.actions.savepoint, timeout, folder)["savepoint"]
        )

    def trigger_checkpoint(self, *, timeout: Duration = "10min") -> int:
        """Complete a checkpoint of everything processed so far, regardless of the interval. Returns its number."""
        return int(self._performed(Kind.CHECKPOINT, self._runner.actions.checkpoint, timeout)["checkpoint"])

    def caught_up(self, *, timeout: Duration | float = 0.0) -> bool:
        """Whether everything that is in the sources at this moment is in a committed checkpoint. Waits for it up to `timeout`.

        Kafka and `PartitionedLog` report where they end. Other sources count as read when Spark has looked at them and found nothing, so a
        source that never pauses is never caught up. A job that has ended is caught up only if it had committed everything before.
        """
        moment = SourceEnds.of(self._runner.compiled.session, self._runner.job.graph.sources)
        silent_since = SilentSince(
            lambda: self._runner.run, (self._runner.job.trigger_s or 0.0) + LOOK_GRACE_S
        )
        until_s = SYSTEM_CLOCK.monotonic() + (_timeout_s(timeout) or 0.0)
        while not moment.is_in(self._newest_committed(), silent_since):
            if SYSTEM_CLOCK.monotonic() >= until_s or self._runner.ended.wait(CAUGHT_UP_POLL_S):
                return False
        return True

    def _newest_committed(self) -> Completed | None:
        coordinator = self._runner.coordinator()
        return self._runner.observer.newest_committed if coordinator is None else coordinator.newest_committed

    def _performed(
        self, kind: Kind, deed: Callable[[str, Request], Facts], timeout: Duration, to: str | None = None
    ) -> Facts:
        if self._runner.ended.is_set():
            raise ConfigError(
                f"the job {self._runner.job.name} has ended ({self._runner.status.value}): it makes no {kind} any more"
            )
        return self._runner.local_requests.perform(kind, deed, seconds("timeout", timeout), to)

    def cancel(self) -> None:
        """End now, without a last checkpoint. `checkpoint.on_cancel` decides what is kept."""
        self._runner.local_requests.cancel(self._runner.begin_to_cancel)
        self.wait()

    def abandon(self, timeout: float) -> bool:
        """End now, in the middle of a batch, and delete nothing, as if the driver had died. Returns whether the job ended in time."""
        run = self._runner.end_now()
        if run is not None and is_alive(self._runner.compiled.session):
            run.interrupt()
        return self._runner.ended.wait(timeout)

    def checkpoints(self) -> list[Completed]:
        """The completed checkpoints in storage, oldest first, with the measurements of every subtask."""
        storage = self._runner.job.storage
        return read_history(storage, read_descents(storage)).whole


def _folder(savepoint: str | Path | bool) -> str | None:
    return None if isinstance(savepoint, bool) else str(savepoint)


def _timeout_s(timeout: Duration | float | None) -> float | None:
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool)):
        return timeout
    return seconds("timeout", timeout)
