"""At least once: which version of each subtask a checkpoint takes. Pure; driver.

A subtask may hand in any version at or after the barrier: whichever its upload was of. What a version has seen it never
emits again, so what it put out must not be lost with a crash:
1. its rows in the sinks are promised by the checkpoint that takes it (`Protocol` does that), so its batch must be finished;
2. its rows to operators behind it are in their state, so these hand in that version or a later one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from operator import itemgetter

from penstock.checkpoint.completed import Upstream
from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.pending import Pending
from penstock.ids import CheckpointId, SubtaskId
from penstock.state.handle import FileRef, StateHandle

_State = tuple[SubtaskId, tuple[FileRef, ...]]
_Version = tuple[CheckpointId, StateHandle]
_batch = itemgetter(0)


class LaterVersions:
    """The finished batches that are in no completed checkpoint, and which states in them are stored.

    What a question costs grows with the subtasks, not with the batches: each version is sorted in once, when it is both finished
    and stored.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._newest: BatchFinished | None = None
        self._finished: dict[CheckpointId, BatchFinished] = {}
        self._files: dict[CheckpointId, frozenset[str]] = {}
        self._handed_in: dict[_State, int] = {}
        """The states that subtasks have stored, and the version of each. A later version with the same runs is the same."""
        self._waiting: dict[_State, list[_Version]] = {}
        """Versions of finished batches that nobody has handed in."""
        self._ready: dict[str, dict[SubtaskId, list[_Version]]] = {uid: {} for uid in upstream}
        """By operator and subtask the versions that a checkpoint may take, in the order of their batches."""

    # ── being told ─────────────────────────────────────────────────────────────────────────────

    def batch_finished(self, event: BatchFinished, durable: AbstractSet[str]) -> None:
        """Its versions may be taken once they are handed in. What is `durable` already nobody will upload."""
        self._newest = event
        self._finished[event.batch] = event
        self._files[event.batch] = event.files
        for handle in event.handles.values():
            if handle.files <= durable:
                self.hand_in(handle)
            state = _state(handle)
            if not handle.files or state in self._handed_in:
                self._add(event.batch, handle)
            else:
                self._waiting.setdefault(state, []).append((event.batch, handle))

    def hand_in(self, handle: StateHandle) -> None:
        """The subtask has stored just this."""
        if not handle.files:
            return
        state = _state(handle)
        self._handed_in[state] = handle.version
        for batch, same in self._waiting.pop(state, ()):
            self._add(batch, same)

    def forget(self, checkpoint: CheckpointId) -> None:
        """It exists. Keep what a batch that no checkpoint has yet may name."""
        self._finished = {batch: one for batch, one in self._finished.items() if batch > checkpoint}
        self._files = {batch: files for batch, files in self._files.items() if batch > checkpoint}
        batches = [*self._finished.values(), *([self._newest] if self._newest else [])]
        named = {_state(handle) for batch in batches for handle in batch.handles.values()}
        self._handed_in = {
            state: version
            for state, version in self._handed_in.items()
            if state in named or version > checkpoint
        }
        self._waiting = {
            state: left for state, versions in self._waiting.items() if (left := _after(versions, checkpoint))
        }
        for subtasks in self._ready.values():
            for subtask in subtasks:
                subtasks[subtask] = _after(subtasks[subtask], checkpoint)

    # ── asking ─────────────────────────────────────────────────────────────────────────────────

    def cut(self, pending: Pending) -> BatchFinished | None:
        """If all subtasks handed in versions after the barrier, the checkpoint moves along to the earliest of these.

        What lies before it is in every subtask, so it need not be read again.
        """
        versions = (handle.version for handle in pending.acknowledged.values())
        return self._finished.get(CheckpointId(min(versions, default=pending.checkpoint)), pending.batch)

    def files_since(self, checkpoint: CheckpointId) -> set[str]:
        """What a checkpoint whose barrier is here may come to name: any later version may be handed in."""
        return set().union(*(files for batch, files in self._files.items() if batch >= checkpoint))

    def to_take(self, checkpoint: CheckpointId) -> dict[SubtaskId, StateHandle]:
        """For each subtask the first version at or after the barrier that will do, as far as there is one."""
        taken: dict[SubtaskId, StateHandle] = {}
        newest: dict[str, int] = {}
        for uid, before in self._upstream.items():
            after = max([checkpoint, *(newest[one] for one in before)])
            own = self._first_since(uid, after)
            taken |= own
            newest[uid] = max((handle.version for handle in own.values()), default=after)
        return taken

    def _first_since(self, uid: str, after: int) -> dict[SubtaskId, StateHandle]:
        found: dict[SubtaskId, StateHandle] = {}
        for subtask, versions in self._ready[uid].items():
            index = bisect_left(versions, after, key=_batch)
            if index < len(versions):
                found[subtask] = versions[index][1]
        return found

    def _add(self, batch: CheckpointId, handle: StateHandle) -> None:
        versions = self._ready[handle.subtask.uid].setdefault(handle.subtask, [])
        insort(versions, (batch, handle), key=_batch)


def _state(handle: StateHandle) -> _State:
    return (handle.subtask, handle.refs)


def _after(versions: Iterable[_Version], checkpoint: CheckpointId) -> list[_Version]:
    return [version for version in versions if version[0] > checkpoint]
