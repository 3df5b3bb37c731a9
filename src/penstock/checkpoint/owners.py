"""Whether the state that a checkpoint names is in the right hands, as far as it shows without fetching a file. Driver.

The name of a state file says which subtask wrote it, and an inline one says it itself. A subtask that is handed no files opens no file that
could object: it would begin anew without a word. So all handles are looked at together, when the metadata is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.checkpoint.completed import Completed
from penstock.errors import CorruptStateError
from penstock.ids import SubtaskId
from penstock.state.backends.sorted_file import file_label, inline_header
from penstock.state.handle import FileRef, writer_of


def check_owners(completed: Completed, name: str) -> None:
    """Raise `CorruptStateError` when a handle is misplaced, doubled or missing, or names what another subtask wrote."""
    for uid, operator in completed.operators.items():
        subtasks = [handle.subtask for handle in operator.handles]
        if len(set(subtasks)) < len(subtasks):
            raise _mixed_up(
                name, f"operator {uid} has two handles of one subtask: {', '.join(map(str, subtasks))}"
            )
        if len(subtasks) != completed.parallelism:
            raise _mixed_up(
                name, f"operator {uid} has {len(subtasks)} handles, for {completed.parallelism} subtasks"
            )
        for index, ref in _refs(completed, uid):
            writer = _writer(ref)
            may_be = [SubtaskId(known_as, index) for known_as in (uid, *operator.former_uids)]
            if writer is not None and writer not in may_be:
                raise _mixed_up(
                    name,
                    f"{file_label(ref)}, written by {writer}, stands there as state of {SubtaskId(uid, index)}",
                )


def _refs(completed: Completed, uid: str) -> Iterator[tuple[int, FileRef]]:
    return ((handle.subtask.index, ref) for handle in completed.operators[uid].handles for ref in handle.refs)


def _writer(ref: FileRef) -> SubtaskId | None:
    if ref.name:
        return writer_of(ref.name)
    header = inline_header(ref)
    return SubtaskId(header.uid, header.subtask)


def _mixed_up(name: str, problem: str) -> CorruptStateError:
    return CorruptStateError(
        f"{name} is corrupt, its handles are mixed up: {problem}; restore an older checkpoint", name=name
    )
