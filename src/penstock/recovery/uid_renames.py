"""A checkpoint under the uids of the current job, see `rename=` of a start. Pure; driver.

Names of files and of transactions stay: the checkpoint refers to them, whatever uid is part of the name.
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
"""New uids by old ones. No uid is on both sides, so that applying it twice changes nothing."""


def check_renames(completed: Completed | None, barrier: Barrier, now: Uids, rename: Rename) -> None:
    """Refuse an old uid that the checkpoint does not have, and two uids that would become one.

    A rename that an earlier start has applied is no error: a supervisor repeats the command. Sinks are not checked: a checkpoint names them
    only in transactions.
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
    """The checkpoint with new uids everywhere."""
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
    """In the same order. If both uids are there, the entry of the new one counts: it was renamed before."""
    return {
        rename.get(uid, uid): one
        for uid, one in by_uid.items()
        if uid not in rename or rename[uid] not in by_uid
    }
