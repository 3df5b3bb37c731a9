"""The plan of one recovery: from which checkpoint a run resumes, and what has to be done before its first batch. Pure; driver.

A run claims the job, reads what storage holds (`recovery.history`), makes one `RestorePlan`, and applies it (`recovery.restore`). The plan
is complete when it is made: whatever is refused is refused here, before anything is changed. It adapts the stored checkpoint to the current
job: it renames uids, matches sources by uid, applies `positions=`, assigns state to subtasks. Stored files stay as they are; until a new
checkpoint completes, the next run makes the same plan from the same files. Only decisions that cannot be made again are recorded, in
`recovery.started_batches`: positions set by choice, and where new sources start.

`rename=` changes uids in the checkpoint only. Names of files and of transactions stay, even if an old uid is part of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.checkpoint.model import Barrier, Completed, OperatorState, PreCommitted
from penstock.config import Mode
from penstock.errors import ConfigError, IncompatibleStateError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SubtaskId
from penstock.job_spec import JobSpec, Uids
from penstock.ownership.claim import Claim
from penstock.recovery.history import StoredJob
from penstock.recovery.progress_log import NO_POSITION, Undecided, without_positions
from penstock.recovery.restore_options import Latest, PositionChoice, RestoreOptions, choose_position
from penstock.recovery.source_match import for_sources, lines_by_source, numbers_of
from penstock.recovery.started_batches import BarrierOverride, StartedBatch
from penstock.recovery.state_plan import PlanMessage, StatePlan, names_to_drop, plan_state
from penstock.state.lifetimes import in_microseconds
from penstock.wording import did_you_mean, named, start_option

_T = TypeVar("_T")


Rename = Mapping[str, str]
"""New uids by old ones. No uid is on both sides, so that applying it twice changes nothing."""


def unknown_end(uid: str) -> list[str]:
    """The `Latest` of callers that cannot ask sources."""
    raise ConfigError(f"the end of source {uid!r} is not known here", uid=uid)


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint, and the record of batches that were started after it."""

    checkpoint: Completed | None
    """The checkpoint to restore, under the uids of the current job; None if the job has none."""
    started: StartedBatch | None
    """What earlier runs recorded, if a retained checkpoint does not include it."""

    @property
    def id(self) -> CheckpointId:
        """The number of the checkpoint, or `NO_CHECKPOINT`."""
        return self.checkpoint.id if self.checkpoint else NO_CHECKPOINT

    @property
    def completed_by(self) -> RunId:
        """The run that completed the checkpoint; 0 if there is none."""
        return RunId(self.checkpoint.run if self.checkpoint else 0)

    @property
    def last_read(self) -> CheckpointId:
        """The last batch that is not read again: that of the checkpoint, or a later one that was started at most once."""
        return max(self.id, self.started.id) if self.started else self.id

    @property
    def resumes_after_started(self) -> bool:
        """Whether reading resumes after the started batch, and not at the barrier of the checkpoint."""
        return self.started is not None and (self.checkpoint is None or self.started.id > self.id)

    @property
    def stored_barrier(self) -> Barrier:
        """Where reading resumes, as stored: for the sources that the job had then."""
        if self.started and self.resumes_after_started:
            time = self.started.barrier.time.with_state_of(self.id)
            return msgspec.structs.replace(self.started.barrier, time=time)
        if self.started and self.started.instead:
            return self.started.instead.barrier
        return self.checkpoint.barrier if self.checkpoint else Barrier()

    @property
    def positions_set(self) -> Mapping[str, Any]:
        """The `positions=` that are already part of `stored_barrier`."""
        if self.started and (self.resumes_after_started or self.started.instead):
            return self.started.positions_set
        return self.checkpoint.positions_set if self.checkpoint else {}


class SparkProgress(NamedTuple):
    """How the run fills its own progress log of Spark's, see `progress_log.fill_progress_log`."""

    last_read: CheckpointId
    barrier: Barrier
    undecided: Undecided
    """The sources that choose in this run where they start."""
    anew: frozenset[str]
    """Among these, sources whose position in the checkpoint is discarded by choice."""


@dataclass(frozen=True, kw_only=True)
class RestorePlan(ResumePoint):
    """Everything that one run needs to resume. Made once, after the claim, and never changed."""

    claim: Claim
    retained: tuple[Completed, ...]
    """The checkpoints that stay in storage, as stored, oldest first. The last one is restored."""
    barrier: Barrier
    """Where reading resumes, for the sources of the current job."""
    promised: tuple[PreCommitted, ...]
    """Transactions that the checkpoint promised and that may not be committed yet."""
    state: StatePlan
    progress: SparkProgress
    options: RestoreOptions
    now_us: int
    """The time at which the run starts. The time of its batches is never earlier."""
    messages: tuple[PlanMessage, ...] = ()
    """What the log says when the plan is applied."""

    @property
    def run(self) -> RunId:
        """The number of the run."""
        return self.claim.run

    @property
    def started_files(self) -> frozenset[str]:
        """The files that the record of started batches names."""
        return self.started.files if self.started else frozenset()

    @property
    def former_uids(self) -> dict[str, tuple[str, ...]]:
        """By operator: the uids it had before."""
        operators = self.checkpoint.operators if self.checkpoint else {}
        return {uid: one.former_uids for uid, one in operators.items() if one.former_uids}


