"""Requests of the program that runs the job. They need no storage, and are reported like all others. Driver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.requests.request_files import ID_DIGITS, PROGRAM, Done, Facts, Kind, Request
from penstock.requests.request_server import Judge, answer_at_the_end

FIRST_CHECKPOINT_S = 600.0
"""So long a stop with a savepoint waits for the first checkpoint of the job."""


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
