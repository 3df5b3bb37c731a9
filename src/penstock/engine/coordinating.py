"""The coordinator of a run, made of what the job is and where the run begins. Driver."""

from __future__ import annotations

from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.content import Identity
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import CheckpointListener
from penstock.checkpoint.pending import Now
from penstock.checkpoint.protocol import Protocol
from penstock.clock import Clock
from penstock.engine.start import Start
from penstock.job_spec import JobSpec
from penstock.recovery.lifetimes import columns_of


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
    now = Now(clock.monotonic(), clock.wall())
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
    )
