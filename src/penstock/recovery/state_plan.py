"""How stored state is assigned to the subtasks of the current job, and what has to be rewritten before the first batch. Pure; driver.

A change of parallelism moves no row here: a sorted file is ordered by key group and a subtask looks up only its own keys, so a new subtask
names every file that may hold one of its groups. `recovery.state_match` compares the layouts of one operator, `TtlChanges` their
times to live. `StatePlan.needs_migration` says whether subtasks rewrite their state first (`recovery.state_migration`).

A new time to live counts from now on. One that became longer, or was removed, must not bring back expired values: all state of the operator
is rewritten without them before the first batch, as after a change of parallelism.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

import msgspec

from penstock.checkpoint.model import Completed, OperatorState, StoredLifetime
from penstock.checkpoint.state_columns import StoredLifetimes, columns_of, stored_layout, with_lifetimes
from penstock.errors import IncompatibleStateError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SubtaskId
from penstock.job_spec import JobSpec
from penstock.recovery.state_match import StateMatch, match_state, states_of
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.state.handle import Due, StateHandle, over_in_all
from penstock.state.keys import share_groups
from penstock.state.lifetimes import LONG_AGO_US, Measure, SwitchedOn
from penstock.state.rewriting import StateChange
from penstock.wording import named, start_option

_Layouts = Mapping[str, StateLayout]


_Stored = Mapping[str, OperatorState]


_OF = "."
"""Between the uid of an operator and the name of one of its states."""


class PlanMessage(NamedTuple):
    """A line for the log."""

    level: int
    text: str
    operator: str = ""


@dataclass(frozen=True)
class TtlChanges:
    """The times to live of the current job, compared with those of the checkpoint."""

    layouts: Mapping[str, StateLayout]
    stored: Mapping[str, StoredLifetimes]
    now_us: int
    watermarks_us: Mapping[str, int] = field(default_factory=dict)
    """By operator: the watermark with which it resumes; operators without one are left out."""

    @cached_property
    def switched_on(self) -> SwitchedOn:
        """Since when each time to live counts: as stored in the checkpoint, or from now on."""
        return {
            uid: {
                stamp: known[stamp].switched_on_us if stamp in known else self._now_by(uid, one)
                for stamp, one in columns_of(layout).lifetimes.items()
            }
            for uid, layout in self.layouts.items()
            for known in (self.stored.get(uid, {}),)
        }

    def _now_by(self, uid: str, lifetime: StoredLifetime) -> int:
        """Rows stored without a stamp count from now on. An operator without stored state has no such rows, and no timers."""
        if Measure(lifetime.measure) is Measure.CLOCK:
            return self.now_us
        if Measure(lifetime.measure) is Measure.FIRED:
            return LONG_AGO_US
        return self.watermarks_us.get(uid, LONG_AGO_US) if uid in self.stored else LONG_AGO_US

    @cached_property
    def brings_back(self) -> frozenset[str]:
        """Operators whose expired values would become visible again."""
        return frozenset(
            uid
            for uid, layout in self.layouts.items()
            for now in (columns_of(layout).lifetimes,)
            if any(
                stamp not in now or now[stamp].ttl_us > before.ttl_us
                for stamp, before in self.stored.get(uid, {}).items()
            )
        )

    @cached_property
    def former(self) -> tuple[dict[str, StateLayout], SwitchedOn]:
        """The current layouts with the times to live of the checkpoint, and since when those count."""
        layouts = {
            uid: with_lifetimes(layout, self.stored.get(uid, {})) for uid, layout in self.layouts.items()
        }
        since = {
            uid: {stamp: one.switched_on_us for stamp, one in known.items()}
            for uid, known in self.stored.items()
        }
        return layouts, since

    def fading(self, handles: Mapping[SubtaskId, StateHandle]) -> dict[SubtaskId, StateHandle]:
        """The handles; files whose time to live is new or different expire when it has passed once."""
        return {subtask: self._fading(handle) for subtask, handle in handles.items()}

    def _fading(self, handle: StateHandle) -> StateHandle:
        uid = handle.subtask.uid
        before = {stamp: one.ttl_us for stamp, one in self.stored.get(uid, {}).items()}
        now = columns_of(self.layouts[uid]).lifetimes
        changed = [one for stamp, one in now.items() if before.get(stamp) != one.ttl_us]
        by_event = [one.ttl_us for one in changed if Measure(one.measure) is Measure.WATERMARK]
        by_clock = [one.ttl_us for one in changed if Measure(one.measure) is not Measure.WATERMARK]
        moments: dict[str, int] = {}
        if by_clock:
            moments["fades"] = self.now_us + min(by_clock)
        if by_event and uid in self.watermarks_us:
            moments["fades_event"] = self.watermarks_us[uid] + min(by_event)
        refs = tuple(msgspec.structs.replace(ref, **moments) for ref in handle.refs)
        return msgspec.structs.replace(handle, refs=refs)


@dataclass(frozen=True)
class StatePlan:
    """The state of a run's subtasks before its first batch."""

    handles: Mapping[SubtaskId, StateHandle]
    """The stored state of each subtask at the current parallelism."""
    changes: Mapping[str, StateChange]
    """By operator: how its state is rewritten, because its layout or its backend changed."""
    lifetimes: TtlChanges
    former_handles: Mapping[str, Sequence[StateHandle]]
    """By operator whose tables belong to subtasks and whose parallelism changed: the handles of its former subtasks, in order."""
    rescaled: bool
    messages: tuple[PlanMessage, ...] = ()

    @property
    def needs_migration(self) -> bool:
        """Whether every subtask rewrites its state before the first batch."""
        return bool(self.handles) and bool(self.rescaled or self.changes or self.lifetimes.brings_back)

    @property
    def files(self) -> frozenset[str]:
        """The files that the handles name."""
        return frozenset(name for handle in self.handles.values() for name in handle.files)


