"""Which sorted files are merged in the background, and when the result takes their place. Pure but for its lock; driver.

    a handle has files to merge -> an order goes out with the next batch -> a worker merges, uploads and reports ->
    the driver puts the merged file into the handle with which the next batch begins

The order travels with a batch because its task has the files at hand; the work goes on after the task has ended. Nothing waits for it, and
nothing depends on it: an order whose worker died, or whose disk was full, is simply given again later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.ids import SubtaskId
from penstock.state.handle import FileRef, StateHandle
from penstock.state.lifetimes import Moment

RETRY_AFTER_S = 30.0
LOST_AFTER_S = 600.0


@dataclass(frozen=True)
class MergeOrder:
    """Adjacent files of one subtask, newest first, to be merged into one; `oldest` if there are no older files."""

    subtask: SubtaskId
    refs: tuple[FileRef, ...]
    oldest: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The files that the merged file replaces."""
        return tuple(ref.name for ref in self.refs)


@dataclass(frozen=True)
class Merged:
    """An order that was carried out: the result is in storage, or there is none because no row was left."""

    subtask: SubtaskId
    replaced: tuple[str, ...]
    ref: FileRef | None


@dataclass
class MergeOrders:
    """At most one order a subtask at a time."""

    choose: Callable[[Sequence[FileRef], Moment], range | None]
    """Which of a subtask's files."""
    _under_way: dict[SubtaskId, tuple[MergeOrder, float]] = field(default_factory=dict)
    _not_before: dict[SubtaskId, float] = field(default_factory=dict)
    _done: list[Merged] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def order(
        self, handles: Iterable[StateHandle], now: float, moment_of: Callable[[str], Moment]
    ) -> dict[SubtaskId, MergeOrder]:
        """New orders, sent with the batch that begins with these handles.

        `moment_of` returns the times by which state of an operator expires, `now` is the time of the driver's clock.
        """
        with self._lock:
            self._under_way = {
                subtask: (order, since)
                for subtask, (order, since) in self._under_way.items()
                if now - since < LOST_AFTER_S
            }
            orders = {}
            for handle in handles:
                subtask = handle.subtask
                if subtask in self._under_way or now < self._not_before.get(subtask, now):
                    continue
                window = self.choose(handle.refs, moment_of(subtask.uid))
                if window is not None:
                    refs = handle.refs[window.start : window.stop]
                    orders[subtask] = MergeOrder(subtask, refs, oldest=window.stop == len(handle.refs))
                    self._under_way[subtask] = (orders[subtask], now)
            return orders

    @property
    def merging(self) -> frozenset[str]:
        """Files that an order under way, or its result, is about to replace."""
        with self._lock:
            orders = {name for order, _ in self._under_way.values() for name in order.names}
            return frozenset(orders.union(*(done.replaced for done in self._done)))

    @property
    def expecting(self) -> frozenset[SubtaskId]:
        """Subtasks with a merge under way, or with a result that no handle names yet."""
        with self._lock:
            return frozenset((*self._under_way, *(done.subtask for done in self._done)))

    def not_taken(self, subtasks: Iterable[SubtaskId]) -> None:
        """These had no rows in the batch, so that no task took the order."""
        with self._lock:
            for subtask in subtasks:
                self._under_way.pop(subtask, None)

    def done(self, merged: Merged) -> None:
        """A worker has merged and uploaded. From any thread."""
        with self._lock:
            self._under_way.pop(merged.subtask, None)
            self._done.append(merged)

    def failed(self, subtask: SubtaskId, now: float) -> None:
        """A worker could not; the order is given again, not at once. From any thread."""
        with self._lock:
            self._under_way.pop(subtask, None)
            self._not_before[subtask] = now + RETRY_AFTER_S

    def adopt(
        self, handles: Mapping[SubtaskId, StateHandle]
    ) -> tuple[dict[SubtaskId, StateHandle], frozenset[str]]:
        """The handles with merged files in place of the originals, and all resulting files.

        A result whose originals are gone, because its order was given twice, is among the files but in no handle.
        """
        with self._lock:
            done, self._done = self._done, []
        adopted = dict(handles)
        for merged in done:
            if merged.subtask in adopted:
                adopted[merged.subtask] = replaced(adopted[merged.subtask], merged)
        return adopted, frozenset(merged.ref.name for merged in done if merged.ref)

    def unused(self) -> frozenset[str]:
        """Results that no batch will take any more, at the end of a run."""
        return self.adopt({})[1]


def replaced(handle: StateHandle, merged: Merged) -> StateHandle:
    """The handle with the merged file instead of those it was made of; unchanged when they are not all there, side by side."""
    names = [ref.name for ref in handle.refs]
    first = names.index(merged.replaced[0]) if merged.replaced[0] in names else 0
    last = first + len(merged.replaced)
    if tuple(names[first:last]) != merged.replaced:
        return handle
    result = () if merged.ref is None else (merged.ref,)
    return msgspec.structs.replace(handle, refs=(*handle.refs[:first], *result, *handle.refs[last:]))
