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
"""So many requests wait in storage for their turn; what comes beyond them is refused."""


MOST_TOLD = 1000
"""Beyond so many different troubles with requests some are told again."""


FIRST_CHECKPOINT_S = 600.0
"""So long a stop with a savepoint waits for the first checkpoint of the job."""


Judge = Callable[[Request], BaseException | None]
"""Why a request for the end of the job did not get what it asked for; None: it did."""


class Actions(Protocol):
    """What a job can be asked for, while it runs and between two of its runs."""

    def checkpoint(self, token: str, request: Request) -> Facts:
        """Complete a checkpoint of all that is finished now; returns when it exists, raises when that is not possible."""
        ...

    def savepoint(self, token: str, request: Request) -> Facts:
        """Make a savepoint while the job goes on; returns when it exists. Called again with the same token when a run died over it."""
        ...

    def stop(self, token: str, request: Request) -> None:
        """Begin to end in good order. The answer follows when the job has ended, by `RequestServer.ended`.

        Without a savepoint it returns at once. With one it looks at the folder, which may hang, and waits for the first checkpoint.
        Raises, and stops nothing, when the folder is refused or no checkpoint comes.
        """
        ...

    def cancel(self) -> None:
        """Begin to end now; the same."""
        ...


class RequestServer:
    """All requests to one start of a job. `look` is called again and again by one thread, `ended` once, behind the last run.

    Of requests that take their time one of each kind is performed at a time. The others stay in storage, where nobody has taken them on:
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
        """Runs what the end of the job waits for."""
        self._apart = apart or in_background
        """Runs what it does not wait for: it may hang."""
        self._on_taken = on_taken
        self._on_answered = on_answered
        self._clock = clock
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        """Held while a request is taken on and begun: the end comes before that, or behind it, and then answers it."""
        self._takes = frozenset(Kind)
        self._told: set[tuple[str, str, str]] = set()
        self._under_way: dict[str, Request] = {}
        self._waiting: dict[str, Request] = {}
        """Those that have to wait for their turn, in the order in which they were first seen."""
        self._over_since_s: dict[str, float] = {}

    def look(self) -> None:
        """Take on what there is. Nothing that goes wrong here is in the job's way: the next look tries again."""
        try:
            listing = Listing(self._storage)
            found = frozenset(listing.open)
            self._waiting = {request: wish for request, wish in self._waiting.items() if request in found}
            for request in [*self._waiting, *(one for one in listing.open if one not in self._waiting)]:
                if request not in self._under_way:
                    self._look_at(request)
            self._forget(listing.over)
        except FencedError:
            _log.debug("requests in %s are another run's now", self._storage.uri)
        except PenstockError as error:
            self._tell_once(logging.INFO, "requests in %s wait: %s", self._storage.uri, error)
        except Exception as error:  # noqa: BLE001 - anybody may write there, and the thread that looks must not end
            self._tell_once(
                logging.WARNING, "requests in %s wait, for looking failed: %r", self._storage.uri, error
            )

    def _look_at(self, request: str) -> None:
        """One request that is not what it should be is not in the way of the others."""
        try:
            with self._deciding:
                if self._takes:
                    self._decide(request)
        except FencedError:
            raise
        except UnavailableError as error:
            self._tell_once(logging.INFO, "request %s waits: %s", request, error)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self._tell_once(logging.WARNING, "request %s came to nothing: %r", request, error)
            self._answer(request, Done.failed(error))

    def _tell_once(self, level: int, text: str, about: str, error: Exception) -> None:
        """What lasts is not told at every look."""
        told = (text, about, str(error))
        _log.log(logging.DEBUG if told in self._told else level, text, about, error)
        if len(self._told) < MOST_TOLD:
            self._told.add(told)

    def open(self) -> None:
        """The first run is up, or is tried again: every request is taken on."""
        with self._deciding:
            self._takes = frozenset(Kind)

    def close(self) -> None:
        """Before the first run is up and after the last one is over: only a cancel is taken on.

        What else comes waits until `open`, or is left to whoever asks, and to the next start.
        """
        with self._deciding:
            self._takes = frozenset({Kind.CANCEL})

    def ended(self, facts: Facts, judge: Judge = lambda _: None) -> None:
        """The job is over: that is what a stop or cancel waits for, and why nothing else can be done."""
        with self._deciding:
            self._takes = frozenset()
            self._take_on_stops_that_wait()
        with self._lock:
            left = dict(self._under_way)
        for request, wish in left.items():
            self._answer(request, answer_at_the_end(wish, facts, judge(wish)))

    def _take_on_stops_that_wait(self) -> None:
        """They have what they asked for, or not, with the stop before them. Left in storage they would stop the next start."""
        try:
            claim = self._claim()
            for request, wish in self._waiting.items():
                if (
                    claim is None
                    or wish.kind is not Kind.STOP
                    or not take_on(self._storage, request, claim.run)
                ):
                    continue
                if is_asked_for(self._storage, request):
                    with self._lock:
                        self._under_way[request] = wish
        except PenstockError as error:
            _log.warning("stops that wait for their turn are left to the next start: %s", error)

    # ── one request ────────────────────────────────────────────────────────────────────────────

    def _decide(self, request: str) -> None:
        claim = self._claim()
        if claim is None:
            return  # nobody has the job yet
        try:
            wish = self._waiting.get(request) or read_request(self._storage, request)
        except FileNotFoundError:
            return  # its asker has read the answer of another run
        except CorruptStateError as error:
            claim.check()
            self._answer(request, Done.failed(error))
            return
        if wish.kind not in self._takes or self._is_late(request, wish, claim):
            return
        if self._has_to_wait(request, wish, claim) or not take_on(self._storage, request, claim.run):
            return  # its turn comes later; or it was taken back: its asker answers, and deletes it
        # This run may have stood still since it read the request, so that its file is the first one once more, behind the deletion.
        if not is_asked_for(self._storage, request) or self._is_late(request, wish, claim):
            return
        claim.check()
        with self._lock:
            self._under_way[request] = wish
        _log.info("%s is asked for by %s", wish.kind, wish.by or "somebody")
        self._on_taken(request, wish)
        self._begin(request, wish)

    def _is_late(self, request: str, wish: Request, claim: Claim) -> bool:
        """Whether its time is over, which is its answer then."""
        late_s = self._clock.wall() - wish.until
        if late_s < 0:
            return False
        claim.check()
        self._answer(request, Done.failed(_expired(wish, late_s)))
        return True

    def _has_to_wait(self, request: str, wish: Request, claim: Claim) -> bool:
        """Whether one like it is under way. A stop without a savepoint and a cancel take no time, and wait for nothing."""
        takes_time = wish.savepoint or wish.kind in (Kind.CHECKPOINT, Kind.SAVEPOINT)
        with self._lock:
            alike = [(one.kind, one.savepoint) for one in self._under_way.values()]
        if not takes_time or (wish.kind, wish.savepoint) not in alike:
            return False
        if request in self._waiting or len(self._waiting) < MOST_WAITING:
            self._waiting[request] = wish
            return True
        claim.check()
        text = f"{MOST_WAITING} requests wait for their turn already: the {wish.kind} was refused, and nothing was done; ask again later"
        self._answer(request, Done.failed(UnavailableError(text)))
        return True

    def _claim(self) -> Claim | None:
        return newest_claim(self._storage, self._claimant)

    def _begin(self, request: str, wish: Request) -> None:
        match wish.kind:
            case Kind.CHECKPOINT:
                self._in_background(lambda: self._perform(request, wish, self._actions.checkpoint))
            case Kind.SAVEPOINT:
                self._in_background(lambda: self._perform(request, wish, self._actions.savepoint))
            case Kind.STOP if wish.savepoint:
                self._apart(lambda: self._stop(request, wish))
            case Kind.STOP:
                self._stop(request, wish)
            case Kind.CANCEL:
                self._actions.cancel()

    def _stop(self, request: str, wish: Request) -> None:
        """The answer follows when the job has ended; at once when it is refused, and the job goes on."""
        try:
            self._actions.stop(request, wish)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            _log.warning("a stop that somebody asked for was refused: %s", error)
            self._answer(request, Done.failed(error))

    def _perform(self, request: str, wish: Request, deed: Callable[[str, Request], Facts]) -> None:
        try:
            done = Done(ok=True, facts=deed(request, wish))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            _log.warning("a %s that somebody asked for could not be made: %s", wish.kind, error)
            _log.debug("where the %s failed", wish.kind, exc_info=error)
            done = Done.failed(error)
        self._answer(request, done)

    def _answer(self, request: str, done: Done) -> None:
        """A run that has lost the job says nothing: it is the next one's to answer."""
        for left in reversed(range(ANSWER_TRIES)):
            try:
                self._write(request, done)
            except FencedError:
                _log.debug("request %s is left to the run that owns the job", request)
            except PenstockError as error:
                if left:
                    self._clock.sleep(LOOK_S)
                    continue
                _log.warning("what came of request %s could not be written down: %s", request, error)
            break
        with self._lock:
            self._under_way.pop(request, None)

    def _write(self, request: str, done: Done) -> None:
        claim = self._claim()
        if claim is not None:
            claim.check()
            answer(self._storage, request, done)
            if (wish := self._under_way.get(request)) is not None:
                self._on_answered(request, wish, done)

    def _forget(self, over: list[str]) -> None:
        now_s = self._clock.monotonic()
        self._over_since_s = {request: self._over_since_s.get(request, now_s) for request in over}
        old = [request for request, since_s in self._over_since_s.items() if now_s - since_s > FORGET_AFTER_S]
        if old:
            forget_requests(self._storage, old)


