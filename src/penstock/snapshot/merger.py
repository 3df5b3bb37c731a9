"""Merges sorted files of state while batches go on: a background thread in the Python worker. Executors.

A merge reads files that never change and writes a new one, so that it can be given up at any moment. The result is uploaded before the
driver hears of it: when a handle names it, it is durable, and no checkpoint waits for it.
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
    """One order, and what is needed to carry it out."""

    backend: StateBackend
    workplace: Workplace
    layout: StateLayout
    order: MergeOrder
    mailbox: Address
    run: int


def perform(merge: Merge) -> Message:
    """Merge, upload, and say how it went."""
    watch = Stopwatch()
    order, workplace = merge.order, merge.workplace
    merged = None
    try:
        merged = merge.backend.merge(workplace, merge.layout, order.refs, oldest=order.oldest)
        if merged is not None:
            workplace.storage.upload(workplace.merged_path(merged.name), merged.name)
    except Exception as error:  # noqa: BLE001 - nothing depends on a merge; the driver tells people and tries again later
        if merged is not None:
            workplace.merged_path(merged.name).unlink(missing_ok=True)
        return _failed(merge, error, merged.name if merged is not None else "")
    return MergeDone(merge.run, order.subtask, order.names, merged, watch.ms)


def _failed(merge: Merge, error: Exception, file: str = "") -> MergeFailed:
    return MergeFailed(merge.run, merge.order.subtask, f"{type(error).__name__}: {error}", file)


class Merger:
    """One merge at a time in a worker; the thread begins with the first order and lives as long as there are any."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Merge] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, merge: Merge) -> None:
        """Merge later, in the background. Where no thread can be had the driver is told at once, and orders it again later."""
        try:
            with self._lock:
                if not self._waiting:
                    threading.Thread(target=self._work, name="penstock-merge", daemon=True).start()
                self._waiting += 1
                self._orders.put(merge)
        except RuntimeError as error:  # the process has as many as it may
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