def plan_state(
    checkpoint: Completed | None,
    spec: JobSpec,
    drop_state: Sequence[str],
    now_us: int,
    watermarks_us: Mapping[str, int],
) -> StatePlan:
    """Assign the state of a checkpoint to the current subtasks; raises `IncompatibleStateError` if the job cannot use it.

    `drop_state`: operators and single states that may be lost, see `names_to_drop`. `watermarks_us`: with which operators resume.
    """
    stored: _Stored = checkpoint.operators if checkpoint else {}
    version = checkpoint.id if checkpoint else NO_CHECKPOINT
    _refuse_orphans(stored, spec.layouts, drop_state, version)
    kept = {uid: stored[uid] for uid in spec.layouts if uid in stored and uid not in drop_state}
    matches = {uid: _match(kept[uid], spec.layouts[uid], drop_state, uid) for uid in kept}
    handles: dict[SubtaskId, StateHandle] = {}
    for uid, match in matches.items():
        match.check(uid, version)
        for backend in _other_backends(kept[uid], spec):
            backend_named(backend)  # raises if it is not installed
        handles |= redistribute(
            kept[uid].handles,
            uid=uid,
            parallelism=spec.parallelism,
            version=version,
            backend=spec.backend.name,
        )
    return StatePlan(
        handles,
        changes={
            uid: match.change
            for uid, match in matches.items()
            if match.is_other_form or _other_backends(kept[uid], spec)
        },
        lifetimes=TtlChanges(
            spec.layouts,
            {uid: state.lifetimes for uid, state in stored.items() if uid not in drop_state},
            now_us,
            watermarks_us,
        ),
        former_handles={
            uid: sorted(state.handles, key=lambda handle: handle.subtask.index)
            for uid, state in kept.items()
            if spec.layouts[uid].of_subtasks and len(state.handles) != spec.parallelism
        },
        rescaled=checkpoint is not None and checkpoint.parallelism != spec.parallelism,
        messages=(*_about_changes(matches), *_about_drops(drop_state, checkpoint, spec.layouts)),
    )


def _match(stored: OperatorState, layout: StateLayout, drop_state: Sequence[str], uid: str) -> StateMatch:
    """The one place where a stored layout is compared with that of the current job."""
    return match_state(stored_layout(stored.columns), layout, _states_named(drop_state, uid))


def _other_backends(stored: OperatorState, spec: JobSpec) -> set[str]:
    """The backend that wrote the state, if it is not that of the job."""
    return {handle.backend for handle in stored.handles if handle.refs} - {spec.backend.name}


def _refuse_orphans(
    stored: _Stored, layouts: _Layouts, drop_state: Sequence[str], checkpoint: CheckpointId
) -> None:
    orphans = sorted(set(stored) - set(layouts) - set(drop_state))
    if orphans:
        raise IncompatibleStateError(
            f"checkpoint {checkpoint} holds state of the {named(orphans, 'operator')}, which the job no longer has; keep "
            f"{'its uid' if len(orphans) == 1 else 'their uids'}{_rename_hint(orphans, stored, layouts)}, or allow the loss with "
            f"{start_option(drop_state=tuple(orphans))}; nothing was changed"
        )


