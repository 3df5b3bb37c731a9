"""A job without Spark that is restored, and the plan that a run of it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.protocol_story import JOB, STATE
from penstock.checkpoint.model import Completed
from penstock.config import Checkpointing, Mode
from penstock.ids import RunId
from penstock.job_spec import JobSpec
from penstock.ownership.claim import Claim
from penstock.recovery.history import StoredJob
from penstock.recovery.restore_options import Latest, RestoreOptions
from penstock.recovery.restore_plan import RestorePlan, plan_restore, unknown_end
from penstock.recovery.started_batches import StartedBatch
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout
from penstock.storage import Storage

NOW = 1_000.0


def job_spec(
    storage: Storage,
    *,
    layouts: Mapping[str, StateLayout] | None = None,
    sinks: Mapping[str, TwoPhaseCommitSink] | None = None,
    streams: Mapping[str, int] | None = None,
    mode: Mode = Mode.EXACTLY_ONCE,
    owner: str = JOB,
    max_parallelism: int = 8,
) -> JobSpec:
    """The job of `protocol_story`, whose checkpoints have the state of one operator, unless a test says otherwise."""
    layouts = {"views": STATE} if layouts is None else layouts
    return JobSpec(
        name=JOB,
        owner=owner,
        storage=storage,
        backend=backend_named("filesystem"),
        checkpoint=Checkpointing(mode=mode),
        parallelism=1,
        max_parallelism=max_parallelism,
        working_folder=Path("working"),
        local_recovery=False,
        layouts=layouts,
        upstream=dict.fromkeys(layouts, ()),
        sinks=sinks or {},
        streams=streams or {},
    )


def plan_of(
    spec: JobSpec,
    retained: Sequence[Completed] = (),
    started: StartedBatch | None = None,
    *,
    run: int = 3,
    first_run: int | None = None,
    latest: Latest = unknown_end,
    **options: Any,
) -> RestorePlan:
    """The plan of a run that finds these checkpoints, all of whose transactions are committed."""
    return plan_restore(
        Claim(spec.storage, RunId(run), "token"),
        StoredJob(tuple(retained), started, committed=True),
        spec,
        RestoreOptions(**options),
        now=NOW,
        first_run=None if first_run is None else RunId(first_run),
        latest=latest,
    )
