"""Detect a storage that is an old copy: targets of its sinks have commits that it does not know. Driver.

A job that resumes from such a copy would write rows again. Sinks that record commits in their target can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from penstock import start_options
from penstock.checkpoint.metadata import found_checkpoints
from penstock.checkpoint.sink_lanes import RecoveryCalls
from penstock.config import Mode
from penstock.errors import IncompatibleStateError, UnavailableError
from penstock.ids import NO_CHECKPOINT, RunId
from penstock.job_spec import JobSpec
from penstock.log_fields import about
from penstock.logins import refuses_login
from penstock.ownership.claim import Claim
from penstock.ownership.descent import read_descents
from penstock.ownership.heartbeat import last_completed
from penstock.recovery.restore_plan import RestorePlan
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink

_log = logging.getLogger(__name__)

FormerSinks = Mapping[str, str]
"""Former uids of sinks by current ones."""


def refuse_if_targets_know_more(plan: RestorePlan, spec: JobSpec, calls: RecoveryCalls) -> None:
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
            f"and start with {start_options.restore(checkpoint)} to accept that",
            sink=uid,
            run=run,
            checkpoint=committed,
        )


def newest_run_in_targets(spec: JobSpec, former: FormerSinks, calls: RecoveryCalls) -> int:
    """The newest run that a target knows. A start that accepts an old copy takes a higher number: then no target knows a newer one."""
    known = 0
    for uid, sink in spec.sinks.items():
        newest = _newest_commit(uid, sink, spec.owner, former, calls)
        known = known if newest is None else max(known, newest[0])
    return known


def uids_of(uid: str, former: FormerSinks) -> list[str]:
    """The uids under which a target may know a sink."""
    return [former[uid], uid] if uid in former else [uid]


def _newest_commit(
    uid: str, sink: TwoPhaseCommitSink, owner: str, former: FormerSinks, calls: RecoveryCalls
) -> tuple[int, int] | None:
    with named(uid):
        found = [
            calls(uid, partial(sink.newest_commit, owner, known_as)) for known_as in uids_of(uid, former)
        ]
    return max((one for one in found if one is not None), default=None)


@contextmanager
def named(uid: str) -> Iterator[None]:
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


def _mode_of(claim: Claim, run: RunId, mode: Mode) -> str:
    """The mode of a run, which may differ from the current one."""
    from penstock.status.journal_files import read_plan  # a row above this package

    plan = read_plan(claim.storage, run)
    return mode.value if plan is None else plan.settings.mode
