"""Performs requests to a running job: a checkpoint, a savepoint, a stop with or without one. Driver.

It outlives runs: a checkpoint that was in progress when a run failed is requested of the next run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.checkpoint.events import AnswerTaken, CheckpointWanted
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.checkpoint.model import Completed
from penstock.clock import SYSTEM_CLOCK, Clock, Stopwatch
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import NO_CHECKPOINT
from penstock.log_fields import in_context
from penstock.ownership.claim import Claimant, newest_claim
from penstock.ownership.holds import holding
from penstock.requests.request_files import Facts, Request
from penstock.savepoint.create import refuse_if_taken
from penstock.savepoint.manifest import MANIFEST
from penstock.savepoint.request import check_folder, make_savepoint, shown
from penstock.storage import Storage, open_storage

_log = logging.getLogger(__name__)

POLL_S = 0.05
LAST_MOMENT_S = 10.0
"""How long a cancel waits until a savepoint has been given up: its folder may hang."""
LAST_CHECKPOINT_S = 60.0
"""How long a stop waits for its last checkpoint, which exists already: only its event has to be processed."""


@dataclass
class Stop:
    """The options of the first stop request."""

    drain: bool = False
    drained: bool = False
    """Whether event time was advanced to its end."""
    savepoint: bool = False
    to: str | None = None
    token: str = ""
    made: Facts | None = None
    """The facts of the savepoint that was made."""
    error: BaseException | None = None
    """Why the savepoint could not be made."""


_CANCELLED = "the job was cancelled before it had stopped: it has no last checkpoint, and what it keeps is decided by checkpoint.on_cancel"


class JobActions:
    """The actions of one start of a job, see `Actions`."""

    def __init__(
        self,
        storage: Storage,
        claimant: Claimant,
        *,
        present: Callable[[], CoordinatorLoop | None],
        stop: Callable[[], None],
        cancel: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
        on_savepoint: Callable[[int, str, float], None] = lambda *_: None,
    ) -> None:
        self._storage = storage
        self._claimant = claimant
        self._present = present
        """Returns the coordinator loop of the current run, if there is one."""
        self._begin_stop = stop
        self._begin_cancel = cancel
        self._clock = clock
        self._on_savepoint = on_savepoint
        """Called for each complete savepoint with its checkpoint, its folder and its duration (s)."""
        self._over = threading.Event()
        self._now = threading.Event()
        self._making = threading.Lock()
        """Held while a savepoint is made beside the running job: one after the other."""
        self.how_to_stop = Stop()

    def no_further_run(self) -> None:
        """The last run is over: stop waiting for checkpoints."""
        self._over.set()

    def end_now(self) -> None:
        """The job is cancelled, or ends at once: savepoints that are being made are given up."""
        self._now.set()

    # ── actions ──────────────────────────────────────────────────────────────────

    def checkpoint(self, token: str, request: Request) -> Facts:
        """Complete a checkpoint of everything processed so far."""
        completed = self._checkpoint(token, request.until, committed=False)
        self._check_claim()
        return {"checkpoint": completed.checkpoint}

    def savepoint(self, token: str, request: Request) -> Facts:
        """Make a savepoint of all that is processed by now. The hold comes first, so that the checkpoint is not deleted meanwhile."""
        self._wait_for_turn(request.until)
        try:
            with holding(self._storage, f"savepoint {token}", clock=self._clock) as held:
                completed = self._checkpoint(token, request.until, committed=True)
                held.only(completed.checkpoint, completed.run)
                return self._make_savepoint(completed, request.to, token)
        finally:
            self._making.release()

    def _wait_for_turn(self, until: float) -> None:
        while not self._making.acquire(timeout=POLL_S):
            if self._clock.wall() >= until or self._over.is_set():
                raise UnavailableError(
                    "another savepoint of the job is being made, and one is made after the other: nothing was done; ask again later"
                )

    def stop(self, token: str, request: Request) -> None:
        """Begin to stop the job, see `Actions.stop`. A second stop does not revoke options of the first.

        Refusals come first: a job that has stopped cannot be started again as it was.
        """
        how = self.how_to_stop
        if request.savepoint and not how.savepoint:
            self._check_folder(request.to, token)
            self._await_first_checkpoint(token, request.until)
            how.savepoint, how.to, how.token = True, request.to, token
        how.drain = how.drain or request.drain
        self._begin_stop()

    def _await_first_checkpoint(self, token: str, until: float) -> None:
        """A job that has read nothing has nothing to save yet. One that is between two runs is not waited for: it may never come up."""
        loop = self._present()
        if loop is None or loop.coordinator.last_completed != NO_CHECKPOINT:
            return
        _log.info("the stop with a savepoint waits for the first checkpoint of the job")
        self._checkpoint(token, until, committed=False)

    def _check_folder(self, to: str | None, token: str) -> None:
        try:
            check_folder(self._storage, to)
            if to is not None:
                refuse_if_taken(open_storage(to), token)
        except PenstockError as error:
            raise type(error)(f"{error}; the job was not stopped, and goes on", folder=to) from error

    def cancel(self) -> None:
        """Begin to cancel the job; its end is the answer."""
        self._begin_cancel()

    def settled(self) -> None:
        """The run that was stopped has completed and committed its last checkpoint, and is about to end: make what was asked for.

        If that fails the job ends all the same, and its checkpoint is retained: a savepoint can be made of it later.
        """
        how = self.how_to_stop
        if not how.savepoint or how.made is not None:
            return
        making = threading.Thread(target=in_context(self._make_last), name="penstock-savepoint", daemon=True)
        making.start()
        while making.is_alive() and not self._now.is_set():
            making.join(POLL_S)
        making.join(LAST_MOMENT_S)
        if making.is_alive():
            how.error = UnavailableError(
                f"the job was cancelled while its savepoint was made, and {how.to or 'the folder'} does not answer: it is not known "
                f"whether the savepoint was made; it was if the folder has a {MANIFEST}"
            )

    def _make_last(self) -> None:
        how = self.how_to_stop
        try:
            with holding(self._storage, f"savepoint {how.token}", clock=self._clock) as held:
                self._refuse_if_there_is_nothing()
                until = self._clock.wall() + LAST_CHECKPOINT_S
                completed = self._checkpoint(how.token, until, committed=True)
                held.only(completed.checkpoint, completed.run)
                how.made = self._make_savepoint(completed, how.to, how.token)
                how.error = None
        except Exception as error:  # noqa: BLE001 - reported as the answer of the stop request
            _log.warning("the job stops, and its savepoint could not be made: %s", error)
            how.error = error

    def why_the_stop_failed(
        self, request: Request | None = None, *, cancelled: bool = False
    ) -> BaseException | None:
        """After the last run: why a savepoint or a drain that was requested was not made; None if everything was.

        `request`: the request to answer; None: all of them. `cancelled`: a cancel ended the job, and not the stop.
        """
        how = self.how_to_stop
        drain, savepoint = (
            (how.drain, how.savepoint) if request is None else (request.drain, request.savepoint)
        )
        if drain and not how.drained:
            return UnavailableError(
                "the job has ended before event time came to its end: it failed, or was stopping already. Nothing is lost. Start it, and "
                "stop it again with the drain"
            )
        if savepoint and how.made is not None:
            return None if request is None else _refused_if_elsewhere(how.made, request)
        if not savepoint:
            return UnavailableError(_CANCELLED) if cancelled else None
        if isinstance(how.error, PenstockError):
            return how.error
        if cancelled:
            return UnavailableError(
                "the job was cancelled before its savepoint was made: there is none. What is kept of the job is decided by "
                "checkpoint.on_cancel; if its checkpoints are, `penstock savepoint STORAGE JOB --to DIR` makes a savepoint of the last"
            )
        why = (
            f": {type(how.error).__name__}: {how.error}"
            if how.error
            else ": it failed, or was stopping already"
        )
        return UnavailableError(
            f"the job has ended, and no savepoint was made{why}. Nothing is lost. `penstock savepoint STORAGE JOB --to DIR` makes one of "
            "its last checkpoint; if that is refused, start the job and stop it again"
        )

    def _make_savepoint(self, completed: Completed, to: str | None, token: str) -> Facts:
        """A start that has lost the job makes none. One that loses it meanwhile does not speak of what it has made.

        Storage that does not answer then is no sign of that: the savepoint is there, and the job was this start's when it was begun.
        """
        self._check_claim()
        watch = Stopwatch(self._clock)
        made = make_savepoint(self._storage, completed, to=to, token=token, given_up=self._now.is_set)
        try:
            self._check_claim()
        except UnavailableError as error:
            _log.warning(
                "the savepoint %s is made; who owns the job by now is not known: %s", made["savepoint"], error
            )
        self._on_savepoint(made["checkpoint"], made["savepoint"], watch.seconds)
        return made

    def _check_claim(self) -> None:
        claim = newest_claim(self._storage, self._claimant)
        if claim is not None:
            claim.check()

    def _refuse_if_there_is_nothing(self) -> None:
        loop = self._present()
        if loop is None or loop.coordinator.last_completed == NO_CHECKPOINT:
            raise ConfigError(
                "the job has ended before it read anything: there is no checkpoint to make a savepoint of"
            )

    # ── waiting ────────────────────────────────────────────────────────────────────────────────

    def _checkpoint(self, token: str, until: float, *, committed: bool) -> Completed:
        asked: CoordinatorLoop | None = None
        while self._clock.wall() < until and not (self._over.is_set() or self._now.is_set()):
            loop = self._present()
            if loop is not None and loop is not asked:
                loop.post(CheckpointWanted(token))
                asked = loop
            found = None if loop is None else loop.coordinator.answer_to(token, committed=committed)
            if loop is not None and found is not None:
                loop.post(AnswerTaken(token))
                return found
            self._clock.wait(self._over, POLL_S)
        raise self._none_came(asked, token)

    def _none_came(self, asked: CoordinatorLoop | None, token: str) -> UnavailableError:
        if self._over.is_set() or self._now.is_set():
            how = "was cancelled" if self._now.is_set() else "ended"
            return UnavailableError(
                f"the job {how} before a checkpoint was there that has all it had processed; its last one is retained, unless it was "
                "cancelled and deletes what it has: `penstock checkpoints` lists them"
            )
        story = "no run of it was up" if asked is None else asked.coordinator.story()
        if asked is not None:
            asked.post(AnswerTaken(token))
        return UnavailableError(
            f"no checkpoint came in time that has all the job had processed, with all it promised committed; the job goes on ({story}); a "
            "job that has read nothing yet has nothing to complete"
        )


def _refused_if_elsewhere(made: Facts, request: Request) -> ConfigError | None:
    """A second stop that names a folder of its own has its savepoint in that of the first."""
    if request.to is None or shown(open_storage(request.to)) == made["savepoint"]:
        return None
    return ConfigError(
        f"the job has stopped, and its savepoint is in {made['savepoint']}, where an earlier stop wanted it; there is none in {request.to}",
        savepoint=made["savepoint"],
    )
