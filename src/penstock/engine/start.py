"""From the wish to run a job to the moment before its first batch: take it over, go back, lay out what the run needs. Driver."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.content import Identity
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import CheckpointListener
from penstock.checkpoint.pending import EventTimestamp
from penstock.checkpoint.protocol import Protocol
from penstock.checkpoint.sink_lanes import RecoveryCalls
from penstock.clock import Clock
from penstock.config import Mode
from penstock.errors import IncompatibleStateError
from penstock.ids import NO_CHECKPOINT, CheckpointId, SubtaskId
from penstock.job_spec import JobSpec
from penstock.log_fields import of_job
from penstock.ownership.claim import Claimant
from penstock.ownership.heartbeat import Alive, beat
from penstock.progress import working
from penstock.randomness import SYSTEM_RANDOMNESS, Randomness
from penstock.recovery import progress_log
from penstock.recovery.fit import Fit
from penstock.recovery.fitting import JobNow, unknown_end
from penstock.recovery.lifetimes import Lifetimes, SwitchedOn, columns_of
from penstock.recovery.progress_log import NO_POSITION, ProgressLog, SourceLog
from penstock.recovery.restore import RestorePoint, check_restorable, restore
from penstock.recovery.restore_options import Latest, RestoreOptions
from penstock.recovery.source_match import lines_by_source, numbers_of
from penstock.recovery.state_migration import RunRestoreTasks, StateMigration
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import in_microseconds
from penstock.state.local_files import begin_run, forget_earlier_runs, make_job_dir, run_dir
from penstock.state.rewriting import StateChange
from penstock.status.observer import tell_origins

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Where one run begins. It owns the job, and what came after its checkpoint is gone."""

    point: RestorePoint
    handles: Mapping[SubtaskId, StateHandle]
    local_dir: Path
    """Working files of this run; they can be lost at any time."""
    log: ProgressLog
    source_log: SourceLog
    now_us: int = 0
    """The time at which it begins; that of its batches is never before."""
    switched_on_us: SwitchedOn = field(default_factory=dict)
    positions_set: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for with `positions=`, and is done."""
    dropped: tuple[str, ...] = ()
    """The same for `drop_state=`."""


def start_run(
    spec: JobSpec,
    *,
    claimant: Claimant,
    clock: Clock,
    perform_all: RunRestoreTasks,
    randomness: Randomness = SYSTEM_RANDOMNESS,
    wanted: int | None = None,
    drop_state: tuple[str, ...] = (),
    changes: RestoreOptions = RestoreOptions(),  # noqa: B008 - it is frozen
    latest: Latest = unknown_end,
    on_restored: Callable[[RestorePoint], None] = lambda _: None,
    alive: Alive = lambda _: nullcontext(),
    before_claim: Callable[[], None] = lambda: None,
    given_up: Callable[[], bool] | None = None,
) -> Start:
    """Take the job over and go back to its checkpoint. After this, earlier runs can do nothing any more.

    `wanted`: an older retained checkpoint instead of the newest. `perform_all`: how tasks are run that take state over.
    `latest`: where a source ends now. `alive`: says that the run is, while sinks commit and tasks take state over, which may take long.
    `before_claim`: called when nothing is refused any more, before the first claim. `given_up`: see `RecoveryCalls`.
    """
    of_job(spec.name)
    now = JobNow(spec.source_numbers, spec.uids, changes, latest)
    with RecoveryCalls(given_up, shows_rows=spec.shows_rows) as calls:
        point = _restored(
            spec,
            claimant,
            clock,
            wanted,
            drop_state=drop_state,
            now=now,
            before_claim=before_claim,
            alive=alive,
            calls=calls,
        )
    beat(spec.storage, point.run, clock.wall())
    for line in point.fitted.said if point.fitted else ():
        _log.warning("%s", line)
    on_restored(point)
    asked, drop_state = drop_state, _still_to_drop(drop_state, claimant, spec, point)
    now_us = _not_before(point, clock)
    fit = _fit(spec, point, now_us)
    lifetimes = fit.lifetimes(drop_state)
    handles, changed = fit.handles(drop_state), fit.changes(drop_state)
    fit.tell_what_cannot_be_dropped(drop_state)
    log, source_log = _set_out(spec, point)
    local_dir = _begin_local_dir(spec, point, handles, randomness)
    start = Start(
        *(point, handles, local_dir, log, source_log, now_us, lifetimes.switched_on),
        positions_set=dict(changes.positions),
        dropped=asked,
    )
    rescaled = point.checkpoint is not None and point.checkpoint.parallelism != spec.parallelism
    if handles and (rescaled or lifetimes.brings_back or changed):
        with alive(point.claim):
            start = replace(start, handles=_taken_over(spec, start, lifetimes, changed, perform_all))
    return replace(start, handles=lifetimes.fading(start.handles))


def check_fits(
    spec: JobSpec,
    point: RestorePoint,
    drop_state: tuple[str, ...],
    changes: RestoreOptions = RestoreOptions(),  # noqa: B008 - it is frozen
    latest: Latest = unknown_end,
) -> None:
    """Refuse what the job cannot go on from; raises before anything is changed."""
    _check_key_groups(spec, point)
    fitted = JobNow(spec.source_numbers, spec.uids, changes, latest).fit(point, drop_state)
    _fit(spec, fitted).handles(drop_state)


def _check_key_groups(spec: JobSpec, point: RestorePoint) -> None:
    """A crash may have come between a savepoint that changed them and the record of the job."""
    checkpoint = point.checkpoint
    if checkpoint is not None and checkpoint.max_parallelism != spec.max_parallelism:
        raise IncompatibleStateError(
            f"checkpoint {point.id} has max_parallelism={checkpoint.max_parallelism}, the job {spec.max_parallelism}: key groups would not "
            f"match; set it to {checkpoint.max_parallelism}, or start it with the savepoint that changed it",
            setting="max_parallelism",
        )


def _still_to_drop(
    asked: tuple[str, ...], claimant: Claimant, spec: JobSpec, point: RestorePoint
) -> tuple[str, ...]:
    """An operator of the job that was dropped when the checkpoint came to be is not dropped again: a supervisor repeats its command.

    Single states go only where they have to, and what the job does not have may go whenever it is there. So may what the job, changed
    once more, cannot go on with: there is no start without the word then.
    """
    dropped = set(point.checkpoint.dropped if point.checkpoint else ()) & set(spec.layouts)
    states = tuple(name for name in asked if name not in dropped)
    done = dropped - _fit(spec, point).misfits(states) if dropped else dropped
    return tuple(name for name in claimant.still_to_drop(asked, point.completed_by) if name not in done)


def forget_working_files(spec: JobSpec, start: Start) -> None:
    """At the end of a run; with `local_recovery` the next one may use what is left."""
    if not spec.local_recovery:
        shutil.rmtree(start.local_dir, ignore_errors=True)


def _restored(
    spec: JobSpec,
    claimant: Claimant,
    clock: Clock,
    wanted: int | None,
    *,
    drop_state: tuple[str, ...],
    now: JobNow,
    before_claim: Callable[[], None],
    alive: Alive,
    calls: RecoveryCalls,
) -> RestorePoint:
    checkpoint = None if wanted is None else CheckpointId(wanted)

    def fitting(point: RestorePoint) -> RestorePoint:
        return now.fit(point, _still_to_drop(drop_state, claimant, spec, point))

    def check(point: RestorePoint) -> None:
        _check_key_groups(spec, point)
        _fit(spec, point).handles(_still_to_drop(drop_state, claimant, spec, point))

    if not claimant.has_claimed:
        check_restorable(
            spec.storage,
            spec.sinks,
            owner=spec.owner,
            mode=spec.mode,
            wanted=checkpoint,
            fitting=fitting,
            check=check,
            calls=calls,
        )
        before_claim()
    return restore(
        spec.storage,
        spec.sinks,
        owner=spec.owner,
        mode=spec.mode,
        now=clock.wall(),
        wanted=checkpoint,
        claimant=claimant,
        fitting=fitting,
        former=now.former,
        check=check,
        alive=alive,
        calls=calls,
    )


def _fit(spec: JobSpec, point: RestorePoint, now_us: int = 0) -> Fit:
    return Fit(point, spec.layouts, spec.parallelism, spec.backend.name, now_us)


def _not_before(point: RestorePoint, clock: Clock) -> int:
    """The driver's time, or that of the checkpoint when the clock was set back since."""
    recorded_us = 0 if point.checkpoint is None else point.checkpoint.now_us
    return max(recorded_us, in_microseconds(clock.wall()))


