"""The life of one simulated driver process: it may die at any I/O call, or stop there and go on much later.

A process that may stop runs in a thread of its own, but never two move at a time: the one that resumes another waits until it
stops again or ends. So a seed replays everything.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec
from typing_extensions import override

from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.ids import Randomness
from penstock.storage import Storage
from penstock.storage.exclusive_create import create_once
from penstock.storage.forwarding import Operation
from penstock.testing.faulty_storage import FaultyStorage, SimulatedCrash
from penstock.testing.virtual import VirtualObjectStore


class Fate(msgspec.Struct, frozen=True):
    """The planned fate of a process at its I/O call of this number (from 1, storage and sinks together)."""

    dies_before: int | None = None
    dies_after: int | None = None
    pauses_before: int | None = None
    wakes_at: int | None = None
    """A paused process continues to its end at this I/O call of the next run; without it, at a random call."""


class Lifeline:
    """Counts the I/O calls of one process and lets it die or pause."""

    def __init__(self, fate: Fate | None = None, on_call: Callable[[], None] | None = None) -> None:
        self.fate = fate or Fate()
        self.calls: list[str] = []
        self.on_call = on_call
        self.pause_before = self.fate.pauses_before
        self.dead = False
        self._may_move = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)

    def enter(self, label: str) -> None:
        """Called before every I/O call."""
        if self.dead:
            raise SimulatedCrash(f"{label} after death")
        self.calls.append(label)
        if len(self.calls) == self.fate.dies_before:
            self._die(f"before call {len(self.calls)}: {label}")
        if len(self.calls) == self.pause_before:
            self._stand_still()
        if self.on_call is not None:
            self.on_call()

    def leave(self) -> None:
        """Called after every I/O call that took effect."""
        if len(self.calls) == self.fate.dies_after:
            self._die(f"after call {len(self.calls)}: {self.calls[-1]}")

    def _die(self, where: str) -> None:
        self.dead = True
        raise SimulatedCrash(where)

    def _stand_still(self) -> None:
        self._stands.release()
        self._may_move.acquire()
        if self.dead:
            raise SimulatedCrash("killed while it stood still")

    # ── for the thread that controls it ────────────────────────────────────────────────────────

    def wait_until_it_stands(self) -> None:
        """Return when the process pauses or has ended."""
        self._stands.acquire()

    def let_move(self) -> None:
        """Let the paused process continue."""
        self._may_move.release()

    def ended(self) -> None:
        """Said by the process itself, last."""
        self._stands.release()


class SimulatedProcess:
    """Runs `work` so that it can stand still in the middle."""

    def __init__(self, work: Callable[[], None], lifeline: Lifeline) -> None:
        self._work = work
        self.lifeline = lifeline
        self.failure: BaseException | None = None
        self.alive = True
        self._thread = threading.Thread(target=self._run, name="simulated-driver", daemon=True)

    def start(self) -> None:
        """Let it begin; returns when it stands still or has ended."""
        self._thread.start()
        self._watch()

    def go_on(self, calls: int | None) -> None:
        """Let it make this many more I/O calls (None: all it wants)."""
        done = len(self.lifeline.calls)
        self.lifeline.pause_before = None if calls is None else done + 1 + calls
        self.lifeline.let_move()
        self._watch()

    def kill(self) -> None:
        """End it where it stands."""
        if self.alive:
            self.lifeline.dead = True
            self.go_on(None)

    def _watch(self) -> None:
        self.lifeline.wait_until_it_stands()
        if not self.alive:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the controlling thread decides what it means
            self.failure = error
        finally:
            self.alive = False
            self.lifeline.ended()


class Violation(BaseException):
    """Something that must always hold did not. Not an `Exception`, so that nothing under test retries it away."""


T = TypeVar("T")


class WatchedStorage(FaultyStorage):
    """Fails with probability `flakiness`, half of the time after the work was done."""

    def __init__(
        self, inner: Storage, lifeline: Lifeline, rng: random.Random, *, flakiness: float = 0.0
    ) -> None:
        super().__init__(inner)
        self._lifeline = lifeline
        self._rng = rng
        self._flakiness = flakiness

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        self._lifeline.enter(f"{operation} {name}")
        # nothing is drawn where nothing can fail: one call more then leaves the rest of a seed as it was
        fails = self._flakiness > 0 and self._rng.random() < self._flakiness
        if fails and self._rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            raise UnavailableError(f"simulated: {operation} {name!r} failed, nothing was done")
        result = super()._perform(operation, name, work)
        self._lifeline.leave()
        if fails:
            raise UnavailableError(f"simulated: {operation} {name!r} was performed, the answer is lost")
        return result


class WatchedObjectStore(WatchedStorage):
    """An object store: a create is a conditional put and, in doubt, a look at the token; each of them is an I/O call.

    With probability `lost_answers` the answer to the put is wrong: nothing was stored, or it was and the call fails, or it was and the
    store says that the name exists, because the client has tried twice.
    """

    def __init__(
        self,
        inner: VirtualObjectStore,
        lifeline: Lifeline,
        rng: random.Random,
        *,
        flakiness: float,
        lost_answers: float,
        clock: Clock,
    ) -> None:
        super().__init__(inner, lifeline, rng, flakiness=flakiness)
        self._store = inner
        self._lost_answers = lost_answers
        self._wall = clock

    @override
    def create(self, name: str, data: bytes) -> bool:
        token = Randomness(self._rng).token()
        won = create_once(self, name, data, token=token, sleep=self._wall.sleep)
        if won != (token in self._store.stored):
            raise Violation(
                f"a create of {name!r} has {'lost and won' if won else 'won and lost'}: first in the store, then by its answer"
            )
        return won

    def put_new(self, name: str, data: bytes, token: str) -> bool:
        """Store a file with its token, and sometimes give a wrong answer."""
        is_lost = self._rng.random() < self._lost_answers
        how = self._rng.choice(("not stored", "stored, failed", "stored, exists")) if is_lost else ""
        if how == "not stored":
            return self._perform("create", name, lambda: _refuse(name))
        stored = self._perform("create", name, lambda: self._store.put_new(name, data, token))
        if how == "stored, failed":
            _refuse(name)
        return stored and not how

    def token_of(self, name: str) -> str | None:
        """The token with which a file was stored."""
        return self._perform("get", name, lambda: self._store.token_of(name))


def _refuse(name: str) -> bool:
    raise UnavailableError(f"simulated: the answer to the conditional put of {name!r} is lost")