def _rename_hint(orphans: Sequence[str], stored: _Stored, layouts: _Layouts) -> str:
    """A new operator may be an old one under another uid, if the state of the one fits the other."""
    new = sorted(set(layouts) - set(stored))
    for orphan in orphans:
        found = {uid: _match(stored[orphan], layouts[uid], (), uid) for uid in new}
        fitting = [uid for uid in new if found[uid].fits and not found[uid].is_other_form]
        fitting = fitting or [uid for uid in new if found[uid].fits]  # renamed and changed at once
        if fitting:
            are = "is new" if len(fitting) == 1 else "are new"
            like = (get_close_matches(orphan, fitting, n=1, cutoff=0.0) or fitting)[0]
            return f" ({', '.join(fitting)} {are}: if it is the same one, say so with {start_option(rename={orphan: like})})"
    return ""


# ── drop_state= ────────────────────────────────────────────────────────────────────────────────


def names_to_drop(
    asked: tuple[str, ...], checkpoint: Completed | None, layouts: _Layouts, first_run: RunId | None
) -> tuple[str, ...]:
    """The names of `drop_state=` that still have to be applied: a supervisor repeats its command, and state is dropped once.

    A checkpoint of one of this start's own runs (`first_run` and later) holds nothing that is to go. Neither is an operator dropped again
    that was dropped before the checkpoint, unless the job changed once more and cannot use its state: no start is possible without the
    option then. Single states are lost only where they do not fit, and operators that the job no longer has may go at any time.
    """
    if checkpoint is None:
        return asked
    if first_run is not None and checkpoint.run >= first_run:
        return ()
    dropped = set(checkpoint.dropped) & set(layouts)
    others = [name for name in asked if name not in dropped]
    done = {
        uid
        for uid in dropped
        if uid not in checkpoint.operators
        or _match(checkpoint.operators[uid], layouts[uid], others, uid).fits
    }
    return tuple(name for name in asked if name not in done)


def _states_named(drop_state: Sequence[str], uid: str) -> frozenset[str]:
    """The states of an operator that may be lost. A uid has no dot in it, the name of a state may."""
    parted = (name.partition(_OF) for name in drop_state)
    return frozenset(state for operator, dot, state in parted if dot and operator == uid)


def _about_changes(matches: Mapping[str, StateMatch]) -> list[PlanMessage]:
    return [
        PlanMessage(
            logging.INFO,
            f"operator {uid}: its state is written in another form: {'; '.join(map(str, match.differences))}",
            uid,
        )
        for uid, match in matches.items()
        if match.differences
    ]


def _about_drops(
    drop_state: Sequence[str], checkpoint: Completed | None, layouts: _Layouts
) -> list[PlanMessage]:
    """Names that are no operators or states are likely misspelt. They are not refused: a supervisor repeats the command."""
    stored: _Stored = checkpoint.operators if checkpoint else {}
    known = set(stored) | set(layouts)
    for uid, layout in layouts.items():
        states = states_of(layout, layout.parts)
        if uid in stored:
            states |= states_of(stored_layout(stored[uid].columns), layout.parts)
        known |= {f"{uid}{_OF}{state}" for state in states}
    number, option = checkpoint.id if checkpoint else NO_CHECKPOINT, start_option("drop_state")
    unknown = set(drop_state) - known
    done = sorted(unknown & set(checkpoint.dropped if checkpoint else ()))
    never = sorted(unknown - set(done))
    operators = f"the {named(sorted(layouts), 'operator')}" if layouts else "no operators"
    messages: list[PlanMessage] = []
    if done:
        text = f"{option} names {', '.join(map(repr, done))}, dropped before checkpoint {number}: there is nothing left to drop"
        messages.append(PlanMessage(logging.INFO, text))
    if never:
        text = (
            f"{option} names {', '.join(map(repr, never))}, which neither the job nor checkpoint {number} has: nothing is dropped for it. "
            f"The job has {operators}"
        )
        messages.append(PlanMessage(logging.WARNING, text))
    return messages


# ── parallelism ────────────────────────────────────────────────────────────────────────────────


def redistribute(
    handles: Sequence[StateHandle], *, uid: str, parallelism: int, version: CheckpointId, backend: str
) -> dict[SubtaskId, StateHandle]:
    """One handle for each new subtask, all at the restored version. `backend`: for subtasks without stored state.

    State of another backend stays under its name: the migration reads it with that backend and rewrites it.
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
    # It is not known which subtask waits for it: each one looks, and reports its own.
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
    """The former subtasks that own a key group of the new subtask `index`."""
    return [old for old in range(former) if share_groups(index, parallelism, old, former)]
