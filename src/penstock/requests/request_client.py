"""Sends requests to a running job from another process: writes the request, and waits for the answer or polls its outcome."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Callable

import msgspec

from penstock import errors
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS, RunId
from penstock.ownership.claim import newest_run, read_run
from penstock.ownership.heartbeat import HEARTBEAT_S, Pulse, last_beat, seems_alive
from penstock.ownership.runs import read_end
from penstock.requests.request_files import (
    ID_DIGITS,
    Done,
    Facts,
    Kind,
    Request,
    answer,
    files_of,
    forget_requests,
    is_asked_for,
    put_request,
    read_answer,
    read_request,
    take_back,
    taken_on_by,
)
from penstock.savepoint.request import check_folder
from penstock.storage import Storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

POLL_S = 0.2

Tell = Callable[[str], None]
"""Where lines about the progress go."""


def living_run(storage: Storage, now: float, pulse: Pulse | None = None) -> RunId | None:
    """The run that owns the job, if it seems to be alive. `pulse`: of who looks again and again."""
    newest = newest_run(storage)
    if newest == 0:
        return None
    return newest if seems_alive(read_run(storage, newest), last_beat(storage, newest), now, pulse) else None


def refuse_unless_running(storage: Storage, now: float) -> RunId:
    """The run that owns the job; raises `ConfigError`, with the end of the last run, if none is alive."""
    living = living_run(storage, now)
    if living is not None:
        return living
    newest = newest_run(storage)
    end = read_end(storage, newest) if newest else None
    how = f"its last run, {newest}, {'did not say how it ended' if end is None else f'is over: {end.how}'}"
    raise ConfigError(
        f"the job in {storage.uri} is not running: {how if newest else 'it never ran'}; nothing was asked for, nothing was done. "
        "`penstock runs` lists its runs",
        run=newest,
    )


class RequestClient:
    """One request, from the moment it is written until it is answered or taken back."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock = SYSTEM_CLOCK,
        tell: Tell = lambda _: None,
        meanwhile: Callable[[RunId], None] = lambda _: None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._tell = tell
        self._meanwhile = meanwhile
        """Called repeatedly during the wait with the run that was asked, for example to show progress."""
        self._pulse = Pulse()
        self.id = SYSTEM_RANDOMNESS.token(ID_DIGITS)
        self._is_written = False
        """Whether storage has confirmed the write. Until then the request may still arrive at any time."""

    def ask(self, kind: Kind, *, timeout_s: float, **options: object) -> Facts:
        """Send a request to the run that owns the job, and return its answer; raises its error, or `UnavailableError` after the timeout."""
        now = self._clock.wall()
        run = refuse_unless_running(self._storage, now)
        by = f"pid {os.getpid()} on {platform.node()}"
        fields = {"kind": kind, "asked_at": now, "until": now + timeout_s, "by": by, **options}
        request = msgspec.convert(fields, Request)
        try:
            self._put(request)
            self._tell(f"asked run {run} for a {kind}" if kind in _THINGS else f"asked run {run} to {kind}")
            return self._result(self._answer(run, timeout_s))
        except (KeyboardInterrupt, SystemExit):
            with contextlib.suppress(UnavailableError):
                self._leave()
            raise

    def _leave(self) -> None:
        """Withdraw the request after an interrupt. A run that has accepted it goes on, but no other run performs it again."""
        if self._withdraw("the asker was interrupted"):
            self._tell("the request is withdrawn: nothing was done")
            if self._is_written:
                forget_requests(self._storage, [self.id])
            return
        taken_by = taken_on_by(self._storage, self.id)
        self._storage.delete(files_of(self.id)[:1])
        self._tell(
            f"run {taken_by} has accepted the request, which cannot be withdrawn: `penstock runs` and `penstock status` show the job"
        )

    def _put(self, request: Request) -> None:
        """Write the request. If it is not known whether it was written, it is withdrawn: the caller gets an error and expects nothing.

        The withdrawal stays in storage, because the request may arrive later; a run deletes both when they are old.
        """
        try:
            put_request(self._storage, self.id, request)
        except UnavailableError:
            with contextlib.suppress(UnavailableError):
                self._withdraw("it may not have been written")
            raise
        self._is_written = True

    def _answer(self, asked: RunId, timeout_s: float) -> Done:
        deadline_s = self._clock.monotonic() + timeout_s
        next_look_s = self._clock.monotonic() + HEARTBEAT_S
        story = _Story(self._tell)
        while self._clock.monotonic() < deadline_s:
            done = self._answer_so_far(story)
            if done is not None:
                return done
            if self._clock.monotonic() >= next_look_s:
                next_look_s = self._clock.monotonic() + HEARTBEAT_S
                self._look_whether_anybody_lives(asked, story)
            self._meanwhile(asked)
            self._clock.sleep(POLL_S)
        return self._give_up(f"after {duration(timeout_s)}")

    def _answer_so_far(self, story: _Story) -> Done | None:
        """The answer; None if there is none yet, or while storage does not answer."""
        try:
            return read_answer(self._storage, self.id)
        except UnavailableError as error:
            story.say(f"storage does not answer: {error}")
            return None

    def _look_whether_anybody_lives(self, asked: RunId, story: _Story) -> None:
        try:
            taken_by = taken_on_by(self._storage, self.id)
            lives = living_run(self._storage, self._clock.wall(), self._pulse) is not None
        except UnavailableError as error:
            story.say(f"storage does not answer: {error}")
            return
        if lives:
            story.say("" if taken_by is None else f"run {taken_by} is working on it")
            return
        if taken_by is None and self._withdraw("no run of the job was alive"):
            forget_requests(self._storage, [self.id])
            raise UnavailableError(
                f"run {asked} of the job in {self._storage.uri} ended before it accepted the request; the request is withdrawn, nothing "
                "was done. `penstock runs` shows how it ended",
                run=asked,
            )
        story.say(f"run {taken_by} accepted the request, and no run is alive now: the next one continues it")

    def _withdraw(self, why: str) -> bool:
        """Withdraw the request; false if a run has accepted it before."""
        if not take_back(self._storage, self.id):
            return False
        answer(self._storage, self.id, Done.failed(f"taken back: {why}"))
        return True

    def _give_up(self, when: str) -> Done:
        uri = self._storage.uri
        if self._withdraw(f"no run had accepted it {when}"):
            forget_requests(self._storage, [self.id])
            raise UnavailableError(
                f"{when} no run of the job in {uri} has accepted the request; it is withdrawn, nothing was done. A run looks for requests "
                "every second: see whether it is alive (`penstock runs`), and whether storage answers",
            )
        done = read_answer(self._storage, self.id)
        if done is not None:
            return done
        raise UnavailableError(
            f"{when} run {taken_on_by(self._storage, self.id)} is still working on it: an accepted request continues. Its "
            f"answer will be in requests/{self.id}.done in {uri}; `penstock runs` and `penstock checkpoints` show the job",
            request=self.id,
        )

    def _result(self, done: Done) -> Facts:
        forget_requests(self._storage, [self.id])
        if done.ok:
            return done.facts
        kind = getattr(errors, done.kind, UnavailableError)
        known = isinstance(kind, type) and issubclass(kind, PenstockError)
        raise kind(done.error) if known else UnavailableError(done.error)


