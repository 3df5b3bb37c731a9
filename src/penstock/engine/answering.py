"""The side of a request that performs it: a start of the job looks for requests, takes them on, and says what came of them. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import CorruptStateError, FencedError, PenstockError, UnavailableError
from penstock.ownership.claim import Claim, Claimant, newest_claim
from penstock.ownership.requests import (
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
from penstock.storage import Storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

LOOK_S = 1.0
FORGET_AFTER_S = 3600.0
"""So long after its answer was first seen a request is left for its asker, who deletes it when it has read the answer."""

ANSWER_TRIES = 5
"""Storage may be away for a moment. What was done and is not answered would be done again, or taken for late: a stop by the next start."""

MOST_TOLD = 1000
"""Beyond so many different troubles with requests some are told again."""


class Deeds(Protocol):
    """What a job can be asked for, while it runs and between two of its runs."""

    def checkpoint(self, token: str, request: Request) -> Facts:
        """Complete a checkpoint of all that is finished now; returns when it exists, raises when that is not possible."""
        ...

    def savepoint(self, token: str, request: Request) -> Facts:
        """Make a savepoint while the job goes on; returns when it exists. Called again with the same token when a run died over it."""
        ...

    def stop(self, token: str, request: Request) -> None:
        """Begin to end in good order; returns at once. The answer follows when the job has ended, by `Answering.ended`.

        Raises, and stops nothing, when the folder for its savepoint is refused.
        """
        ...

    def cancel(self) -> None:
        """Begin to end now; the same."""
        ...


class Answering:
    """All requests to one start of a job. `look` is called again and again by one thread, `ended` once, behind the last run."""

    def __init__(
        self,
        storage: Storage,
        claimant: Claimant,
        deeds: Deeds,
        *,
        in_background: Callable[[Callable[[], None]], None],
        clock: Clock = SYSTEM_CLOCK,
        on_taken: Callable[[str, Request], None] = lambda *_: None,
        on_answered: Callable[[str, Request, Done], None] = lambda *_: None,
    ) -> None:
        self._storage = storage
        self._claimant = claimant
        self._deeds = deeds
        self._in_background = in_background
        self._on_taken = on_taken
        self._on_answered = on_answered
        self._clock = clock
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        """Held while a request is taken on and begun: the end comes before that, or behind it, and then answers it."""
        self._is_closed = False
        self._told: set[tuple[str, str, str]] = set()
        self._under_way: dict[str, Request] = {}
        self._over_since_s: dict[str, float] = {}

    def look(self) -> None:
        """Take on what there is. Nothing that goes wrong here is in the job's way: the next look tries again."""
        try:
            listing = Listing(self._storage)
            for request in listing.open:
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
                if not self._is_closed:
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

    def close(self) -> None:
        """The last run is over: nothing is taken on from here on. What comes is left to whoever asks, and to the next start."""
        with self._deciding:
            self._is_closed = True

    def ended(self, facts: Facts, error: BaseException | None = None) -> None:
        """The job is over: that is what a stop or cancel waits for, and why nothing else can be done. `error`: why a stop failed."""
        self.close()
        with self._lock:
            left = dict(self._under_way)
        for request, wish in left.items():
            self._answer(request, answer_at_the_end(wish, facts, error))

    # ── one request ────────────────────────────────────────────────────────────────────────────

    def _decide(self, request: str) -> None:
        claim = self._claim()
        if claim is None:
            return  # nobody has the job yet
        try:
            wish = read_request(self._storage, request)
        except FileNotFoundError:
            return  # its asker has read the answer of another run
        except CorruptStateError as error:
            claim.check()
            self._answer(request, Done.failed(error))
            return
        if self._is_late(request, wish, claim) or not take_on(self._storage, request, claim.run):
            return  # taken back: its asker answers, and deletes it
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

    def _claim(self) -> Claim | None:
        return newest_claim(self._storage, self._claimant)

    def _begin(self, request: str, wish: Request) -> None:
        match wish.kind:
            case Kind.CHECKPOINT:
                self._in_background(lambda: self._perform(request, wish, self._deeds.checkpoint))
            case Kind.SAVEPOINT:
                self._in_background(lambda: self._perform(request, wish, self._deeds.savepoint))
            case Kind.STOP:
                self._stop(request, wish)
            case Kind.CANCEL:
                self._deeds.cancel()

    def _stop(self, request: str, wish: Request) -> None:
        """The answer follows when the job has ended; at once when it is refused, and the job goes on."""
        try:
            self._deeds.stop(request, wish)
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
    return Done.failed(f"the job ended ({facts.get('status')}) before the {wish.kind} was made")


def _expired(wish: Request, late_s: float) -> str:
    waited = duration(max(0.0, wish.until - wish.asked_at))
    return (
        f"the {wish.kind} was to begin within {waited} of being asked for, and that was over {duration(late_s)} ago (by the clock of the "
        "machine that runs the job): it was not begun, or a run died over it"
    )
