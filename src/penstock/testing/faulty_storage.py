"""Storages that fail, wait or kill their process as planned: the same plan and the same calls give the same faults.

To test every crash point of a protocol, run it once over `FaultyStorage(inner)` and read `len(storage.calls)`. Then, for each k up to that
number, run it with `FaultPlan(crash_before=k)` and with `FaultPlan(crash_after=k)`, catch `SimulatedCrash`, recover over the inner storage,
and compare with the run that did not crash.

To see what a job does while checkpoints are slow: `ps.Job(..., storage=SlowStorage(LocalStorage("/data/job"), seconds=2.0))`.

`KillingStorage` runs on the driver only. One write decides a checkpoint: the creation of its `_metadata`. Right before it every sink has
pre-committed and nothing is complete; right after it the checkpoint is complete and none of its output is committed. No handler runs,
nothing is flushed, no thread finishes: this is the effect of a power cut at the two moments where it matters most.
"""

from __future__ import annotations

import enum
import fnmatch
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import UnavailableError
from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage, Operation

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process 'died' here. Not an `Exception`, so that no error handler continues as if the process lived."""


class PlannedFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Refuse the first `times` calls whose name matches `pattern` (as in a shell: `chk-*/_metadata`)."""

    pattern: str = "*"
    times: int = 1
    operation: Operation | None = None
    """Only this operation; None means any."""
    performed: bool = False
    """Fail after the work is done: the answer was lost, not the write."""
    error: Callable[[str], BaseException] = UnavailableError


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The planned faults. Calls are numbered from 1; a `delete` counts once for each name."""

    crash_before: int | None = None
    crash_after: int | None = None
    crash: Callable[[str], BaseException] = SimulatedCrash
    failures: tuple[PlannedFailure, ...] = ()
    latency_s: Mapping[Operation, float] = {}


class Call(msgspec.Struct, frozen=True):
    """One call that reached the storage."""

    number: int
    operation: Operation
    name: str


class FaultyStorage(ForwardingStorage):
    """A storage that behaves like `inner`, except for the faults in `plan`.

    After a `SimulatedCrash` every further call raises it too: a dead process does no I/O, nor do its threads.
    A pickled copy counts and remembers for itself.
    """

    def __init__(self, inner: Storage, plan: FaultPlan | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(inner)
        self.plan = plan or FaultPlan()
        self.calls: list[Call] = []
        self.crashed = False
        self._clock = clock
        self._refused = [0] * len(self.plan.failures)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @override
    def delete(self, names: Iterable[str]) -> None:
        """One name at a time, so that a crash may fall between two."""
        for name in names:
            super().delete([name])

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        call = self._count(operation, name)
        if operation in self.plan.latency_s:
            self._clock.sleep(self.plan.latency_s[operation])
        failure = self._next_failure(call)
        self._crash_at(self.plan.crash_before, call, "before")
        if failure is not None and not failure.performed:
            raise failure.error(
                f"planned failure of {operation} {name!r} (call {call.number}); nothing was done"
            )
        result = work()
        self._crash_at(self.plan.crash_after, call, "after")
        if failure is not None:
            raise failure.error(
                f"planned failure of {operation} {name!r} (call {call.number}); it was performed"
            )
        return result

    def _count(self, operation: Operation, name: str) -> Call:
        with self._lock:
            if self.crashed:
                raise SimulatedCrash(f"{operation} {name!r} after the simulated crash")
            call = Call(len(self.calls) + 1, operation, name)
            self.calls.append(call)
            return call

    def _crash_at(self, number: int | None, call: Call, when: str) -> None:
        if call.number != number:
            return
        crash = self.plan.crash(f"planned crash {when} call {call.number}: {call.operation} {call.name!r}")
        self.crashed = isinstance(crash, SimulatedCrash)
        raise crash

    def _next_failure(self, call: Call) -> PlannedFailure | None:
        with self._lock:
            for index, failure in enumerate(self.plan.failures):
                applies = failure.operation in (None, call.operation) and fnmatch.fnmatchcase(
                    call.name, failure.pattern
                )
                if applies and self._refused[index] < failure.times:
                    self._refused[index] += 1
                    return failure
        return None


WRITES = frozenset({"put", "create", "upload"})
_STEP_S = 0.02


class SlowStorage(ForwardingStorage):
    """A storage that waits `seconds` before it writes a file, as if the bytes were on their way; it reads at full speed.

    Only names that match `pattern` (as in a shell: `state/*`) are slow. Once the file `until` exists, no write is slow: a
    waiting write continues at once, in every process.
    """

    def __init__(
        self, inner: Storage, seconds: float = 2.0, *, pattern: str = "*", until: Path | None = None
    ) -> None:
        super().__init__(inner)
        self.seconds = seconds
        self.pattern = pattern
        self.until = until

    def _perform(self, operation: Operation, name: str, work: Callable[[], T]) -> T:
        if operation in WRITES and fnmatch.fnmatchcase(name, self.pattern):
            self._wait()
        return work()

    def _wait(self) -> None:
        end = SYSTEM_CLOCK.monotonic() + self.seconds
        while (left := end - SYSTEM_CLOCK.monotonic()) > 0 and not (self.until and self.until.exists()):
            SYSTEM_CLOCK.sleep(min(_STEP_S, left) if self.until else left)


_METADATA = re.compile(r"chk-(\d+)-r\d+/_metadata")


class KillMoment(enum.Enum):
    """Where in the life of a checkpoint the process dies; the value completes the sentence 'killed ...'."""

    BEFORE_COMPLETE = "between pre-commit and complete"
    BEFORE_COMMIT = "between complete and commit"


class KillPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Die at `moment` of the `nth` checkpoint that this process completes, not counting those numbered below `first`."""

    moment: KillMoment
    nth: int = 1
    first: int = 0


class KillingStorage(ForwardingStorage):
    """A storage that behaves like `inner` until the kill point is reached, and then ends the process with SIGKILL.

    `last_words` is called with the number of the checkpoint right before, for example to wait for a condition or to log.
    Tasks get `inner` itself, so that an executor never dies of it.
    """

    def __init__(
        self, inner: Storage, point: KillPoint, *, last_words: Callable[[int], None] = lambda _: None
    ) -> None:
        super().__init__(inner)
        self.point = point
        self._last_words = last_words
        self._seen = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        return _itself, (self.inner,)

    @override
    def create(self, name: str, data: bytes) -> bool:
        """Does not return from the one that is the kill point."""
        checkpoint = self._reached(name)
        if checkpoint is None:
            return super().create(name, data)
        if self.point.moment is KillMoment.BEFORE_COMMIT:
            super().create(name, data)
        self._last_words(checkpoint)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process survived SIGKILL")  # pragma: no cover

    def _reached(self, name: str) -> int | None:
        """The number of the checkpoint whose metadata `name` is, if it is the one to die at."""
        match = _METADATA.fullmatch(name)
        if match is None or int(match[1]) < self.point.first:
            return None
        with self._lock:
            self._seen += 1
            return int(match[1]) if self._seen == self.point.nth else None


def _itself(storage: Storage) -> Storage:
    return storage
