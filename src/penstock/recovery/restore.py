"""Bring a job back to a checkpoint after a failure or a stop. Driver, at the start of every run, before Spark's query.

The order makes it safe:
1. claim the job, so that no earlier run can commit any more;
2. read the stored checkpoints and plan: choose the newest whole one; a job that cannot resume from it is refused before anything changes;
3. apply the plan: record the choice; commit what the checkpoint promised and abort every other transaction of the job; delete the
   checkpoints and files that belong to nothing any more.
A crash anywhere leaves the same choice to the next run.

Before anything is applied, the sinks are asked for their newest commit. A storage that does not know it is an old copy: a job that resumed
from it would write rows again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.checkpoint.commits import commit_in_order
from penstock.checkpoint.metadata import found_checkpoints
from penstock.checkpoint.sink_lanes import IN_THIS_THREAD, RecoveryCalls
from penstock.config import Mode
from penstock.errors import (
    CorruptStateError,
    IncompatibleStateError,
    PenstockError,
    UnavailableError,
    refuses_login,
)
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.job_spec import JobSpec
from penstock.log_fields import about
from penstock.ownership.claim import (
    Claim,
    Claimant,
    claim,
    forget_old_runs,
    newest_run,
    read_descents,
    record_descent,
)
from penstock.ownership.heartbeat import Alive, beat, last_completed
from penstock.ownership.records import read_small
from penstock.recovery import started_batches
from penstock.recovery.cleanup import delete_leftovers
from penstock.recovery.history import read_stored
from penstock.recovery.restore_options import Latest, RestoreOptions
from penstock.recovery.restore_plan import RestorePlan, plan_restore, unknown_end
from penstock.sinks.two_phase_commit import Transaction, TransactionName, TwoPhaseCommitSink
from penstock.wording import counted, start_option

_log = logging.getLogger(__name__)


FormerSinks = Mapping[str, str]
"""Former uids of sinks by current ones."""


class Restored(NamedTuple):
    """A plan that was applied."""

    plan: RestorePlan
    left_over: tuple[str, ...]
    """Files that belong to nothing and that a reader may hold: the run deletes them later, in this order."""


def check_restorable(
    spec: JobSpec,
    options: RestoreOptions,
    *,
    now: float,
    wanted: CheckpointId | None = None,
    latest: Latest = unknown_end,
    calls: RecoveryCalls = IN_THIS_THREAD,
) -> None:
    """Refuse what `restore` would refuse, before the job is claimed: a mistake must not fence off a healthy run.

    Called once per start, before its first claim. After the claim everything is read and planned again: the owner may have gone on.
    """
    try:
        unclaimed = Claim(spec.storage, newest_run(spec.storage), token="")
        stored = read_stored(spec.storage, spec.mode, wanted)
        plan = plan_restore(unclaimed, stored, spec, options, now=now, latest=latest)
    except CorruptStateError as error:
        _log.debug("checked again after the claim, because the owner may just be deleting: %s", error)
        return
    try:
        if wanted is None:
            _refuse_if_targets_know_more(plan, spec, calls)
    except UnavailableError as error:
        _log.debug("checked again after the claim, because a sink does not answer: %s", error)


def restore(
    spec: JobSpec,
    options: RestoreOptions = RestoreOptions(),  # noqa: B008 - it is frozen
    *,
    now: float,
    claimant: Claimant | None = None,
    wanted: CheckpointId | None = None,
    latest: Latest = unknown_end,
    alive: Alive = lambda _: nullcontext(),
    calls: RecoveryCalls = IN_THIS_THREAD,
) -> Restored:
    """Claim the job, plan, and apply the plan. `wanted`: an older retained checkpoint instead of the newest.

    `alive` keeps the run's heartbeat going, because a sink may take long to answer. `calls`: how sinks are called, so that a cancel can end
    the wait. After `UnavailableError` the caller decides whether the run is over.
    """
    claimant = claimant or Claimant()
    above = 0 if wanted is None else _newest_run_in_targets(spec, options.former_uids, calls)
    mine = claim(spec.storage, now, claimant, above=above)
    try:
        stored = read_stored(spec.storage, spec.mode, wanted)
        plan = plan_restore(mine, stored, spec, options, now=now, first_run=claimant.first_run, latest=latest)
        with alive(mine):
            if wanted is None:
                _refuse_if_targets_know_more(plan, spec, calls)
            else:
                _warn_of_discarded(plan)
            left_over = _apply(plan, spec, calls, now)
    except UnavailableError:
        raise
    except Exception:
        beat(spec.storage, mine.run, now, ended=True)  # or the next start would take this run for alive
        raise
    return Restored(plan, tuple(left_over))


def _apply(plan: RestorePlan, spec: JobSpec, calls: RecoveryCalls, now: float) -> list[str]:
    """Perform the plan in storage and in the sinks; returns the files that have to stay for a while."""
    record_descent(plan.claim, plan.id, plan.completed_by)
    _commit_promised(plan, spec.sinks, calls)
    _abort_others(plan, spec, calls)
    started_batches.inherit_started(spec.storage, plan.run, plan.started)
    left_over = delete_leftovers(plan, now)
    forget_old_runs(spec.storage, plan.run)
    return left_over


def _warn_of_discarded(plan: RestorePlan) -> None:
    """The user chose an older checkpoint: log what that costs before it is done."""
    found = {name.checkpoint for name in found_checkpoints(plan.claim.storage)}
    newer = sorted(number for number in found if number > plan.id)
    if newer:
        _log.warning(
            "the job goes back to checkpoint %d, and %s deleted: %s. What they made visible stays visible, and is written again",
            *(
                plan.id,
                counted(len(newer), "newer checkpoint is", "newer checkpoints are"),
                ", ".join(map(str, newer)),
            ),
        )


def _commit_promised(
    plan: RestorePlan, sinks: Mapping[str, TwoPhaseCommitSink], calls: RecoveryCalls
) -> None:
    """Each sink that can commit does so, even if others fail. The run needs all of them, because it must know what to abort."""
    failures: dict[str, Exception] = {}
    for uid in dict.fromkeys(one.sink for one in plan.promised):
        own = [one for one in plan.promised if one.sink == uid]
        try:
            calls(uid, partial(commit_in_order, sinks, own, calls.check))
        except Exception as error:  # noqa: BLE001 - raised below, after the other sinks had their turn
            failures[uid] = error
    for failure in failures.values():
        if isinstance(failure, PenstockError) and not isinstance(failure, UnavailableError):
            raise failure  # any other failure may pass, as it may while the job runs
    if failures:
        raise UnavailableError(
            "; ".join(
                f"the sink {uid} does not commit: {type(error).__name__}: {error}"
                for uid, error in failures.items()
            )
            + f". The job resumes from checkpoint {plan.id} when everything it promised is committed; the other sinks have committed",
            sinks=tuple(failures),
            denied=any(map(refuses_login, failures.values())),
        ) from next(iter(failures.values()))


def _abort_others(plan: RestorePlan, spec: JobSpec, calls: RecoveryCalls) -> None:
    """Abort every transaction of this and earlier runs that the checkpoint does not promise."""
    keep = {one.name for one in plan.promised}
    for uid, sink in spec.sinks.items():
        for known_as in _uids_of(uid, plan.options.former_uids):
            with _naming_the_sink(uid):
                for transaction in calls(uid, partial(_listed, sink, spec.owner, known_as)):
                    name = TransactionName.of(uid, transaction)
                    if name.run <= plan.run and name not in keep:
                        _log.info(
                            "sink %s: transaction %s is aborted, no checkpoint names it",
                            known_as,
                            tuple(name[1:]),
                            extra=about(operator=known_as),
                        )
                        calls(uid, partial(sink.abort, transaction))


def _listed(sink: TwoPhaseCommitSink, owner: str, uid: str) -> list[Transaction]:
    """All at once: a sink may look for each transaction only when it is taken."""
    return list(sink.find_transactions(owner, uid))


# ── a storage that is an old copy ──────────────────────────────────────────────────────────────


def _refuse_if_targets_know_more(plan: RestorePlan, spec: JobSpec, calls: RecoveryCalls) -> None:
    """Raise if a target has a commit that this storage does not know; only warn if there is no checkpoint with which to accept that.

    Before the job is claimed, the plan has the claim of the newest run. A renamed sink is looked up under its former uid, too.
    Not called when the user has chosen a checkpoint.
    """
    claim, checkpoint = plan.claim, plan.id
    for uid, sink in spec.sinks.items():
        newest = _newest_commit(uid, sink, spec.owner, plan.options.former_uids, calls)
        if newest is None or _is_known(claim, RunId(newest[0]), newest[1], spec.mode):
            continue
        if claim.token:
            claim.check()  # another start may have claimed the job and committed: then this storage is not old
        run, committed = newest
        has = "has no checkpoint" if checkpoint == NO_CHECKPOINT else f"ends with checkpoint {checkpoint}"
        text = (
            f"the sink {uid} has committed checkpoint {committed} of run {run}, of which the storage {claim.storage.uri} knows nothing: it "
            f"{has}. It is an older copy, a backup perhaps, and rows that are in the target would be written again"
        )
        if checkpoint == NO_CHECKPOINT:
            _log.warning("%s", text, extra=about(operator=uid))
            continue
        raise IncompatibleStateError(
            f"{text}. Nothing was changed. Bring the newer storage back; or remove from the target what came after checkpoint {checkpoint} "
            f"and start with {start_option(restore=checkpoint)} to accept that",
            sink=uid,
            run=run,
            checkpoint=committed,
        )


def _newest_run_in_targets(spec: JobSpec, former: FormerSinks, calls: RecoveryCalls) -> int:
    """The newest run that a target knows. A start that accepts an old copy takes a higher number: then no target knows a newer one."""
    known = 0
    for uid, sink in spec.sinks.items():
        newest = _newest_commit(uid, sink, spec.owner, former, calls)
        known = known if newest is None else max(known, newest[0])
    return known


def _uids_of(uid: str, former: FormerSinks) -> list[str]:
    """The uids under which a target may know a sink."""
    return [former[uid], uid] if uid in former else [uid]


def _newest_commit(
    uid: str, sink: TwoPhaseCommitSink, owner: str, former: FormerSinks, calls: RecoveryCalls
) -> tuple[int, int] | None:
    with _naming_the_sink(uid):
        found = [
            calls(uid, partial(sink.newest_commit, owner, known_as)) for known_as in _uids_of(uid, former)
        ]
    return max((one for one in found if one is not None), default=None)


@contextmanager
def _naming_the_sink(uid: str) -> Iterator[None]:
    """Adds the name of the sink to `UnavailableError`."""
    try:
        yield
    except UnavailableError as error:
        raise UnavailableError(
            f"the sink {uid} does not answer: {error}", sinks=(uid,), denied=refuses_login(error)
        ) from error


def _is_known(claim: Claim, run: RunId, checkpoint: int, mode: Mode) -> bool:
    """Whether a commit belongs to the history of this storage.

    Exactly once, a checkpoint is in storage before its commits are in a target. If it is gone, a later run went back to an earlier one and
    recorded that. Other modes commit before their checkpoint: there only the run number tells. `mode`: the current one.
    """
    storage = claim.storage
    if run > claim.run:
        return False
    if _mode_of(claim, run, mode) != Mode.EXACTLY_ONCE.value or any(
        descent.run > run for descent in read_descents(storage)
    ):
        return True
    newest = max((name.checkpoint for name in found_checkpoints(storage)), default=NO_CHECKPOINT)
    return checkpoint <= max(newest, last_completed(storage, run))


class _RunSettings(msgspec.Struct):
    mode: str


class _RunPlan(msgspec.Struct):
    """What recovery needs of `runs/<k>.plan`, see `status.plan.Plan`."""

    settings: _RunSettings


_PLANS = msgspec.json.Decoder(_RunPlan)


def _mode_of(claim: Claim, run: RunId, mode: Mode) -> str:
    """The mode of a run, which may differ from the current one: from the plan that it wrote, if that can be read."""
    try:
        return read_small(claim.storage, f"runs/{run}.plan", _PLANS).settings.mode
    except (FileNotFoundError, msgspec.DecodeError):
        return mode.value
