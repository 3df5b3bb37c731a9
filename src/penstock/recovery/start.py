"""Starts one run of a job: claims it, restores it, and prepares its batches. Driver, before Spark's query."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.content import Identity
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import CheckpointListener
from penstock.checkpoint.model import SubtaskReport
from penstock.checkpoint.pending import EventTimestamp
from penstock.checkpoint.protocol import Protocol
from penstock.checkpoint.sink_lanes import RecoveryCalls
from penstock.checkpoint.state_columns import columns_of
from penstock.clock import Clock
from penstock.ids import SYSTEM_RANDOMNESS, CheckpointId, Randomness, SubtaskId
from penstock.job_spec import JobSpec
from penstock.log_fields import about, of_job
from penstock.long_work import working
from penstock.ownership.claim import Claimant
from penstock.ownership.heartbeat import Alive, beat
from penstock.recovery.progress_log import ProgressLog, SourceLog, fill_progress_log
from penstock.recovery.restore import check_restorable, restore
from penstock.recovery.restore_options import Latest, RestoreOptions
from penstock.recovery.restore_plan import RestorePlan, unknown_end
from penstock.recovery.state_migration import RunRestoreTasks, StateMigration
from penstock.state.handle import StateHandle
from penstock.state.local_files import begin_run, forget_earlier_runs, make_job_dir, run_dir
from penstock.wording import counted, size

_log = logging.getLogger(__name__)


def log_origins(report: SubtaskReport) -> None:
    """Log which files of state a subtask found on its machine and which it fetched, after a restart or the loss of an executor."""
    if report.reused_files or report.fetched_files:
        _log.info(
            "%s: state on %s: %s (%s) used again, %s (%s) from storage",
            *(report.subtask, report.host),
            *(counted(report.reused_files, "file"), size(report.reused_bytes)),
            *(counted(report.fetched_files, "file"), size(report.fetched_bytes)),
        )


@dataclass(frozen=True)
class Start:
    """A run that owns the job and is ready for its first batch."""

    plan: RestorePlan
    handles: Mapping[SubtaskId, StateHandle]
    """The state that the first batch opens, by subtask."""
    local_dir: Path
    """Folder for the working files of this run. They can be lost at any time."""
    log: ProgressLog
    source_log: SourceLog
    left_over: tuple[str, ...] = ()
    """See `Restored.left_over`."""


def start_run(
    spec: JobSpec,
    options: RestoreOptions = RestoreOptions(),  # noqa: B008 - it is frozen
    *,
    claimant: Claimant,
    clock: Clock,
    run_tasks: RunRestoreTasks,
    randomness: Randomness = SYSTEM_RANDOMNESS,
    wanted: int | None = None,
    latest: Latest = unknown_end,
    on_restored: Callable[[RestorePlan], None] = lambda _: None,
    alive: Alive = lambda _: nullcontext(),
    before_claim: Callable[[], None] = lambda: None,
    given_up: Callable[[], bool] | None = None,
) -> Start:
    """Claim the job and restore its checkpoint. After this, earlier runs can no longer change anything.

    `wanted`: an older retained checkpoint instead of the newest. `run_tasks`: runs the tasks that rewrite state. `latest`: asks a source
    where it ends now. `alive`: keeps the heartbeat going while sinks commit and tasks rewrite state, which may take long.
    `before_claim`: called before the first claim, after all checks have passed. `given_up`: see `RecoveryCalls`.
    """
    of_job(spec.name)
    checkpoint = None if wanted is None else CheckpointId(wanted)
    with RecoveryCalls(given_up, shows_rows=spec.shows_rows) as calls:
        if not claimant.has_claimed:
            now = clock.wall()
            check_restorable(spec, options, now=now, wanted=checkpoint, latest=latest, calls=calls)
            before_claim()
        plan, left_over = restore(
            spec,
            options,
            now=clock.wall(),
            claimant=claimant,
            wanted=checkpoint,
            latest=latest,
            alive=alive,
            calls=calls,
        )
    beat(spec.storage, plan.run, clock.wall())
    for message in plan.messages:
        extra = about(operator=message.operator) if message.operator else None
        _log.log(message.level, "%s", message.text, extra=extra)
    on_restored(plan)
    log = ProgressLog(spec.storage, plan.run, spec.log_place)
    source_log = fill_progress_log(log, *plan.progress)
    local_dir = _begin_local_dir(spec, plan, randomness)
    handles = plan.state.handles
    if plan.state.needs_migration:
        with alive(plan.claim):
            handles = _migrated(spec, plan, local_dir, run_tasks)
    handles = plan.state.lifetimes.fading(handles)
    return Start(plan, handles, local_dir, log, source_log, left_over)


def forget_working_files(spec: JobSpec, start: Start) -> None:
    """Delete the working files at the end of a run, unless the next run may use them (`local_recovery`)."""
    if not spec.local_recovery:
        shutil.rmtree(start.local_dir, ignore_errors=True)


def _begin_local_dir(spec: JobSpec, plan: RestorePlan, randomness: Randomness) -> Path:
    """Make the folder for the working files of this run, next to those of earlier runs."""
    make_job_dir(spec.working_folder)
    local = run_dir(spec.working_folder, plan.run, randomness.token(8))
    if not spec.local_recovery:
        forget_earlier_runs(local)
    begin_run(local, plan.state.files)
    return local


def _migrated(
    spec: JobSpec, plan: RestorePlan, local_dir: Path, run_tasks: RunRestoreTasks
) -> dict[SubtaskId, StateHandle]:
    """Let every subtask rewrite its state, and return the new handles."""
    state = plan.state
    layouts, switched_on_us = state.lifetimes.former
    migration = StateMigration(
        spec.storage,
        spec.backend,
        local_dir,
        plan.run,
        spec.parallelism,
        spec.max_parallelism,
        layouts,
        named=state.files if spec.local_recovery else frozenset(),
        now_us=plan.now_us,
        switched_on_us=switched_on_us,
        purged=state.lifetimes.brings_back,
        former=state.former_handles,
        reached=plan.barrier.time,
        former_uids=plan.former_uids,
        changes=state.changes,
        anew_on_us=state.lifetimes.switched_on,
    )
    with working("making the state the subtasks' own", unit="subtask", job=spec.name):
        restored = run_tasks(migration, list(state.handles.values()))
    for one in restored:
        log_origins(one.report)
    return {one.handle.subtask: one.handle for one in restored}


def make_coordinator(
    spec: JobSpec,
    start: Start,
    *,
    clock: Clock,
    post: Post,
    run_commit: RunCommit,
    listener: CheckpointListener | None = None,
) -> Coordinator:
    """Make the coordinator of the run."""
    plan = start.plan
    checkpoint, switched_on = plan.checkpoint, plan.state.lifetimes.switched_on
    identity = Identity(
        spec.name,
        plan.run,
        spec.parallelism,
        spec.max_parallelism,
        {uid: columns_of(layout, switched_on.get(uid)) for uid, layout in spec.layouts.items()},
        spec.upstream,
        plan.id,
        savepoint=checkpoint.savepoint if checkpoint else "",
        claimed=checkpoint.claimed if checkpoint else "",
        dropped=plan.options.drop_state,
        positions_set=dict(plan.options.positions),
        former_uids=plan.former_uids,
    )
    now = EventTimestamp(clock.monotonic(), clock.wall())
    protocol = Protocol(
        spec.checkpoint, identity, plan.retained, now, start.handles.values(), held=plan.started_files
    )
    return Coordinator(
        protocol,
        storage=spec.storage,
        sinks=spec.sinks,
        claim=plan.claim,
        clock=clock,
        owner=spec.owner,
        post=post,
        run_commit=run_commit,
        listener=listener,
        left_over=start.left_over,
        shows_rows=spec.shows_rows,
    )