def plan_restore(
    claim: Claim,
    stored: StoredJob,
    spec: JobSpec,
    options: RestoreOptions = RestoreOptions(),  # noqa: B008 - it is frozen
    *,
    now: float,
    first_run: RunId | None = None,
    latest: Latest = unknown_end,
) -> RestorePlan:
    """Plan how the run of `claim` resumes the job; raises if the current job cannot resume from the stored checkpoint.

    `first_run`: the first run of this start, or None before it has claimed the job. `latest`: asks a source where it ends now.
    """
    _check_key_groups(stored.checkpoint, spec)
    point = _under_current_uids(stored, spec, options)
    choices = _choices(point, spec, options, latest)
    matched = for_sources(
        point.stored_barrier,
        spec.source_numbers,
        dropped=options.drop_sources,
        set_to={uid: choice.lines for uid, choice in choices.items()},
    )
    drop_state = names_to_drop(options.drop_state, point.checkpoint, spec.layouts, first_run)
    barrier = msgspec.structs.replace(matched, time=matched.time.without(drop_state))
    now_us = max(point.checkpoint.now_us if point.checkpoint else 0, in_microseconds(now))
    state = plan_state(point.checkpoint, spec, drop_state, now_us, barrier.time.counted_from_us)
    return RestorePlan(
        checkpoint=point.checkpoint,
        started=_recorded(point, matched, claim.run, options, chosen=bool(choices)),
        claim=claim,
        retained=stored.retained,
        barrier=barrier,
        promised=_promised(point, spec, committed=stored.committed),
        state=state,
        progress=_progress(point, barrier, spec),
        options=options,
        now_us=now_us,
        messages=(*_about_sources(point, choices, options), *state.messages),
    )


def _check_key_groups(checkpoint: Completed | None, spec: JobSpec) -> None:
    """They differ if a crash came between restoring a savepoint that changed them and recording the change in `job.json`."""
    if checkpoint is not None and checkpoint.max_parallelism != spec.max_parallelism:
        raise IncompatibleStateError(
            f"checkpoint {checkpoint.id} has max_parallelism={checkpoint.max_parallelism}, the job {spec.max_parallelism}: key groups "
            f"would not match; set it to {checkpoint.max_parallelism}, or start it with the savepoint that changed it",
            setting="max_parallelism",
        )


def _under_current_uids(stored: StoredJob, spec: JobSpec, options: RestoreOptions) -> ResumePoint:
    """The stored checkpoint and record, under the uids of the current job."""
    point, rename = ResumePoint(stored.checkpoint, stored.started), options.rename
    check_renames(point.checkpoint, point.stored_barrier, spec.uids, rename)
    return ResumePoint(
        point.checkpoint and renamed_checkpoint(point.checkpoint, rename),
        point.started and renamed_started(point.started, rename),
    )


def _promised(point: ResumePoint, spec: JobSpec, *, committed: bool) -> tuple[PreCommitted, ...]:
    """A promise is kept in whichever mode the job runs now."""
    if point.checkpoint is None or committed:
        return ()
    lost = sorted({one.sink for one in point.checkpoint.transactions} - set(spec.sinks))
    if lost:
        raise IncompatibleStateError(
            f"checkpoint {point.id} promises to commit transactions of the {named(lost, 'sink')}, which the job no longer has; nothing was "
            f"changed; run the job once more with {'it' if len(lost) == 1 else 'them'}, then remove {'it' if len(lost) == 1 else 'them'}",
            sinks=lost,
        )
    return point.checkpoint.transactions


# ── positions ──────────────────────────────────────────────────────────────────────────────────


def _choices(
    point: ResumePoint, spec: JobSpec, options: RestoreOptions, latest: Latest
) -> dict[str, PositionChoice]:
    """The positions to set now: those that an earlier start has set already are left out."""
    asked = {uid: value for uid, value in options.positions.items() if point.positions_set.get(uid) != value}
    if asked and point.last_read == NO_CHECKPOINT:
        raise ConfigError(
            f"{start_option('positions')} sets where the {named(list(asked), 'source')} {'resumes' if len(asked) == 1 else 'resume'}, but "
            "the job has no checkpoint yet: it starts where the options of the source say, such as Kafka's startingOffsets",
            sources=list(asked),
        )
    stored, numbers = lines_by_source(point.stored_barrier), spec.source_numbers
    return {
        uid: choose_position(uid, value, stored.get(uid, ()), len(numbers[uid]), latest)
        for uid, value in asked.items()
    }


