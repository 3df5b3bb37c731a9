"""The content of a checkpoint's metadata, and the version of each subtask that it takes. Pure; driver.

At least once, a subtask may hand in any version at or after the barrier: the one that it uploaded. Rows that a version has seen are never
emitted again, so its output must survive a crash:
1. The checkpoint that takes the version promises its rows in the sinks (`Protocol` does that), so its batch must be finished.
2. Its rows for downstream operators are in their state, so these operators hand in that version or a later one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import msgspec

from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.model import (
    Completed,
    OperatorColumns,
    OperatorState,
    PreCommitted,
    SubtaskReport,
    Upstream,
)
from penstock.checkpoint.pending import EventTimestamp, Pending
from penstock.config import Checkpointing
from penstock.errors import InternalError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SubtaskId
from penstock.state.handle import FileRef, StateHandle


@dataclass(frozen=True)
class Identity:
    """The facts about the job in the metadata, besides the checkpoint itself."""

    job: str
    run: RunId
    parallelism: int
    max_parallelism: int
    layouts: dict[str, OperatorColumns]
    upstream: Upstream
    restored_from: CheckpointId = NO_CHECKPOINT
    savepoint: str = ""
    """With which the job began."""
    claimed: str = ""
    dropped: tuple[str, ...] = ()
    positions_set: Mapping[str, Any] = field(default_factory=dict)
    former_uids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def operators(self, handles: Mapping[SubtaskId, StateHandle]) -> dict[str, OperatorState]:
        """The state of every operator."""
        return {
            uid: OperatorState(
                layout.key,
                layout.value,
                tuple(handles[subtask] for subtask in sorted(handles) if subtask.uid == uid),
                layout.tables,
                layout.lifetimes,
                layout.schema,
                self.former_uids.get(uid, ()),
            )
            for uid, layout in self.layouts.items()
        }


@dataclass(frozen=True)
class _Upload:
    took_ms: float
    done_s: float
    done_at: float

    @property
    def began_s(self) -> float:
        return self.done_s - self.took_ms / 1000


class Content:
    """Writes down what a checkpoint is, with what was measured on the way."""

    def __init__(self, identity: Identity, settings: Checkpointing) -> None:
        self._identity = identity
        self._settings = settings
        self._uploads: dict[tuple[SubtaskId, int], _Upload] = {}

    def uploaded(self, handle: StateHandle, async_ms: float, now: EventTimestamp) -> None:
        """It is done, and took so long."""
        self._uploads[handle.subtask, handle.version] = _Upload(async_ms, now.monotonic, now.wall)

    def forget(self, checkpoint: CheckpointId) -> None:
        """The checkpoint exists: forget how long its uploads took."""
        self._uploads = {key: one for key, one in self._uploads.items() if key[1] > checkpoint}

    def of(
        self,
        pending: Pending,
        cut: BatchFinished | None,
        *,
        transactions: tuple[PreCommitted, ...],
        completed: Sequence[Completed],
        now: EventTimestamp,
        time_us: int = 0,
    ) -> Completed:
        """The metadata of a checkpoint that stands for the end of batch `cut` and completes after `completed`.

        `time_us` is that of the newest batch. At least once, its state may be of batches after `cut`, whose time must not come again.
        """
        if cut is None:
            raise InternalError(
                f"checkpoint {pending.checkpoint} cannot complete before its batch is finished"
            )
        retained = [*(one.id for one in completed), cut.batch][-self._settings.retained :]
        return Completed(
            job=self._identity.job,
            checkpoint=cut.batch,
            run=self._identity.run,
            mode=self._settings.delivery_mode.value,
            parallelism=self._identity.parallelism,
            max_parallelism=self._identity.max_parallelism,
            barrier=cut.barrier,
            operators=self._identity.operators(pending.acknowledged),
            transactions=transactions,
            subtasks=tuple(self._reports(cut)),
            triggered_at=pending.triggered.wall,
            completed_at=now.wall,
            barrier_at=cut.finished_at,
            duration_ms=round(self._duration_s(pending, cut, now) * 1000, 3),
            restored_from=self._identity.restored_from,
            bad_records=dict(cut.bad_records),
            late_rows=dict(cut.late_rows),
            oldest_retained=retained[0],
            now_us=max(cut.now_us, time_us),
            savepoint=self._identity.savepoint,
            claimed=self._identity.claimed,
            dropped=self._identity.dropped,
            positions_set=dict(self._identity.positions_set),
        )

    def _duration_s(self, pending: Pending, cut: BatchFinished, now: EventTimestamp) -> float:
        """Upload times since the trigger. State stored earlier counts with its upload time: a checkpoint may begin between batches."""
        triggered_s = pending.triggered.monotonic
        known = [
            self._uploads[key] for subtask in cut.reports if (key := (subtask, cut.batch)) in self._uploads
        ]
        if not known:
            return now.monotonic - triggered_s
        began_s, done_s = min(one.began_s for one in known), max(one.done_s for one in known)
        waited_s = max(0.0, triggered_s - done_s)  # for the interval, when all was in storage
        return now.monotonic - min(triggered_s, began_s) - waited_s

    def _reports(self, batch: BatchFinished) -> Iterator[SubtaskReport]:
        for subtask in sorted(batch.reports):
            upload = self._uploads.get((subtask, batch.batch))
            yield msgspec.structs.replace(
                batch.reports[subtask],
                async_ms=upload.took_ms if upload else 0.0,
                acknowledged_at=upload.done_at if upload else batch.finished_at,
            )


_State = tuple[SubtaskId, tuple[FileRef, ...]]
_Version = tuple[CheckpointId, StateHandle]
_batch = itemgetter(0)


class LaterVersions:
    """The finished batches that are in no completed checkpoint, and which states in them are stored.

    The cost of a query grows with the number of subtasks, not of batches: each version is inserted once, when it is both finished
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
        """Versions of finished batches that are not handed in yet."""
        self._ready: dict[str, dict[SubtaskId, list[_Version]]] = {uid: {} for uid in upstream}
        """By operator and subtask the versions that a checkpoint may take, in the order of their batches."""

    # ── events ─────────────────────────────────────────────────────────────────────────────────

    def batch_finished(self, event: BatchFinished, durable: AbstractSet[str]) -> None:
        """Versions of this batch may be taken once they are handed in. Those that are `durable` already will not be uploaded."""
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
        """If all subtasks handed in versions after the barrier, the checkpoint moves to the earliest of these.

        All earlier input is in every subtask, so it need not be read again.
        """
        versions = (handle.version for handle in pending.acknowledged.values())
        return self._finished.get(CheckpointId(min(versions, default=pending.checkpoint)), pending.batch)

    def files_since(self, checkpoint: CheckpointId) -> set[str]:
        """The files that a checkpoint with this barrier may name: any later version may be handed in."""
        return set().union(*(files for batch, files in self._files.items() if batch >= checkpoint))

    def to_take(self, checkpoint: CheckpointId) -> dict[SubtaskId, StateHandle]:
        """For each subtask, the first suitable version at or after the barrier, if there is one."""
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
