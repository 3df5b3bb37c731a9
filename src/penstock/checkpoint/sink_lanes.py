"""One thread per sink: calls of a sink run in order, and concurrently with calls of other sinks. Driver, one per run.

A call that never returns cannot be interrupted. When the job ends, the call is abandoned in its thread, which begins nothing more.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from penstock.checkpoint.commits import SinkCall, call_sink
from penstock.errors import UnavailableError
from penstock.log_fields import in_context
from penstock.wording import duration

T = TypeVar("T")

_log = logging.getLogger(__name__)

LEAVE_AFTER_S = 10.0
"""How long the end of a job waits for a running call of a sink."""
_LOOK_S = 0.1
WARN_AFTER_S = 15.0
"""A call of a recovery that takes longer is named in the log."""


class SinkLanes:
    """Takes tasks until it is closed. `perform` runs one; if it returns False, the lane ends and the others continue."""

    def __init__(self, perform: Callable[[SinkCall], bool]) -> None:
        self._perform = perform
        self._queues: dict[str, queue.SimpleQueue[SinkCall | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._left = False

    def put(self, task: SinkCall) -> None:
        """Queue a task after those of the same sink; returns at once. After `close` it is left to the next run."""
        with self._lock:
            if self._closed:
                return
            if task.sink not in self._queues:
                self._open(task.sink)
            self._queues[task.sink].put(task)

    def close(self) -> None:
        """Take no more tasks. Those that were put are still done."""
        with self._lock:
            self._closed = True
            for lane in self._queues.values():
                lane.put(None)

    def join(self, given_up: Callable[[], bool] = lambda: False) -> list[str]:
        """Wait until all tasks are done, but at most `LEAVE_AFTER_S` once `given_up` returns true. Returns the sinks with unfinished calls.

        Such a call may still succeed: its target sees a call of a run that is over.
        """
        left_s = LEAVE_AFTER_S
        while busy := [sink for sink, thread in self._threads.items() if thread.is_alive()]:
            self._threads[busy[0]].join(_LOOK_S)
            if given_up():
                left_s -= _LOOK_S
                if left_s <= 0:
                    self.leave()
                    return busy
        return []

    @property
    def is_left(self) -> bool:
        """Whether running calls were abandoned."""
        return self._left

    def leave(self) -> None:
        """Begin no further task, even if a running call returns later."""
        self._left = True
        self.close()

    def _open(self, sink: str) -> None:
        lane = self._queues[sink] = queue.SimpleQueue()
        name = f"penstock-sink-{sink}"
        thread = threading.Thread(target=in_context(self._work), args=(lane,), name=name, daemon=True)
        self._threads[sink] = thread
        thread.start()

    def _work(self, lane: queue.SimpleQueue[SinkCall | None]) -> None:
        while (task := lane.get()) is not None:
            if self._left or not self._perform(task):
                return


class RecoveryCalls:
    """The calls of sinks while a run is restored: one at a time, and the caller waits for the answer.

    `given_up`: whether the job ends now. From then on no call begins, and one that is under way has `LEAVE_AFTER_S` to return. Both raise
    `UnavailableError`. Without `given_up` the calling thread makes the calls itself.
    """

    def __init__(self, given_up: Callable[[], bool] | None = None, *, shows_rows: bool = True) -> None:
        self._given_up = given_up
        self._shows_rows = shows_rows
        self._lanes = SinkLanes(_done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lanes.leave()

    def check(self) -> None:
        """Raise if the job ends now, or the recovery has ended, so that no further call begins."""
        if self._lanes.is_left or (self._given_up is not None and self._given_up()):
            raise UnavailableError("the job ends now, and no further call was made; the next run makes it")

    def __call__(self, sink: str, call: Callable[[], T]) -> T:
        """The result of the call; an error is reduced as in `call_sink`."""
        return self._made(sink, partial(call_sink, sink, call, shows_rows=self._shows_rows))

    def _made(self, sink: str, call: Callable[[], T]) -> T:
        if self._given_up is None:
            return call()
        self.check()
        answer: Future[T] = Future()
        self._lanes.put(SinkCall(sink, lambda: _answer(answer, call)))
        left_s, warn_in_s = LEAVE_AFTER_S, WARN_AFTER_S
        while not wait([answer], _LOOK_S).done:
            if 0 < warn_in_s <= _LOOK_S:
                _log.warning(
                    "sink %s: a call of the recovery has not returned for %s; the job starts after it. See whether the target answers",
                    *(sink, duration(WARN_AFTER_S)),
                )
            warn_in_s -= _LOOK_S
            left_s -= _LOOK_S if self._given_up() else 0.0
            if left_s <= 0 and self._given_up():
                raise UnavailableError(
                    "a call has not returned, and the job ends without it. See whether the target answers; the next run commits what a "
                    "checkpoint promised, unless checkpoint.on_cancel deletes the checkpoints"
                )
        return answer.result()


def _done(call: SinkCall) -> bool:
    call()
    return True


def _answer(answer: Future[T], call: Callable[[], T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the answer
        answer.set_exception(error)


IN_THIS_THREAD = RecoveryCalls()
