"""Merges sorted files of state in a background thread of the Python worker, while batches go on. Executors.

A merge reads immutable files and writes a new one, so it can be abandoned at any time. The result is uploaded before the driver is
informed: when a handle names it, it is durable, and no checkpoint waits for it.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from penstock.clock import Stopwatch
from penstock.snapshot.mailbox import Address, MergeDone, MergeFailed, Message, tell
from penstock.state.backends.base import StateBackend, StateLayout, Workplace
from penstock.state.merge_orders import MergeOrder


@dataclass(frozen=True)
class Merge:
    """A merge order with everything that is needed to perform it."""

    backend: StateBackend
    workplace: Workplace
    layout: StateLayout
    order: MergeOrder
    mailbox: Address
    run: int


def perform(merge: Merge) -> Message:
    """Merge and upload; returns the message for the driver."""
    watch = Stopwatch()
    order, workplace = merge.order, merge.workplace
    merged = None
    try:
        merged = merge.backend.merge(workplace, merge.layout, order.refs, oldest=order.oldest)
        if merged is not None:
            workplace.storage.upload(workplace.merged_path(merged.name), merged.name)
    except Exception as error:  # noqa: BLE001 - nothing depends on a merge; the driver reports it and orders it again later
        if merged is not None:
            workplace.merged_path(merged.name).unlink(missing_ok=True)
        return _failed(merge, error, merged.name if merged is not None else "")
    return MergeDone(merge.run, order.subtask, order.names, merged, watch.ms)


def _failed(merge: Merge, error: Exception, file: str = "") -> MergeFailed:
    return MergeFailed(merge.run, merge.order.subtask, f"{type(error).__name__}: {error}", file)


class Merger:
    """Performs one merge at a time in a worker. The thread starts with the first order and ends when none is left."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Merge] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, merge: Merge) -> None:
        """Queue a merge for the background thread. If no thread can be started, the driver is informed and orders it again later."""
        try:
            with self._lock:
                if not self._waiting:
                    threading.Thread(target=self._work, name="penstock-merge", daemon=True).start()
                self._waiting += 1
                self._orders.put(merge)
        except RuntimeError as error:  # the process has reached its limit of threads
            tell(merge.mailbox, _failed(merge, error), _about(merge))

    def _work(self) -> None:
        while True:
            merge = self._orders.get()
            tell(merge.mailbox, perform(merge), _about(merge))
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    return


def _about(merge: Merge) -> str:
    return f"a merge of {merge.order.subtask}"


MERGER = Merger()
