"""Which files are needed, which are in storage, and what may be discarded. Pure; driver.

What always holds:
1. A file is discarded only when no retained checkpoint, no pending one, no working version and no record of started batches
   names it.
2. A file counts as durable only after an upload, or a restored checkpoint, has shown that it is in storage.
3. A file of an unfinished batch is never discarded, because it is not known yet which attempt Spark keeps. When the batch has finished,
   or the run has ended, the file is either named or garbage.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from penstock.checkpoint.events import BatchFinished
from penstock.checkpoint.model import Completed
from penstock.ids import NO_CHECKPOINT, CheckpointId
from penstock.state.handle import StateHandle


class NeededFiles:
    """All files below `state/` that one run knows of.

    Each query gets the files that pending checkpoints may name as `wanted`.
    """

    def __init__(
        self, completed: Iterable[Completed], restored: Iterable[StateHandle], held: frozenset[str]
    ) -> None:
        self._completed = {(one.run, one.checkpoint): one.files for one in completed}
        self._working = frozenset(name for handle in restored for name in handle.files)
        """The state with which the next batch begins. After a rescale no checkpoint names it until the first one completes."""
        self._newest: CheckpointId | None = None
        self._held: dict[CheckpointId, frozenset[str]] = {NO_CHECKPOINT: held}
        self._known: set[str] = set(held).union(self._working, *self._completed.values())
        """Files that may be in storage, and are garbage once nothing names them."""
        self._durable: set[str] = set(self._known)
        self._early: dict[str, int] = {}
        """Files that may be in storage and belong to an unfinished batch."""

    # ── events ─────────────────────────────────────────────────────────────────────────────────

    def hold(self, batch: CheckpointId, files: frozenset[str]) -> None:
        """Keep the files that `recovery.started_batches` has recorded: the next run begins there, unless it restores a newer checkpoint.

        Files that it named before are kept too until the batch is known to be finished: earlier batches may not be known yet.
        """
        self._held[batch] = files

    def take_durable(self, files: Iterable[str], batch: CheckpointId) -> None:
        """Files that are in storage already and that the handles of this batch may begin with, before anything names them."""
        files = list(files)
        self._durable.update(files)
        self._early.update(dict.fromkeys(files, int(batch)))

    def batch_finished(self, event: BatchFinished) -> None:
        """The state of the batch is now the working version, and it is known which task attempts count."""
        self._newest = event.batch
        self._working = event.files
        self._known |= self._working
        self._durable |= event.barrier.files
        if event.batch in self._held:
            self._held = {batch: files for batch, files in self._held.items() if batch >= event.batch}
        self._known.update(name for name, version in self._early.items() if version <= event.batch)
        self._early = {name: version for name, version in self._early.items() if version > event.batch}

    def stored(self, handle: StateHandle) -> None:
        """Every file of this handle is in storage."""
        self._durable |= handle.files
        self.may_be_stored(handle.files, handle.version)

    def may_be_stored(self, files: Iterable[str], version: int) -> None:
        """An attempt at this version has stored all or some of these files."""
        if self._newest is None or version > self._newest:
            self._early.update(dict.fromkeys(set(files) - self._known, version))
        else:
            self._known.update(files)

    def completed(self, checkpoint: Completed) -> None:
        """It exists, and is retained."""
        self._completed[checkpoint.run, checkpoint.checkpoint] = checkpoint.files

    def subsumed(self, checkpoints: Iterable[Completed]) -> None:
        """They are not retained any more."""
        for one in checkpoints:
            del self._completed[one.run, one.checkpoint]

    def run_ended(self) -> None:
        """No further batch will open the working version, or name files of an unfinished batch."""
        self._newest = None
        self._working = frozenset()
        self._known.update(self._early)
        self._early.clear()

    # ── asking ─────────────────────────────────────────────────────────────────────────────────

    def undurable(self, files: AbstractSet[str]) -> set[str]:
        """Those of `files` that are not known to be in storage."""
        return set(files - self._durable)

    def undurable_handles(self, batches: Iterable[BatchFinished]) -> list[StateHandle]:
        """The files that these name and that are not known to be in storage, in order."""
        handles = dict.fromkeys(handle for batch in batches for handle in batch.handles.values())
        return [handle for handle in handles if not handle.files <= self._durable]

    @property
    def durable(self) -> AbstractSet[str]:
        """The files that are known to be in storage."""
        return self._durable

    @property
    def undurable_working(self) -> set[str]:
        """Files of the working version that are not known to be in storage."""
        return self.undurable(self._working)

    def needed(self, wanted: Iterable[AbstractSet[str]]) -> set[str]:
        """Every file that a checkpoint or a task may still need."""
        return set(self._working).union(*self._completed.values(), *self._held.values(), *wanted)

    def discard(self, wanted: Iterable[AbstractSet[str]]) -> tuple[str, ...]:
        """Remove and return the files that nothing needs any more."""
        garbage = self._known - self.needed(wanted)
        self._known -= garbage
        self._durable -= garbage
        return tuple(sorted(garbage))