def answer_at_the_end(wish: Request, facts: Facts, error: BaseException | None) -> Done:
    """To what was under way when the job ended: a stop or a cancel has come to its end. `error`: why that is not so."""
    if error is not None:
        return Done.failed(error)
    if wish.kind in (Kind.STOP, Kind.CANCEL):
        return Done(ok=True, facts=facts)
    how = f"the job ended ({facts.get('status')})"
    if wish.kind is Kind.SAVEPOINT:
        return Done.failed(
            f"{how} while it was at the savepoint, and it is not known whether that was made: it was if its folder has a {MANIFEST}"
        )
    return Done.failed(f"{how} before the {wish.kind} was made")


def _expired(wish: Request, late_s: float) -> str:
    waited = duration(max(0.0, wish.until - wish.asked_at))
    return (
        f"the {wish.kind} was to begin within {waited} of being asked for, and that was over {duration(late_s)} ago (by the clock of the "
        "machine that runs the job): it was not begun, or a run died over it"
    )


class LocalRequests:
    """Those of one start. `ended` is called once, behind the last run; nothing is told from there on."""

    def __init__(
        self,
        on_taken: Callable[[str, Request], None],
        on_answered: Callable[[str, Request, Done], None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._on_taken = on_taken
        self._on_answered = on_answered
        self._clock = clock
        self._lock = (
            threading.RLock()
        )  # a signal handler of the program may ask for something in the midst of it
        self._is_over = False
        self._under_way: dict[str, Request] = {}

    def perform(
        self, kind: Kind, deed: Callable[[str, Request], Facts], timeout_s: float, to: str | None = None
    ) -> Facts:
        """Do it now; raises what it meets."""
        token, wish = self._begun(kind, timeout_s, to=to)
        try:
            facts = deed(token, wish)
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
        for token, wish in left.items():
            self._on_answered(token, wish, answer_at_the_end(wish, facts, judge(wish)))

    def _begun(
        self,
        kind: Kind,
        timeout_s: float,
        *,
        to: str | None = None,
        savepoint: bool = False,
        drain: bool = False,
    ) -> tuple[str, Request]:
        now, token = self._clock.wall(), SYSTEM_RANDOMNESS.token(ID_DIGITS)
        wish = Request(
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
                return token, wish
            self._under_way[token] = wish
        self._on_taken(token, wish)
        return token, wish

    def _end(self, deed: Callable[[str, Request], None], token: str, wish: Request) -> None:
        try:
            deed(token, wish)
        except BaseException as error:
            self._answer(token, Done.failed(error))
            raise

    def _answer(self, token: str, done: Done) -> None:
        with self._lock:
            wish = self._under_way.pop(token, None)
        if wish is not None:
            self._on_answered(token, wish, done)
