"""Calls of sinks on the driver: commits that are retried until they succeed, and sweeps of transactions that will never be committed.

Calls of one sink run one after another, with transactions in the order of their batches. Sinks are independent of each other: each has
its own thread (`checkpoint.sink_lanes.SinkLanes`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

from penstock.checkpoint.events import CheckpointListener, Commit, Committed, Event, SweepTransactions
from penstock.checkpoint.model import PreCommitted
from penstock.clock import Clock
from penstock.errors import (
    BadRecordError,
    CommitLostError,
    FencedError,
    PenstockError,
    UnavailableError,
    causes_of,
    refuses_login,
)
from penstock.ids import CheckpointId
from penstock.log_fields import about
from penstock.ownership.claim import Claim
from penstock.places import place_in_user_code, without_secrets
from penstock.sinks.two_phase_commit import Transaction, TransactionName, TwoPhaseCommitSink
from penstock.wording import NOT_SHOWN, counted, duration

T = TypeVar("T")

SPEAK_EVERY_S = 60.0
_LONGEST_TEXT = 500


class CommitWait:
    """Decides what to log about a sink whose commits fail. Each method returns the line to log, or None; two threads call them.

    A sink that is down fails several times a second, or blocks one call for minutes. The log gets one line at once, then one a minute.
    """

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
        """This many more transactions wait for their commit."""
        with self._lock:
            self._waiting += transactions
            if self._since_s is None:
                self._since_s = self._clock.monotonic()

    def failed(self, error: Exception) -> str | None:
        """A commit has failed and will be retried."""
        with self._lock:
            self._tries += 1
            self._cause = one_line(error)
            return self._line_if_due(at_once=self._spoken_s is None)

    def tick(self) -> str | None:
        """Reports a call that hangs, or a long pause between tries."""
        with self._lock:
            return self._line_if_due(at_once=False)

    def done(self, transactions: int) -> str | None:
        """These transactions are committed; reports it if the wait was reported."""
        with self._lock:
            lasted_s, spoken, tries = self._lasted_s(), self._spoken_s is not None, self._tries + 1
            self._waiting = max(0, self._waiting - transactions)
            self._tries, self._cause, self._spoken_s = 0, "", None
            self._since_s = self._clock.monotonic() if self._waiting else None
            if not spoken:
                return None
            behind = (
                f"; {counted(self._waiting, 'other waits', 'others wait')} after it" if self._waiting else ""
            )
            committed = counted(transactions, "transaction is", "transactions are")
            return (
                f"sink {self._sink}: the commit succeeded after {duration(lasted_s)} and {counted(tries, 'try', 'tries')}, "
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


_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
NO_FURTHER_TRY = (FencedError, CommitLostError, BadRecordError)
"""Errors after which a retry cannot succeed."""


@dataclass(frozen=True)
class SinkCall:
    """A call of one sink. Calls of the same sink run one after another, in the order in which they are added."""

    sink: str
    work: Callable[[], None]

    def __call__(self) -> None:
        """Make the call in this thread."""
        self.work()


RunCommit = Callable[[SinkCall], None]
Post = Callable[[Event], None]


def call_sink(sink: str, call: Callable[[], T], *, shows_rows: bool) -> T:
    """The result of the call. In the text of an error passwords are masked; without `shows_rows` only its class remains.

    Servers, clients and paths of partitions quote values of rows and addresses, also in errors that are retried.
    """
    try:
        return call()
    except FencedError:
        raise
    except Exception as error:
        if shows_rows and not any(map(_shows_secrets, causes_of(error))):
            raise
        hidden = _masked(error) if shows_rows else _without_text(sink, error)
    raise hidden  # here, so that the error with the text is not its context


def _shows_secrets(error: BaseException) -> bool:
    return any(without_secrets(text) != text for text in (str(error), *_notes_of(error)))


def _notes_of(error: BaseException) -> list[str]:
    return list(map(str, getattr(error, "__notes__", None) or ()))


def _masked(error: Exception) -> PenstockError:
    """The error without its causes, which a trace would show."""
    place = place_in_user_code(error.__traceback__)
    at = "" if place is None else f" (at {place})"
    name = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
    masked = _kind(error)(f"{name}{without_secrets(str(error))}{at}", denied=refuses_login(error))
    for note in _notes_of(error):
        masked.add_note(without_secrets(note))
    return masked


def _kind(error: Exception) -> type[PenstockError]:
    """One of Penstock's errors keeps its class, which decides about retries; any other becomes `UnavailableError`."""
    kinds = [one for one in type(error).__mro__ if issubclass(one, PenstockError)]
    return next((one for one in kinds if one.__module__ == PenstockError.__module__), UnavailableError)


def _without_text(sink: str, error: Exception) -> PenstockError:
    cause = "" if error.__cause__ is None else f" after {type(error.__cause__).__name__}"
    text = f"sink {sink}: {type(error).__name__}{cause} {NOT_SHOWN}"
    return _kind(error)(text, sink=sink, denied=refuses_login(error))


def run_now(call: SinkCall) -> None:
    """Perform it in the calling thread."""
    call()


