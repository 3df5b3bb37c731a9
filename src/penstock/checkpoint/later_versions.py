"""At least once: which version of each subtask a checkpoint takes. Pure; driver.

A subtask may hand in any version at or after the barrier: whichever its upload was of. What a version has seen it never
emits again, so what it put out must not be lost with a crash:
1. its rows in the sinks are promised by the checkpoint that takes it (`Protocol` does that), so its batch must be finished;
2. its rows to operators behind it are in their state, so these hand in that version or a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.checkpoint.events import BatchFinished
from penstock.ids import SubtaskId
from penstock.state.handle import StateHandle

Upstream = Mapping[str, Sequence[str]]
"""The operators in front of each operator, near and far. Those in front come first in it."""


HandedIn = Callable[[StateHandle], bool]
"""Whether a subtask has handed in just this state: it is all in storage."""


def versions_to_take(
    batches: Sequence[BatchFinished], handed_in: HandedIn, upstream: Upstream
) -> dict[SubtaskId, StateHandle]:
    """For each subtask the first version that will do, as far as there is one.

    `batches`: the finished ones from the barrier on, in order.
    """
    taken: dict[SubtaskId, StateHandle] = {}
    newest: dict[str, int] = {}
    for uid in upstream:
        after = max((newest[before] for before in upstream[uid]), default=0)
        acceptable = [batch for batch in batches if batch.batch >= after]
        own = _first_handed_in(uid, acceptable, handed_in)
        taken |= own
        newest[uid] = max((handle.version for handle in own.values()), default=after)
    return taken


def _first_handed_in(
    uid: str, batches: Sequence[BatchFinished], handed_in: HandedIn
) -> dict[SubtaskId, StateHandle]:
    found: dict[SubtaskId, StateHandle] = {}
    for batch in batches:
        for subtask, handle in batch.handles.items():
            if subtask.uid == uid and subtask not in found and handed_in(handle):
                found[subtask] = handle
    return found
