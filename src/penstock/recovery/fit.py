"""Whether the job as it is now fits a checkpoint that an earlier run wrote, and what its subtasks get of the state. Driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from penstock import start_options
from penstock.checkpoint.completed import OperatorColumns, OperatorState, TableColumns
from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.lifetimes import Lifetimes, described
from penstock.recovery.rescale import redistribute
from penstock.recovery.restore import RestorePoint
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.wording import named

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """A checkpoint in the hands of the job as it is now."""

    point: RestorePoint
    layouts: Mapping[str, StateLayout]
    parallelism: int
    backend: str
    now_us: int = 0
    """The time at which the run begins."""

    def lifetimes(self, drop_state: tuple[str, ...]) -> Lifetimes:
        """What the state of the checkpoint had, and since when each time to live of the job holds."""
        return Lifetimes(
            self.layouts,
            {uid: state.lifetimes for uid, state in self._stored.items() if uid not in drop_state},
            self.now_us,
            self.point.barrier.time.counted_from_us,
        )

    @property
    def _stored(self) -> Mapping[str, OperatorState]:
        return self.point.checkpoint.operators if self.point.checkpoint else {}

    def handles(self, drop_state: tuple[str, ...]) -> dict[SubtaskId, StateHandle]:
        """The state of every subtask at the present parallelism; refuses what does not fit the job."""
        stored = self._stored
        orphans = sorted(set(stored) - set(self.layouts) - set(drop_state))
        if orphans:
            raise IncompatibleStateError(
                f"checkpoint {self.point.id} holds state of the {named(orphans, 'operator')}, which the job no longer has; keep "
                f"{'its uid' if len(orphans) == 1 else 'their uids'}, or allow the loss with {start_options.drop_state(*orphans)}"
            )
        handles: dict[SubtaskId, StateHandle] = {}
        for uid, layout in self.layouts.items():
            if uid in stored and uid not in drop_state:
                check_layout(uid, stored[uid].columns, described(layout))
                handles |= redistribute(
                    stored[uid].handles,
                    uid=uid,
                    parallelism=self.parallelism,
                    version=self.point.id,
                    backend=self.backend,
                )
        return handles

    def tell_what_cannot_be_dropped(self, drop_state: tuple[str, ...]) -> None:
        """Say which uids are no operators of the job or of the checkpoint: likely they are misspelt."""
        stored = self._stored
        _tell_unknown(set(drop_state) - set(stored), set(self.layouts), self.point.id)


def _tell_unknown(not_stored: set[str], operators: set[str], checkpoint: CheckpointId) -> None:
    """Not refused: a supervisor starts the same command again, after the start that dropped the state."""
    unknown = sorted(not_stored - operators)
    if unknown:
        _log.warning(
            "%s names %s, of which neither the job nor checkpoint %d knows anything: nothing is dropped for it. The job has %s",
            *(start_options.drop_state(), ", ".join(map(repr, unknown)), checkpoint),
            f"the {named(sorted(operators), 'operator')}" if operators else "no operators",
        )


def check_layout(uid: str, stored: OperatorColumns, now: OperatorColumns) -> None:
    """Refuse stored state that is not what the operator keeps."""
    what_to_do = f"change the job back, give the operator another uid, or allow the loss with {start_options.drop_state(uid)}"
    if (stored.key, stored.value) != (now.key, now.value):
        raise IncompatibleStateError(
            f"operator {uid!r}: its state has key {stored.key} and values {stored.value}, the job has {now.key} and {now.value}; "
            f"{what_to_do}",
            operator=uid,
        )
    for name in sorted(stored.tables.keys() | now.tables.keys()):
        before, after = stored.tables.get(name), now.tables.get(name)
        if (before and before.same_rows) != (after and after.same_rows):
            raise IncompatibleStateError(
                f"operator {uid!r}: of the state {name!r} the checkpoint has {_rows(before)}, the job {_rows(after)}; {what_to_do}",
                operator=uid,
                state=name,
            )


def _rows(table: TableColumns | None) -> str:
    return "nothing" if table is None else f"rows {table.identity} with {table.value}"