_THINGS = (Kind.CHECKPOINT, Kind.SAVEPOINT)


class _Story:
    """Reports a line if it differs from the last one."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._last = ""

    def say(self, line: str) -> None:
        if line and line != self._last:
            self._tell(line)
            self._last = line


USUAL_TIMEOUT_S = 600.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a request."""

    request: str
    state: str
    """`waiting` (no run has accepted it), `under way`, `done`, `failed`, or `unknown`: never asked, or forgotten an hour later."""
    facts: Facts = {}
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.state in ("done", "failed", "unknown")


def ask(
    storage: Storage,
    kind: Kind,
    *,
    by: str,
    now: float,
    timeout_s: float = USUAL_TIMEOUT_S,
    request: str = "",
    **options: object,
) -> str:
    """Ask the run that owns the job; returns the id of the request. Raises `ConfigError` when none is alive, or a folder is not allowed.

    `request`: an id that the asker has made. Asked again with the same one, nothing is asked for a second time.
    """
    if is_request_id(request) and outcome(storage, request).state != "unknown":
        _refuse_if_for_something_else(storage, kind, request)
        return request
    to = options.get("to")
    check_folder(storage, to if isinstance(to, str) else None)
    refuse_unless_running(storage, now)
    request = request if is_request_id(request) else SYSTEM_RANDOMNESS.token(ID_DIGITS)
    fields = {"kind": kind, "asked_at": now, "until": now + timeout_s, "by": by, **options}
    put_request(storage, request, msgspec.convert(fields, Request))
    return request


def _refuse_if_for_something_else(storage: Storage, kind: Kind, request: str) -> None:
    try:
        before = read_request(storage, request).kind
    except FileNotFoundError:  # forgotten in this moment
        return
    if before is not kind:
        raise ConfigError(
            f"the id {request} was used before, for a {before}; nothing was asked for; choose another for the {kind}",
            request=request,
        )


def outcome(storage: Storage, request: str) -> Outcome:
    """The state of the request with this id, which `ask` has returned."""
    if not is_request_id(request):
        return Outcome(request=request, state="unknown")
    done = read_answer(storage, request)
    if done is not None:
        return Outcome(
            request=request, state="done" if done.ok else "failed", facts=done.facts, error=done.error
        )
    if not is_asked_for(storage, request):
        return Outcome(request=request, state="unknown")
    return Outcome(request=request, state="waiting" if taken_on_by(storage, request) is None else "under way")


def is_request_id(text: str) -> bool:
    """Whether the text is a valid request id: it becomes part of a file name."""
    return len(text) == ID_DIGITS and all(digit in "0123456789abcdef" for digit in text)
