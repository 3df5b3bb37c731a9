"""One thread a sink: what calls a sink is done in order, and beside what calls the others. Driver, one per run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from penstock.checkpoint.commits import SinkCall
from penstock.log_fields import in_context


class SinkLanes:
    """Takes tasks until it is closed. `perform` runs one; a lane ends when it says False, the others go on."""

    def __init__(self, perform: Callable[[SinkCall], bool]) -> None:
        self._perform = perform
        self._queues: dict[str, queue.SimpleQueue[SinkCall | None]] = {}
        self._threads: list[threading.Thread] = []
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

    def join(self) -> None:
        """Wait until that is so."""
        for thread in self._threads:
            thread.join()

    def _open(self, sink: str) -> None:
        lane = self._queues[sink] = queue.SimpleQueue()
        name = f"penstock-sink-{sink}"
        thread = threading.Thread(target=in_context(self._work), args=(lane,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, lane: queue.SimpleQueue[SinkCall | None]) -> None:
        while (task := lane.get()) is not None:
            if not self._perform(task):
                return