class Committer:
    """Commits and sweeps for one run. Its methods return at once when `run` has threads for the calls."""

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink],
        *,
        claim: Claim,
        owner: str,
        clock: Clock,
        post: Post,
        run: RunCommit = run_now,
        listener: CheckpointListener | None = None,
        shows_rows: bool = True,
    ) -> None:
        self._sinks = sinks
        self._claim = claim
        self._shows_rows = shows_rows
        self._owner = owner
        """The name under which the sinks keep this job's transactions."""
        self._clock = clock
        self._post = post
        self._run = run
        self._listener = listener or CheckpointListener()
        self._down_since_s: dict[str, float] = {}
        """Sinks whose last commit has failed. Each sink's thread uses only its own entry."""
        self._stopping = threading.Event()
        self._waits = {uid: CommitWait(uid, clock) for uid in sinks}
        self._to_sweep: dict[str, SweepTransactions] = {}
        self._left_to_next_run: set[str] = set()
        """Sinks with a commit that was given up while stopping: later commits must not overtake it."""

    def stop(self) -> None:
        """Leave commits that fail from now on to the next run."""
        self._stopping.set()

    def tick(self) -> None:
        """Log commits that have been waiting for long."""
        for wait in self._waits.values():
            _say(wait.tick())

    # ── committing ─────────────────────────────────────────────────────────────────────────────

    def commit(self, action: Commit) -> None:
        """Commit these transactions, then post `Committed`."""
        self._waits[action.sink].begun(len(action.transactions))
        self._run(SinkCall(action.sink, lambda: self._commit(action)))

    def _commit(self, action: Commit) -> None:
        pause_s = FIRST_PAUSE_S
        while action.sink not in self._left_to_next_run:
            try:
                self._claim.check()
                commit = partial(commit_in_order, self._sinks, action.transactions)
                call_sink(action.sink, commit, shows_rows=self._shows_rows)
            except NO_FURTHER_TRY:
                raise
            except Exception as error:  # noqa: BLE001 - a promised commit is retried, whatever the reason
                self._has_failed(action, error, pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            else:
                self._has_come_through(action)
                self._post(Committed(action.transactions))
                return

    def _has_come_through(self, action: Commit) -> None:
        _say(self._waits[action.sink].done(len(action.transactions)))
        since_s = self._down_since_s.pop(action.sink, None)
        if since_s is not None:
            self._listener.sink_up(action.sink, self._clock.monotonic() - since_s)

    def _has_failed(self, action: Commit, error: Exception, pause_s: float) -> None:
        """Wait for the next try, unless the run is stopping."""
        waiting = len(action.transactions)
        if self._stopping.is_set():
            self._left_to_next_run.add(action.sink)
            _log.warning(
                "sink %s: %s to be committed by the next run, with all later ones: %s",
                *(
                    action.sink,
                    counted(waiting, "transaction is left", "transactions are left"),
                    one_line(error),
                ),
                extra=about(operator=action.sink, error=error),
            )
            return
        _say(self._waits[action.sink].failed(error))
        if action.sink not in self._down_since_s:
            self._down_since_s[action.sink] = self._clock.monotonic()
            self._listener.sink_down(action.sink, one_line(error), waiting)
        _log.debug(
            "sink %s: next try in %.1f s (%s): %s",
            *(action.sink, pause_s, counted(waiting, "transaction"), one_line(error)),
            extra=about(operator=action.sink, error=error),
        )
        self._clock.wait(self._stopping, pause_s)

    # ── sweeping ───────────────────────────────────────────────────────────────────────────────

    def sweep(self, action: SweepTransactions) -> None:
        """Sweep each sink after its pending commits, in its own thread: a sink that does not answer must not block the coordinator."""
        for uid in self._sinks:
            self._to_sweep[uid] = action
            self._run(SinkCall(uid, lambda uid=uid: self._sweep(uid)))  # type: ignore[misc]

    def _sweep(self, uid: str) -> None:
        action = self._to_sweep.pop(uid, None)
        if action is None or uid in self._left_to_next_run:
            return  # sweeps had queued up after a commit: the first of them did the work of the newest
        try:
            call_sink(uid, partial(self._abort_strays, uid, action), shows_rows=self._shows_rows)
        except UnavailableError as error:
            _log.warning(
                "sink %s does not answer, so transactions that will not be committed are aborted after the next checkpoint: %s",
                *(uid, error),
                extra=about(operator=uid),
            )

    def _abort_strays(self, uid: str, action: SweepTransactions) -> None:
        sink = self._sinks[uid]
        for transaction in list(sink.find_transactions(self._owner, uid)):
            name = TransactionName.of(uid, transaction)
            if self._is_stray(name, action.up_to) and name not in action.keep:
                sink.abort(transaction)

    def _is_stray(self, name: TransactionName, up_to: CheckpointId) -> bool:
        """Whether it was left by an earlier run, or by a discarded attempt of this one. Transactions of a later run are not touched."""
        return name.run < self._claim.run or (name.run == self._claim.run and name.checkpoint <= up_to)


def _say(line: str | None) -> None:
    if line is not None:
        _log.warning("%s", line)


def commit_in_order(
    sinks: Mapping[str, TwoPhaseCommitSink],
    transactions: Iterable[PreCommitted],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Commit per sink, oldest batch first. The caller has made sure that the job still has all these sinks.

    `check` is called before each transaction that a sink takes from the list, and raises to stop before it.
    """
    ordered = sorted(transactions, key=lambda one: (one.sink, one.checkpoint, one.subtask))
    for uid, group in groupby(ordered, key=lambda one: one.sink):
        sinks[uid].commit_all(_checked(group, check))


def _checked(transactions: Iterable[PreCommitted], check: Callable[[], None]) -> Iterator[Transaction]:
    for one in transactions:
        check()
        yield one.transaction
