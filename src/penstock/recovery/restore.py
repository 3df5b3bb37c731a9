"""Bring a job back to a checkpoint after a failure or a stop. Driver, at the start of every run, before Spark's query.

The order makes it safe:
1. claim the job, so that no earlier run can commit any more;
2. read the stored checkpoints and plan: choose the newest whole one; a job that cannot resume from it is refused before anything changes;
3. apply the plan: record the choice; commit what the checkpoint promised and abort every other transaction of the job; delete the
   checkpoints and files that belong to nothing any more.
A crash anywhere leaves the same choice to the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from penstock.checkpoint.commits import commit_in_order
from penstock.checkpoint.metadata import found_checkpoints
from penstock.checkpoint.sink_lanes import IN_THIS_THREAD, RecoveryCalls
from penstock.errors import CorruptStateError, PenstockError, UnavailableError
from penstock.ids import CheckpointId
from penstock.job_spec import JobSpec
from penstock.log_fields import about
from penstock.logins import refuses_login
from penstock.ownership.claim import Claim, Claimant, claim, forget_old_runs, newest_run
from penstock.ownership.descent import record_descent
from penstock.ownership.heartbeat import Alive, beat
from penstock.recovery import started_batches
from penstock.recovery.cleanup import delete_leftovers
from penstock.recovery.history import read_stored
from penstock.recovery.restore_options import Latest, RestoreOptions
from penstock.recovery.restore_plan import RestorePlan, plan_restore, unknown_end
from penstock.recovery.stale_storage import (
    named,
    newest_run_in_targets,
    refuse_if_targets_know_more,
    uids_of,
)
from penstock.sinks.two_phase_commit import Transaction, TransactionName, TwoPhaseCommitSink
from penstock.wording import counted

_log = logging.getLogger(__name__)


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
            refuse_if_targets_know_more(plan, spec, calls)
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
    above = 0 if wanted is None else newest_run_in_targets(spec, options.former_uids, calls)
    mine = claim(spec.storage, now, claimant, above=above)
    try:
        stored = read_stored(spec.storage, spec.mode, wanted)
        plan = plan_restore(mine, stored, spec, options, now=now, first_run=claimant.first_run, latest=latest)
        with alive(mine):
            if wanted is None:
                refuse_if_targets_know_more(plan, spec, calls)
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
        for known_as in uids_of(uid, plan.options.former_uids):
            with named(uid):
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