def _set_out(spec: JobSpec, point: RestorePoint) -> tuple[ProgressLog, SourceLog]:
    """Fill this run's progress log: Spark goes on after `point.last_read`. Returns it, with what the sources have noted so far."""
    barrier = point.barrier
    undecided = _undecided(spec, point)
    if spec.mode is Mode.AT_MOST_ONCE:
        entry = progress_log.without_positions(barrier.progress_log, spec.replayable)
        barrier = msgspec.structs.replace(barrier, progress_log=entry)
    log = ProgressLog(spec.storage, point.run)
    return log, progress_log.set_out(log, point.last_read, barrier, undecided, _anew(point, undecided))


def _undecided(spec: JobSpec, point: RestorePoint) -> dict[str, list[int]]:
    """The sources that decide in this run where to begin."""
    if point.last_read == NO_CHECKPOINT:
        return {uid: list(own) for uid, own in spec.source_numbers.items()}
    lines, numbers = lines_by_source(point.barrier), numbers_of(point.barrier)
    return {uid: list(numbers[uid]) for uid, own in lines.items() if all(line == NO_POSITION for line in own)}


def _anew(point: RestorePoint, undecided: Iterable[str]) -> frozenset[str]:
    """Of these sources the ones of which the checkpoint has a position."""
    stored = lines_by_source(point.checkpoint.barrier) if point.checkpoint else {}
    return frozenset(uid for uid in undecided if any(line != NO_POSITION for line in stored.get(uid, ())))


