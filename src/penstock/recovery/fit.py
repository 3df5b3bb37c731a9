"""Whether the job as it is now fits a checkpoint that an earlier run wrote, and what its subtasks get of the state. Driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from penstock import start_options
from penstock.checkpoint.completed import OperatorState
from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, SubtaskId
from penstock.log_fields import about
from penstock.recovery.lifetimes import Lifetimes, stored_layout
from penstock.recovery.rescale import redistribute
from penstock.recovery.restore import RestorePoint
from penstock.recovery.state_match import StateMatch, match_state, states_of
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.state.rewriting import StateChange
from penstock.wording import named

_log = logging.getLogger(__name__)

_OF = "."
"""Between the uid of an operator and the name of one of its states."""


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
                f"{'its uid' if len(orphans) == 1 else 'their uids'}{self._may_be_renamed(orphans)}, or allow the loss with "
                f"{start_options.drop_state(*orphans)}; nothing was changed"
            )
        handles: dict[SubtaskId, StateHandle] = {}
        for uid, found in self._compared(drop_state).items():
            found.check(uid, self.point.id)
            for backend in self._other_backends(uid):
                backend_named(backend)  # refused where it is not installed
            handles |= redistribute(
                stored[uid].handles,
                uid=uid,
                parallelism=self.parallelism,
                version=self.point.id,
                backend=self.backend,
            )
        return handles

    def changes(self, drop_state: tuple[str, ...]) -> dict[str, StateChange]:
        """How the state of operators becomes what the job wants, where it is stored in another form or by another backend."""
        found: dict[str, StateChange] = {}
        for uid, compared in self._compared(drop_state).items():
            if compared.is_other_form or self._other_backends(uid):
                found[uid] = compared.change
            if compared.differences:
                shown = "; ".join(map(str, compared.differences))
                _log.info(
                    "operator %s: its state is written in another form: %s",
                    uid,
                    shown,
                    extra=about(operator=uid),
                )
        return found

    def misfits(self, drop_state: tuple[str, ...]) -> set[str]:
        """The operators whose state the job cannot go on with, whatever single states may be lost."""
        return {uid for uid, found in self._compared(drop_state).items() if not found.fits}

    def _other_backends(self, uid: str) -> set[str]:
        """What has written the state, where it is not the backend of the job."""
        return {handle.backend for handle in self._stored[uid].handles if handle.refs} - {self.backend}

    def _compared(self, drop_state: tuple[str, ...]) -> dict[str, StateMatch]:
        """The state of each operator that has some, beside what the job keeps."""
        return {
            uid: match_state(stored_layout(self._stored[uid].columns), layout, _states_named(drop_state, uid))
            for uid, layout in self.layouts.items()
            if uid in self._stored and uid not in drop_state
        }

    def _may_be_renamed(self, orphans: Sequence[str]) -> str:
        """Operators that are new may be old ones under another name, where the state of the one fits the other."""
        new = sorted(set(self.layouts) - set(self._stored))
        for orphan in orphans:
            found = {uid: self._changed(orphan, uid) for uid in new}
            fitting = [uid for uid in new if found[uid].fits and not found[uid].is_other_form]
            fitting = fitting or [uid for uid in new if found[uid].fits]  # renamed and changed at once
            if fitting:
                are = "is new" if len(fitting) == 1 else "are new"
                like = (get_close_matches(orphan, fitting, n=1, cutoff=0.0) or fitting)[0]
                return f" ({', '.join(fitting)} {are}: if it is the same one, say so with {start_options.rename(orphan, like)})"
        return ""

    def _changed(self, stored: str, uid: str) -> StateMatch:
        """What would become of the state of an operator that the job no longer has, if one that is new went on with it."""
        return match_state(stored_layout(self._stored[stored].columns), self.layouts[uid], ())

    def tell_what_cannot_be_dropped(self, drop_state: tuple[str, ...]) -> None:
        """Say which names are no operators or states of the job or of the checkpoint: likely they are misspelt."""
        known = set(self._stored)
        for uid, layout in self.layouts.items():
            states = states_of(layout, layout.parts)
            if uid in self._stored:
                states |= states_of(stored_layout(self._stored[uid].columns), layout.parts)
            known |= {f"{uid}{_OF}{state}" for state in states}
        done = set(self.point.checkpoint.dropped) if self.point.checkpoint else set()
        _tell_done((set(drop_state) - known) & done, self.point.id)
        _tell_unknown(set(drop_state) - known - done, set(self.layouts), self.point.id)


def _tell_done(names: set[str], checkpoint: CheckpointId) -> None:
    """A supervisor repeats its command."""
    if names:
        _log.info(
            "%s names %s, which was done before checkpoint %d: there is nothing more to drop",
            *(start_options.drop_state(), ", ".join(map(repr, sorted(names))), checkpoint),
        )


def _tell_unknown(not_stored: set[str], operators: set[str], checkpoint: CheckpointId) -> None:
    """Not refused: a supervisor starts the same command again, after the start that dropped the state."""
    unknown = sorted(not_stored - operators)
    if unknown:
        _log.warning(
            "%s names %s, of which neither the job nor checkpoint %d knows anything: nothing is dropped for it. The job has %s",
            *(start_options.drop_state(), ", ".join(map(repr, unknown)), checkpoint),
            f"the {named(sorted(operators), 'operator')}" if operators else "no operators",
        )


def _states_named(drop_state: tuple[str, ...], uid: str) -> frozenset[str]:
    """The states of an operator that may be lost. A uid has no dot in it, the name of a state may."""
    parted = (name.partition(_OF) for name in drop_state)
    return frozenset(state for operator, dot, state in parted if dot and operator == uid)
