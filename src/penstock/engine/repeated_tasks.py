"""Tasks that Spark had to repeat in a batch that came to its end: nothing is lost, and somebody may want to know. Pure; driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.clock import Clock
from penstock.engine.assignment import Answer, OperatorAnswer
from penstock.snapshot.messages import TaskFailed

AT_MOST_EVERY_S = 60.0
"""So often it is told of an operator: code that stumbles in each batch must not fill the journal."""


@dataclass(frozen=True)
class Repeated:
    """The subtasks of one operator or sink that needed more than one attempt."""

    uid: str
    batch: int
    subtasks: tuple[int, ...]
    """Those that are known by their number."""
    attempts: int
    """The most that one of them needed."""
    why: str
    """What the first attempt that failed has said; '' for one that said nothing: its process died."""
    batches_before: int = 0
    """So many batches with the same came since it was last told."""


def repeated_tasks(batch: int, told: Sequence[TaskFailed], answers: Sequence[Answer]) -> tuple[Repeated, ...]:
    """`told`: what attempts have said that failed in this batch; `answers`: those of the attempts that were kept.

    Several operators and sinks may be one task of Spark's, and are repeated together: where one has said why, the others add nothing.
    """
    failed: defaultdict[str, list[TaskFailed]] = defaultdict(list)
    for one in told:
        failed[one.subtask.uid].append(one)
    if failed:
        return tuple(_explained(batch, uid, ones) for uid, ones in failed.items())
    silent: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.tries > 1:
            silent[answer.uid].append(answer)
    return tuple(_unexplained(batch, uid, ones) for uid, ones in silent.items())


def _explained(batch: int, uid: str, failed: Sequence[TaskFailed]) -> Repeated:
    indexes = [one.subtask.index for one in failed]
    at = f" ({failed[0].at.short})" if failed[0].at is not None else ""
    attempts = 1 + max(indexes.count(index) for index in indexes)
    return Repeated(uid, batch, tuple(sorted(set(indexes))), attempts, f"{failed[0].cause}{at}")


def _unexplained(batch: int, uid: str, answers: Sequence[Answer]) -> Repeated:
    known = {index for answer in answers if (index := _index(answer)) is not None}
    return Repeated(uid, batch, tuple(sorted(known)), max(answer.tries for answer in answers), "")


def _index(answer: Answer) -> int | None:
    """An operator's task without rows does not say which subtask it is."""
    if isinstance(answer, OperatorAnswer):
        return None if answer.handle is None else answer.handle.subtask.index
    return answer.subtask


@dataclass
class SeldomTold:
    """Tells of each operator now and then, and how often it was not told."""

    tell: Callable[[Repeated], None]
    clock: Clock
    _told_s: dict[str, float] = field(default_factory=dict)
    _left_out: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, found: Sequence[Repeated]) -> None:
        """Of one batch."""
        now_s = self.clock.monotonic()
        for one in found:
            if now_s - self._told_s.get(one.uid, -AT_MOST_EVERY_S) < AT_MOST_EVERY_S:
                self._left_out[one.uid] += 1
                continue
            self._told_s[one.uid] = now_s
            self.tell(replace(one, batches_before=self._left_out.pop(one.uid, 0)))
