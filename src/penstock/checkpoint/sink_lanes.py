"""One thread a sink: what calls a sink is done in order, and beside what calls the others. Driver, one per run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from penstock.checkpoint.commits import SinkCall
from penstock.log_fields import in_context

LEAVE_AFTER_S = 10.0
"""So long whoever ends the job now waits for a call of a sink that is under way."""
_LOOK_S = 0.1


class SinkLanes:
    """Takes tasks until it is closed. `perform` runs one; a lane ends when it says False, the others go on."""

    def __init__(self, perform: Callable[[SinkCall], bool]) -> None:
        self._perform = perform
        self._queues: dict[str, queue.SimpleQueue[SinkCall | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closed = False

    def put(self, task: SinkCall) -> None:
        """Add a task behind those of the same sink; returns at once. After `close` it is left to the next run."""
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
        """Wait until that is so. Once `given_up` says so, wait only `LEAVE_AFTER_S` longer; returns the sinks whose call has not returned.

        Such a call may still come through: for its target it is one of a run that is over.
        """
        left_s = LEAVE_AFTER_S
        while busy := [sink for sink, thread in self._threads.items() if thread.is_alive()]:
            self._threads[busy[0]].join(_LOOK_S)
            if given_up():
                left_s -= _LOOK_S
                if left_s <= 0:
                    return busy
        return []

    def _open(self, sink: str) -> None:
        lane = self._queues[sink] = queue.SimpleQueue()
        name = f"penstock-sink-{sink}"
        thread = threading.Thread(target=in_context(self._work), args=(lane,), name=name, daemon=True)
        self._threads[sink] = thread
        thread.start()

    def _work(self, lane: queue.SimpleQueue[SinkCall | None]) -> None:
        while (task := lane.get()) is not None:
            if not self._perform(task):
                return
