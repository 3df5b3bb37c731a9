"""Whose state this is: what a file says about its writer, against the subtask that opens it. Runs in tasks on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import CorruptStateError, IncompatibleStateError, InternalError
from penstock.state.backends.base import Workplace
from penstock.state.keys import share_groups


class WriterHeader(Protocol):
    """What stored state says about the subtask that wrote it."""

    @property
    def uid(self) -> str:
        """The operator."""

    @property
    def subtask(self) -> int:
        """Which of its subtasks."""

    @property
    def parallelism(self) -> int:
        """How many subtasks there were."""

    @property
    def max_parallelism(self) -> int:
        """How many key groups there were."""


def check_writers(workplace: Workplace, written: Sequence[tuple[str, WriterHeader]]) -> None:
    """Refuse state that is not this subtask's, or whose order is not known; every header comes with the name of its file.

    Files of former subtasks hold different keys, so they can stand in any order, but only if all were written
    at one parallelism. A file from before one rescale next to a file from after it may hold an old value in
    front of a new one.
    """
    for label, header in written:
        _check_key_groups(workplace, header)
        _check_owner(workplace, label, header)
    parallelisms = sorted({header.parallelism for _, header in written})
    if len(parallelisms) > 1:
        raise InternalError(
            f"the handle of {workplace.subtask} mixes files written at parallelism {parallelisms}: "
            "after a rescale every subtask must freeze once before its handle enters a checkpoint",
            subtask=str(workplace.subtask),
            parallelisms=parallelisms,
        )


def _check_key_groups(workplace: Workplace, header: WriterHeader) -> None:
    if header.max_parallelism != workplace.max_parallelism:
        raise IncompatibleStateError(
            f"the state of {workplace.subtask} was written with max_parallelism "
            f"{header.max_parallelism}, the job now has {workplace.max_parallelism}; "
            "it cannot change in the life of a job: set it back",
            subtask=str(workplace.subtask),
            expected=header.max_parallelism,
            found=workplace.max_parallelism,
        )


def _check_owner(workplace: Workplace, label: str, header: WriterHeader) -> None:
    """Read by another subtask, state would look as if its keys had never been there."""
    mine = workplace.subtask
    same_operator = header.uid in (mine.uid, *workplace.former_uids)
    if same_operator and share_groups(mine.index, workplace.parallelism, header.subtask, header.parallelism):
        return
    writer = f"{header.uid}-{header.subtask}"
    raise CorruptStateError(
        f"{label} holds state of {writer} of {header.parallelism}, but the checkpoint names it for {mine} of "
        f"{workplace.parallelism}: its handles are mixed up; restore an older checkpoint",
        file=label,
        expected=str(mine),
        found=writer,
    )
