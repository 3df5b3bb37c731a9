"""What is said of a sink whose commits do not come through, and when. Driver.

A sink that is down fails several times a second, or lets one call hang for minutes. A person who reads the log wants one line when it
begins, one a minute while it lasts, and one when it is over: nothing is hidden between them, and nothing is repeated. Every single try is
in the log at level DEBUG.
"""

from __future__ import annotations

import threading

from penstock.clock import Clock
from penstock.places import place_in_user_code
from penstock.wording import counted, duration

SPEAK_EVERY_S = 60.0
_LONGEST_TEXT = 500


class CommitWait:
    """The commits of one sink. Each method returns the line to log, or None; two threads call them."""

    def __init__(self, sink: str, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._tries = 0
        self._cause = ""
        self._since_s: float | None = None
        self._spoken_s: float | None = None

    def begun(self, transactions: int) -> None:
        """So many transactions more are to be committed."""
        with self._lock:
            self._waiting += transactions
            if self._since_s is None:
                self._since_s = self._clock.monotonic()

    def failed(self, error: Exception) -> str | None:
        """A try has failed, and there will be another one."""
        with self._lock:
            self._tries += 1
            self._cause = one_line(error)
            return self._line_if_due(at_once=self._spoken_s is None)

    def tick(self) -> str | None:
        """Time has passed: a call may hang, or a pause may be long."""
        with self._lock:
            return self._line_if_due(at_once=False)

    def done(self, transactions: int) -> str | None:
        """These are committed."""
        with self._lock:
            lasted_s, spoken, tries = self._lasted_s(), self._spoken_s is not None, self._tries + 1
            self._waiting = max(0, self._waiting - transactions)
            self._tries, self._cause, self._spoken_s = 0, "", None
            self._since_s = self._clock.monotonic() if self._waiting else None
            if not spoken:
                return None
            behind = (
                f"; {counted(self._waiting, 'other waits', 'others wait')} behind" if self._waiting else ""
            )
            committed = counted(transactions, "transaction is", "transactions are")
            return (
                f"sink {self._sink}: the commit has come through after {duration(lasted_s)} and {counted(tries, 'try', 'tries')}, "
                f"{committed} committed{behind}"
            )

    def _lasted_s(self) -> float:
        return 0.0 if self._since_s is None else self._clock.monotonic() - self._since_s

    def _line_if_due(self, *, at_once: bool) -> str | None:
        if self._since_s is None:
            return None
        now_s = self._clock.monotonic()
        last_s = self._since_s if self._spoken_s is None else self._spoken_s
        if not at_once and now_s - last_s < SPEAK_EVERY_S:
            return None
        self._spoken_s = now_s
        return self._line()

    def _line(self) -> str:
        waiting = counted(self._waiting, "transaction waits", "transactions wait")
        cause = self._cause or "the call has not come back yet"
        if self._lasted_s() < SPEAK_EVERY_S:
            return f"sink {self._sink}: commit failed, {waiting} for it, it is tried again until it succeeds: {cause}"
        tries = f", {counted(self._tries, 'try', 'tries')} failed" if self._tries else ""
        return f"sink {self._sink}: {waiting} to be committed, for {duration(self._lasted_s())} now{tries}: {cause}"


def one_line(error: BaseException) -> str:
    """An error without line breaks (some drivers add a stack, or the statement), and the line of the user's code that raised it."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    cut = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
    place = place_in_user_code(error.__traceback__)
    return cut if place is None else f"{cut} (at {place})"
