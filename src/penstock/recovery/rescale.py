"""Hand the state of P subtasks to Q subtasks. Pure; driver.

A sorted file is ordered by key group and a subtask looks up only keys it owns, so a new subtask simply names every file that may hold one
of its groups. No row moves; the backend drops what is not its own when it next merges files.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, SubtaskId
from penstock.state.handle import Due, StateHandle, over_in_all
from penstock.state.keys import share_groups


def redistribute(
    handles: Sequence[StateHandle], *, uid: str, parallelism: int, version: CheckpointId, backend: str
) -> dict[SubtaskId, StateHandle]:
    """One handle for each new subtask, all at the restored version. `backend` is for state of which there is none yet.

    What another backend has written is read by that one: whoever begins with it writes it anew first, see `recovery/state_migration.py`.
    """
    by_index = {handle.subtask.index: handle for handle in handles}
    if sorted(by_index) != list(range(len(by_index))):
        raise IncompatibleStateError(
            f"operator {uid}: the checkpoint holds subtasks {sorted(by_index)}, some are missing"
        )
    writers = sorted({handle.backend for handle in handles if handle.refs})
    if len(writers) > 1:
        raise IncompatibleStateError(
            f"operator {uid}: its state was written by the backends {' and '.join(writers)}, of which each reads only its own"
        )
    # Nobody knows any more whose it is: each subtask looks, and says what its own waits for.
    due = Due.first(handle.due for handle in handles)
    return {
        SubtaskId(uid, index): StateHandle(
            SubtaskId(uid, index),
            writers[0] if writers else backend,
            version,
            tuple(ref for old in _sources(index, parallelism, len(by_index)) for ref in by_index[old].refs),
            max((handle.generation for handle in handles), default=0),
            due,
            over_in_all([by_index[old] for old in _sources(index, parallelism, len(by_index))]),
        )
        for index in range(parallelism)
    }


def _sources(index: int, parallelism: int, former: int) -> list[int]:
    """The former subtasks that own a key group which `index` owns now."""
    return [old for old in range(former) if share_groups(index, parallelism, old, former)]
