"""Answers requests: a start of the job looks for them in storage, accepts them, and writes their results. Driver.

Requests of the program that runs the job (`LocalRequests`) need no storage, and are reported like all others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import CorruptStateError, FencedError, PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.ownership.claim import Claim, Claimant, newest_claim
from penstock.requests.request_files import (
    ID_DIGITS,
    PROGRAM,
    Done,
    Facts,
    Kind,
    Listing,
    Request,
    answer,
    forget_requests,
    is_asked_for,
    read_request,
    take_on,
)
from penstock.savepoint.manifest import MANIFEST
from penstock.storage import Storage
from penstock.wording import duration

_log = logging.getLogger(__name__)


LOOK_S = 1.0


FORGET_AFTER_S = 3600.0
"""So long after its answer was first seen a request is left for its asker, who deletes it when it has read the answer."""


ANSWER_TRIES = 5
"""Storage may be away for a moment. What was done and is not answered would be done again, or taken for late: a stop by the next start."""


MOST_WAITING = 100
"""How many requests may wait in storage for their turn; more are refused."""


MOST_LOGGED = 1000
"""Beyond this number of different problems with requests, some are logged again."""


FIRST_CHECKPOINT_S = 600.0
"""So long a stop with a savepoint waits for the first checkpoint of the job."""


Judge = Callable[[Request], BaseException | None]
"""Returns why a request for the end of the job was not fulfilled; None if it was."""


class Actions(Protocol):
    """The actions of a job that can be requested, while it runs and between two of its runs."""

    def checkpoint(self, token: str, request_id: Request) -> Facts:
        """Complete a checkpoint of all that is finished now; returns when it exists, raises when that is not possible."""
        ...

    def savepoint(self, token: str, request_id: Request) -> Facts:
        """Make a savepoint while the job goes on; returns when it exists. Called again with the same token when a run died over it."""
        ...

    def stop(self, token: str, request_id: Request) -> None:
        """Begin to end in good order. The answer follows when the job has ended, by `RequestServer.ended`.

        Without a savepoint it returns at once. With one it looks at the folder, which may hang, and waits for the first checkpoint.
        Raises, and stops nothing, when the folder is refused or no checkpoint comes.
        """
        ...

    def cancel(self) -> None:
        """Begin to end now; the same."""
        ...


class RequestServer:
    """All requests to one start of a job. `look` is called repeatedly by one thread, `ended` once, after the last run.

    Of requests that take their time one of each kind is performed at a time. The others stay in storage and are not accepted yet:
    their askers can take them back, and their time may end.
    """

    def __init__(
        self,
        storage: Storage,
        claimant: Claimant,
        actions: Actions,
        *,
        in_background: Callable[[Callable[[], None]], None],
        apart: Callable[[Callable[[], None]], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_taken: Callable[[str, Request], None] = lambda *_: None,
        on_answered: Callable[[str, Request, Done], None] = lambda *_: None,
    ) -> None:
        self._storage = storage
        self._claimant = claimant
        self._actions = actions
        self._in_background = in_background
        """Runs work that the end of the job waits for."""
        self._apart = apart or in_background
        """Runs work that it does not wait for, because it may hang."""
        self._on_taken = on_taken
        self._on_answered = on_answered
        self._clock = clock
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        """Held while a request is taken on and begun: the end comes before that, or after it, and then answers the request."""
        self._takes = frozenset(Kind)
        self._logged: set[tuple[str, str, str]] = set()
        self._under_way: dict[str, Request] = {}
        self._waiting: dict[str, Request] = {}
        """Those that have to wait for their turn, in the order in which they were first seen."""
        self._over_since_s: dict[str, float] = {}

    def look(self) -> None:
        """Accept the requests in storage. A failure here does not disturb the job: the next look tries again."""
        try:
            listing = Listing(self._storage)
            found = frozenset(listing.open)
            self._waiting = {
                request_id: request for request_id, request in self._waiting.items() if request_id in found
            }
            for request_id in [*self._waiting, *(one for one in listing.open if one not in self._waiting)]:
                if request_id not in self._under_way:
                    self._look_at(request_id)
            self._forget(listing.over)
        except FencedError:
            _log.debug("requests in %s are another run's now", self._storage.uri)
        except PenstockError as error:
            self._log_once(logging.INFO, "requests in %s wait: %s", self._storage.uri, error)
        except Exception as error:  # noqa: BLE001 - anyone may write there, and the polling thread must not end
            self._log_once(
                logging.WARNING, "requests in %s wait, for looking failed: %r", self._storage.uri, error
            )

    def _look_at(self, request_id: str) -> None:
        """Handle one request; a malformed one does not disturb the others."""
        try:
            with self._deciding:
                if self._takes:
                    self._decide(request_id)
        except FencedError:
            raise
        except UnavailableError as error:
            self._log_once(logging.INFO, "request %s waits: %s", request_id, error)
        except Exception as error:  # noqa: BLE001 - written as the answer
            self._log_once(logging.WARNING, "request %s came to nothing: %r", request_id, error)
            self._answer(request_id, Done.failed(error))

    def _log_once(self, level: int, text: str, about: str, error: Exception) -> None:
        """Log a lasting problem only once."""
        problem = (text, about, str(error))
        _log.log(logging.DEBUG if problem in self._logged else level, text, about, error)
        if len(self._logged) < MOST_LOGGED:
            self._logged.add(problem)

    def open(self) -> None:
        """The first run is up, or is tried again: accept every request."""
        with self._deciding:
            self._takes = frozenset(Kind)

    def close(self) -> None:
        """Before the first run is up and after the last one is over: accept only a cancel.

        Other requests wait until `open`, or are left to their askers and to the next start.
        """
        with self._deciding:
            self._takes = frozenset({Kind.CANCEL})

    def ended(self, facts: Facts, judge: Judge = lambda _: None) -> None:
        """The job is over: answer stops and cancels, and fail all other requests."""
        with self._deciding:
            self._takes = frozenset()
            self._take_on_stops_that_wait()
        with self._lock:
            left = dict(self._under_way)
        for request_id, request in left.items():
            self._answer(request_id, answer_at_the_end(request, facts, judge(request)))

    def _take_on_stops_that_wait(self) -> None:
        """The stop before them has fulfilled them, or not. Left in storage they would stop the next start."""
        try:
            claim = self._claim()
            for request_id, request in self._waiting.items():
                if (
                    claim is None
                    or request.kind is not Kind.STOP
                    or not take_on(self._storage, request_id, claim.run)
                ):
                    continue
                if is_asked_for(self._storage, request_id):
                    with self._lock:
                        self._under_way[request_id] = request
        except PenstockError as error:
            _log.warning("stops that wait for their turn are left to the next start: %s", error)

    # ── one request ────────────────────────────────────────────────────────────────────────────

    def _decide(self, request_id: str) -> None:
        claim = self._claim()
        if claim is None:
            return  # no run has claimed the job yet
        try:
            request = self._waiting.get(request_id) or read_request(self._storage, request_id)
        except FileNotFoundError:
            return  # its asker has read the answer of another run
        except CorruptStateError as error:
            claim.check()
            self._answer(request_id, Done.failed(error))
            return
        if request.kind not in self._takes or self._is_late(request_id, request, claim):
            return
        if self._has_to_wait(request_id, request, claim) or not take_on(self._storage, request_id, claim.run):
            return  # its turn comes later; or it was taken back: its asker answers, and deletes it
        # This run may have stood still since it read the request, so that its file is the first one once more, after the deletion.
        if not is_asked_for(self._storage, request_id) or self._is_late(request_id, request, claim):
            return
        claim.check()
        with self._lock:
            self._under_way[request_id] = request
        _log.info("%s is asked for by %s", request.kind, request.by or "an unknown user")
        self._on_taken(request_id, request)
        self._begin(request_id, request)

    def _is_late(self, request_id: str, request: Request, claim: Claim) -> bool:
        """Whether its time is over; then it is answered so."""
        late_s = self._clock.wall() - request.until
        if late_s < 0:
            return False
        claim.check()
        self._answer(request_id, Done.failed(_expired(request, late_s)))
        return True

    def _has_to_wait(self, request_id: str, request: Request, claim: Claim) -> bool:
        """Whether one like it is under way. A stop without a savepoint and a cancel take no time, and wait for nothing."""
        takes_time = request.savepoint or request.kind in (Kind.CHECKPOINT, Kind.SAVEPOINT)
        with self._lock:
            alike = [(one.kind, one.savepoint) for one in self._under_way.values()]
        if not takes_time or (request.kind, request.savepoint) not in alike:
            return False
        if request_id in self._waiting or len(self._waiting) < MOST_WAITING:
            self._waiting[request_id] = request
            return True
        claim.check()
        text = f"{MOST_WAITING} requests wait for their turn already: the {request.kind} was refused, and nothing was done; ask again later"
        self._answer(request_id, Done.failed(UnavailableError(text)))
        return True

    def _claim(self) -> Claim | None:
        return newest_claim(self._storage, self._claimant)

    def _begin(self, request_id: str, request: Request) -> None:
        match request.kind:
            case Kind.CHECKPOINT:
                self._in_background(lambda: self._perform(request_id, request, self._actions.checkpoint))
            case Kind.SAVEPOINT:
                self._in_background(lambda: self._perform(request_id, request, self._actions.savepoint))
            case Kind.STOP if request.savepoint:
                self._apart(lambda: self._stop(request_id, request))
            case Kind.STOP:
                self._stop(request_id, request)
            case Kind.CANCEL:
                self._actions.cancel()

    def _stop(self, request_id: str, request: Request) -> None:
        """The answer follows when the job has ended. A refusal is answered at once, and the job goes on."""
        try:
            self._actions.stop(request_id, request)
        except Exception as error:  # noqa: BLE001 - written as the answer
            _log.warning("a requested stop was refused: %s", error)
            self._answer(request_id, Done.failed(error))

    def _perform(self, request_id: str, request: Request, deed: Callable[[str, Request], Facts]) -> None:
        try:
            done = Done(ok=True, facts=deed(request_id, request))
        except Exception as error:  # noqa: BLE001 - written as the answer
            _log.warning("a requested %s could not be made: %s", request.kind, error)
            _log.debug("where the %s failed", request.kind, exc_info=error)
            done = Done.failed(error)
        self._answer(request_id, done)

    def _answer(self, request_id: str, done: Done) -> None:
        """Write the answer. A run that has lost the job leaves that to the new owner."""
        for left in reversed(range(ANSWER_TRIES)):
            try:
                self._write(request_id, done)
            except FencedError:
                _log.debug("request %s is left to the run that owns the job", request_id)
            except PenstockError as error:
                if left:
                    self._clock.sleep(LOOK_S)
                    continue
                _log.warning("what came of request %s could not be written down: %s", request_id, error)
            break
        with self._lock:
            self._under_way.pop(request_id, None)

    def _write(self, request_id: str, done: Done) -> None:
        claim = self._claim()
        if claim is not None:
            claim.check()
            answer(self._storage, request_id, done)
            if (request := self._under_way.get(request_id)) is not None:
                self._on_answered(request_id, request, done)

    def _forget(self, over: list[str]) -> None:
        now_s = self._clock.monotonic()
        self._over_since_s = {request_id: self._over_since_s.get(request_id, now_s) for request_id in over}
        old = [
            request_id
            for request_id, since_s in self._over_since_s.items()
            if now_s - since_s > FORGET_AFTER_S
        ]
        if old:
            forget_requests(self._storage, old)


def answer_at_the_end(request: Request, facts: Facts, error: BaseException | None) -> Done:
    """The answer to a request in progress when the job ended. `error`: why it was not fulfilled."""
    if error is not None:
        return Done.failed(error)
    if request.kind in (Kind.STOP, Kind.CANCEL):
        return Done(ok=True, facts=facts)
    how = f"the job ended ({facts.get('status')})"
    if request.kind is Kind.SAVEPOINT:
        return Done.failed(
            f"{how} while it was at the savepoint, and it is not known whether that was made: it was if its folder has a {MANIFEST}"
        )
    return Done.failed(f"{how} before the {request.kind} was made")


def _expired(request: Request, late_s: float) -> str:
    waited = duration(max(0.0, request.until - request.asked_at))
    return (
        f"the {request.kind} was to begin within {waited} of being asked for, and that was over {duration(late_s)} ago (by the clock of "
        "the machine that runs the job): it was not begun, or a run died over it"
    )


class LocalRequests:
    """The local requests of one start. `ended` is called once, after the last run; nothing is reported from there on."""

    def __init__(
        self,
        on_taken: Callable[[str, Request], None],
        on_answered: Callable[[str, Request, Done], None],
    ) -> None:
        self._on_taken = on_taken
        self._on_answered = on_answered
        # a signal handler of the program may ask for something in the midst of it
        self._lock = threading.RLock()
        self._is_over = False
        self._under_way: dict[str, Request] = {}

    def perform(
        self, kind: Kind, deed: Callable[[str, Request], Facts], timeout_s: float, to: str | None = None
    ) -> Facts:
        """Do it now; raises what it meets."""
        token, request = self._begun(kind, timeout_s, to=to)
        try:
            facts = deed(token, request)
        except BaseException as error:
            self._answer(token, Done.failed(error))
            raise
        self._answer(token, Done(ok=True, facts=facts))
        return facts

    def stop(
        self, deed: Callable[[str, Request], None], *, savepoint: bool, to: str | None, drain: bool
    ) -> None:
        """Begin to end; the answer follows with the end of the job, or at once where it is refused, which is raised."""
        self._end(deed, *self._begun(Kind.STOP, FIRST_CHECKPOINT_S, to=to, savepoint=savepoint, drain=drain))

    def cancel(self, deed: Callable[[], None]) -> None:
        """The same without a last checkpoint."""
        self._end(lambda *_: deed(), *self._begun(Kind.CANCEL, 0.0))

    def ended(self, facts: Facts, judge: Judge = lambda _: None) -> None:
        """The job is over: that is what a stop or a cancel waits for."""
        with self._lock:
            self._is_over = True
            left, self._under_way = self._under_way, {}
        for token, request in left.items():
            self._on_answered(token, request, answer_at_the_end(request, facts, judge(request)))

    def _begun(
        self,
        kind: Kind,
        timeout_s: float,
        *,
        to: str | None = None,
        savepoint: bool = False,
        drain: bool = False,
    ) -> tuple[str, Request]:
        now, token = SYSTEM_CLOCK.wall(), SYSTEM_RANDOMNESS.token(ID_DIGITS)
        request = Request(
            kind=kind,
            asked_at=now,
            until=now + timeout_s,
            savepoint=savepoint,
            to=to,
            drain=drain,
            by=PROGRAM,
        )
        with self._lock:
            if self._is_over:
                return token, request
            self._under_way[token] = request
        self._on_taken(token, request)
        return token, request

    def _end(self, deed: Callable[[str, Request], None], token: str, request: Request) -> None:
        try:
            deed(token, request)
        except BaseException as error:
            self._answer(token, Done.failed(error))
            raise

    def _answer(self, token: str, done: Done) -> None:
        with self._lock:
            request = self._under_way.pop(token, None)
        if request is not None:
            self._on_answered(token, request, done)