def _begin_local_dir(
    spec: JobSpec, point: RestorePoint, handles: Mapping[SubtaskId, StateHandle], randomness: Randomness
) -> Path:
    """A folder of this run for working files, beside those of earlier runs."""
    make_job_dir(spec.working_folder)
    local = run_dir(spec.working_folder, point.run, randomness.token(8))
    if not spec.local_recovery:
        forget_earlier_runs(local)
    begin_run(local, _files(handles))
    return local


def _files(handles: Mapping[SubtaskId, StateHandle]) -> frozenset[str]:
    return frozenset(name for handle in handles.values() for name in handle.files)


def _taken_over(
    spec: JobSpec,
    start: Start,
    lifetimes: Lifetimes,
    changes: Mapping[str, StateChange],
    perform_all: RunRestoreTasks,
) -> dict[SubtaskId, StateHandle]:
    """The handles with which the first batch begins, when every subtask has to make what it takes over its own first."""
    layouts, switched_on_us = lifetimes.former
    take_over = StateMigration(
        spec.storage,
        spec.backend,
        start.local_dir,
        start.point.run,
        spec.parallelism,
        spec.max_parallelism,
        layouts,
        _files(start.handles) if spec.local_recovery else frozenset(),
        start.now_us,
        switched_on_us,
        lifetimes.brings_back,
        _dealt_out_anew(spec, start),
        start.point.barrier.time,
        start.point.former_uids,
        changes,
        lifetimes.switched_on,
    )
    with working("making the state the subtasks' own", unit="subtask", job=spec.name):
        taken = perform_all(take_over, list(start.handles.values()))
    for one in taken:
        tell_origins(one.report)
    return {one.handle.subtask: one.handle for one in taken}


def _dealt_out_anew(spec: JobSpec, start: Start) -> dict[str, list[StateHandle]]:
    """What the checkpoint holds of operators whose subtasks have state of their own, in their order, where their number is another."""
    restored = {subtask.uid for subtask in start.handles}
    stored = start.point.checkpoint.operators if start.point.checkpoint else {}
    return {
        uid: sorted(stored[uid].handles, key=lambda handle: handle.subtask.index)
        for uid, layout in spec.layouts.items()
        if uid in restored and layout.of_subtasks and len(stored[uid].handles) != spec.parallelism
    }


def make_coordinator(
    spec: JobSpec,
    start: Start,
    *,
    clock: Clock,
    post: Post,
    run_commit: RunCommit,
    listener: CheckpointListener | None = None,
) -> Coordinator:
    """The coordinator of a run that begins here."""
    point = start.point
    identity = Identity(
        spec.name,
        point.run,
        spec.parallelism,
        spec.max_parallelism,
        {uid: columns_of(layout, start.switched_on_us.get(uid)) for uid, layout in spec.layouts.items()},
        spec.upstream,
        point.id,
        savepoint=point.checkpoint.savepoint if point.checkpoint else "",
        claimed=point.checkpoint.claimed if point.checkpoint else "",
        dropped=start.dropped,
        positions_set=start.positions_set,
        former_uids=point.former_uids,
    )
    now = EventTimestamp(clock.monotonic(), clock.wall())
    protocol = Protocol(
        spec.checkpoint, identity, point.retained, now, start.handles.values(), held=point.begun_files
    )
    return Coordinator(
        protocol,
        storage=spec.storage,
        sinks=spec.sinks,
        claim=point.claim,
        clock=clock,
        owner=spec.owner,
        post=post,
        run_commit=run_commit,
        listener=listener,
        left_over=point.left_over,
        shows_rows=spec.shows_rows,
    )
