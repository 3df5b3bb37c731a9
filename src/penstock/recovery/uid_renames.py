"""What a checkpoint says, under the uids that the job has now. Pure; driver.

Names of files and of transactions stay what they are: they are found by what the checkpoint says of them, whatever their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from penstock import start_options
from penstock.checkpoint.completed import Barrier, Completed, OperatorState
from penstock.errors import IncompatibleStateError
from penstock.ids import SubtaskId
from penstock.job_spec import Uids
from penstock.recovery.started_batches import StartedBatch
from penstock.wording import did_you_mean

_T = TypeVar("_T")

Rename = Mapping[str, str]
"""The new uids by the old ones. No uid is on both sides: the same once more changes nothing."""


def check_renames(completed: Completed | None, barrier: Barrier, now: Uids, rename: Rename) -> None:
    """Refuse what the checkpoint cannot be renamed by: a uid that it does not have, or two that would become one.

    What was renamed by an earlier start is no mistake: a supervisor repeats the command. A sink leaves no trace but its transactions, so
    that nobody can tell whether there was one.
    """
    operators = completed.operators if completed else {}
    for old, new in rename.items():
        if new in now.sources and barrier.positions:
            _check("source", old, new, barrier.positions)
        elif new in now.operators and completed:
            _check("operator", old, new, operators)


def _check(kind: str, old: str, new: str, stored: Collection[str]) -> None:
    if old in stored and new in stored:
        raise IncompatibleStateError(
            f"{start_options.rename(old, new)}: the checkpoint has both, {kind} {old!r} and {kind} {new!r}; two cannot become one. Choose "
            "another new uid",
            old=old,
            new=new,
        )
    if old not in stored and new not in stored:
        known = ", ".join(stored) or "none"
        raise IncompatibleStateError(
            f"{start_options.rename(old, new)}: the checkpoint has no {kind} {old!r}; it has {known}. {did_you_mean(old, stored)}".strip(),
            old=old,
            new=new,
        )


def renamed_checkpoint(completed: Completed, rename: Rename) -> Completed:
    """The checkpoint as if everything in it had had its new uid all along."""
    if not rename:
        return completed
    return msgspec.structs.replace(
        completed,
        barrier=renamed_barrier(completed.barrier, rename),
        operators={
            rename.get(uid, uid): _known_as(rename[uid], uid, one) if uid in rename else one
            for uid, one in completed.operators.items()
        },
        transactions=tuple(
            msgspec.structs.replace(one, sink=rename.get(one.sink, one.sink))
            for one in completed.transactions
        ),
        subtasks=tuple(
            msgspec.structs.replace(
                one, subtask=SubtaskId(rename.get(one.subtask.uid, one.subtask.uid), one.subtask.index)
            )
            for one in completed.subtasks
        ),
        bad_records=_renamed(completed.bad_records, rename),
        late_rows=_renamed(completed.late_rows, rename),
        positions_set=_renamed(completed.positions_set, rename),
    )


def renamed_started(started: StartedBatch, rename: Rename) -> StartedBatch:
    """The same for the record of started batches."""
    if not rename:
        return started
    instead = started.instead
    return msgspec.structs.replace(
        started,
        barrier=renamed_barrier(started.barrier, rename),
        instead=instead
        and msgspec.structs.replace(instead, barrier=renamed_barrier(instead.barrier, rename)),
        positions_set={rename.get(uid, uid): one for uid, one in started.positions_set.items()},
    )


def renamed_barrier(barrier: Barrier, rename: Rename) -> Barrier:
    """The same for where a batch ended."""
    return msgspec.structs.replace(
        barrier,
        positions=_renamed(barrier.positions, rename),
        numbers=_renamed(barrier.numbers, rename),
        time=barrier.time.renamed(rename),
    )


def _known_as(new: str, old: str, state: OperatorState) -> OperatorState:
    handles = (
        msgspec.structs.replace(handle, subtask=SubtaskId(new, handle.subtask.index))
        for handle in state.handles
    )
    return msgspec.structs.replace(state, handles=tuple(handles), former_uids=(*state.former_uids, old))


def _renamed(by_uid: Mapping[str, _T], rename: Rename) -> dict[str, _T]:
    """In the same order. Where both uids are there, the new one's own counts: it was renamed before."""
    return {
        rename.get(uid, uid): one
        for uid, one in by_uid.items()
        if uid not in rename or rename[uid] not in by_uid
    }