def _recorded(
    point: ResumePoint, matched: Barrier, run: RunId, options: RestoreOptions, *, chosen: bool
) -> StartedBatch | None:
    """What this run records: the record of the run before it, with the positions that are set now."""
    if point.started is None and not chosen:
        return None
    started = point.started or StartedBatch(run, Barrier())
    started = msgspec.structs.replace(started, positions_set=dict(options.positions))
    if point.resumes_after_started:
        # Its time stays as it was recorded: a run that resumes from another checkpoint reads it differently, see `with_state_of`.
        time = msgspec.structs.replace(started.barrier.time, sources=matched.time.sources)
        return msgspec.structs.replace(started, barrier=msgspec.structs.replace(matched, time=time))
    if point.checkpoint and (chosen or started.instead):
        instead = BarrierOverride(point.checkpoint.checkpoint, point.checkpoint.run, matched)
        return msgspec.structs.replace(started, instead=instead)
    return started


def _progress(point: ResumePoint, barrier: Barrier, spec: JobSpec) -> SparkProgress:
    if point.last_read == NO_CHECKPOINT:
        undecided = {uid: list(own) for uid, own in spec.source_numbers.items()}
    else:
        numbers = numbers_of(barrier)
        undecided = {
            uid: list(numbers[uid])
            for uid, lines in lines_by_source(barrier).items()
            if all(line == NO_POSITION for line in lines)
        }
    stored = lines_by_source(point.checkpoint.barrier) if point.checkpoint else {}
    anew = frozenset(uid for uid in undecided if any(line != NO_POSITION for line in stored.get(uid, ())))
    if spec.mode is Mode.AT_MOST_ONCE:
        entry = without_positions(barrier.progress_log, spec.replayable)
        barrier = msgspec.structs.replace(barrier, progress_log=entry)
    return SparkProgress(point.last_read, barrier, undecided, anew)


def _about_sources(
    point: ResumePoint, choices: Mapping[str, PositionChoice], options: RestoreOptions
) -> list[PlanMessage]:
    texts = [choice.said for choice in choices.values()]
    again = [uid for uid in options.positions if uid in point.positions_set and uid not in choices]
    if again:
        texts.append(
            f"{start_option('positions')} was applied to {', '.join(again)} by an earlier start: the job resumes from where it is now, and "
            "the position is not set again. To set it again, start the job once without the option"
        )
    stored, option = point.stored_barrier.positions, start_option("drop_sources")
    lost = [uid for uid in options.drop_sources if uid in stored]
    unknown = [uid for uid in options.drop_sources if uid not in stored]
    if lost:
        texts.append(f"{option}: the position of the {named(lost, 'source')} is dropped")
    if unknown:
        texts.append(
            f"{option} names {', '.join(unknown)}, of which the checkpoint has no position: nothing is dropped for it"
        )
    return [PlanMessage(logging.WARNING, text) for text in texts]


# ── uids of the current job ────────────────────────────────────────────────────────────────────


def check_renames(completed: Completed | None, barrier: Barrier, now: Uids, rename: Rename) -> None:
    """Refuse an old uid that the checkpoint does not have, and two uids that would become one.

    A rename that an earlier start has applied is no error: a supervisor repeats the command. Sinks are not checked: a checkpoint names them
    only in transactions.
    """
    if rename and completed is None and not barrier.positions:
        raise ConfigError(
            f"{start_option(rename=dict(rename))}: the job has no checkpoint yet, so there is nothing to rename, and nothing was "
            f"started; start it without {start_option('rename')}, or check its name and storage",
            uids=list(rename),
        )
    operators = completed.operators if completed else {}
    for old, new in rename.items():
        if new in now.sources and barrier.positions:
            _check("source", old, new, barrier.positions)
        elif new in now.operators and completed:
            _check("operator", old, new, operators)


def _check(kind: str, old: str, new: str, stored: Collection[str]) -> None:
    if old in stored and new in stored:
        raise IncompatibleStateError(
            f"{start_option(rename={old: new})}: the checkpoint has both, {kind} {old!r} and {kind} {new!r}; two cannot become one. Choose "
            "another new uid",
            old=old,
            new=new,
        )
    if old not in stored and new not in stored:
        known = ", ".join(stored) or "none"
        raise IncompatibleStateError(
            f"{start_option(rename={old: new})}: the checkpoint has no {kind} {old!r}; it has {known}. {did_you_mean(old, stored)}".strip(),
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
        bad_records=_with_new_uids(completed.bad_records, rename),
        late_rows=_with_new_uids(completed.late_rows, rename),
        positions_set=_with_new_uids(completed.positions_set, rename),
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
        positions=_with_new_uids(barrier.positions, rename),
        numbers=_with_new_uids(barrier.numbers, rename),
        time=barrier.time.renamed(rename),
    )


def _known_as(new: str, old: str, state: OperatorState) -> OperatorState:
    handles = (
        msgspec.structs.replace(handle, subtask=SubtaskId(new, handle.subtask.index))
        for handle in state.handles
    )
    return msgspec.structs.replace(state, handles=tuple(handles), former_uids=(*state.former_uids, old))


def _with_new_uids(by_uid: Mapping[str, _T], rename: Rename) -> dict[str, _T]:
    """In the same order. If both uids are there, the entry of the new one counts: it was renamed before."""
    return {
        rename.get(uid, uid): one
        for uid, one in by_uid.items()
        if uid not in rename or rename[uid] not in by_uid
    }
