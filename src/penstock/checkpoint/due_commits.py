"""Which commits are due, and what is still promised. Pure; driver.

What always holds:
1. Exactly once: a transaction is committed only after the metadata that names it is written. In the other modes it is committed at
   the end of its batch.
2. Every metadata names all transactions up to its barrier that are not known to be committed. At most once it names none: a commit
   in doubt is not made again.
3. Each sink commits in the order of the batches, by actions of its own; between sinks there is no order. No transaction is in two
   actions.
4. A checkpoint is marked as committed only when nothing that it promised is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.checkpoint.completed import Completed, PreCommitted
from penstock.checkpoint.events import Action, BatchFinished, Commit, MarkCommitted, SweepTransactions
from penstock.config import Mode
from penstock.ids import CheckpointId, RunId
from penstock.sinks.two_phase_commit import TransactionName


class DueCommits:
    """The transactions of one run that are pre-committed and not known to be committed, by their names, oldest batch first."""

    def __init__(self, mode: Mode, run: RunId) -> None:
        self._mode = mode
        self._run = run
        self._uncommitted: dict[TransactionName, PreCommitted] = {}
        self._committing: set[TransactionName] = set()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._uncommitted)

    @property
    def committing(self) -> int:
        """How many of them may be committed: somebody was told to."""
        return len(self._committing)

    @property
    def uncommitted(self) -> tuple[PreCommitted, ...]:
        """All of them, oldest batch first."""
        return tuple(self._uncommitted.values())

    def promised(self, up_to: CheckpointId) -> tuple[PreCommitted, ...]:
        """What a metadata whose state has seen the batches up to this one must name."""
        if self._mode is Mode.AT_MOST_ONCE:
            return ()
        return tuple(one for one in self._uncommitted.values() if one.checkpoint <= up_to)

    def are_committed(self, completed: Completed) -> bool:
        """Whether all that a checkpoint of this run promised is visible. What earlier runs promised was committed before this one began."""
        return not any(one.name in self._uncommitted for one in completed.transactions)

    def batch_finished(self, event: BatchFinished) -> list[Action]:
        """Its transactions count now; those of other attempts never will."""
        self._uncommitted |= {one.name: one for one in event.transactions}
        return [] if self._mode is Mode.EXACTLY_ONCE else self._commit_up_to(event.batch)

    def completed(self, checkpoint: CheckpointId) -> list[Action]:
        """Its metadata exists: commit what it named, and abort what attempts that do not count have left."""
        sweep = SweepTransactions(checkpoint, frozenset(self._uncommitted))
        return [*self._commit_up_to(checkpoint), sweep]

    def committed(self, transactions: Iterable[PreCommitted], completed: Sequence[Completed]) -> list[Action]:
        """These are visible. `completed`: the checkpoints that exist, the newest last."""
        for one in transactions:
            self._committing.discard(one.name)
            self._uncommitted.pop(one.name, None)
        newest = completed[-1] if completed else None
        if newest is None or newest.run != self._run:
            return []
        left = any(one.name in self._uncommitted for one in newest.transactions)
        return [] if left else [MarkCommitted(newest)]

    def _commit_up_to(self, checkpoint: CheckpointId) -> list[Action]:
        by_sink: dict[str, list[PreCommitted]] = {}
        for name, one in self._uncommitted.items():
            if one.checkpoint <= checkpoint and name not in self._committing:
                by_sink.setdefault(one.sink, []).append(one)
                self._committing.add(name)
        return [Commit(sink, tuple(transactions)) for sink, transactions in by_sink.items()]
