"""The checkpoints and failures of a job. Pure.

Checkpoints have three sources: the journal, the metadata in storage, and the live progress. Failures have two: the journal and the records
of the runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from penstock.checkpoint.model import Completed
from penstock.checkpoint.pending import PendingLive
from penstock.status.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FirstBatch,
    JobEnded,
    ProcessDied,
    RunFailed,
    RunStarted,
    SinkDown,
    SinkUp,
)
from penstock.status.live import Progress, SinkLive
from penstock.status.make_events import checkpoint_completed
from penstock.status.view import (
    CheckpointStatus,
    CheckpointSummary,
    CheckpointView,
    FailureGroup,
    FailureView,
    Percentiles,
    RunView,
)

Name = tuple[int, int]
"""Number and run: the same number may be completed by two runs, of which one counts."""


DIED = "died"


DID_NOT_SAY = "did not say"


_FAILED_FOR_GOOD = "failed"


_CLOCKS_S = 60.0
"""So far two clocks, or a heartbeat and a death, may lie apart."""


_NUMBER = re.compile(
    r"\b(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|0x[0-9a-fA-F]+|(?=[a-f]*[0-9])[0-9a-f]{8,}|[0-9]+)\b"
)
"""As a word of its own; also an id, or an address."""


def history(
    events: Sequence[Event],
    stored: Mapping[Name, Completed],
    committed: Iterable[Name],
    pending: Sequence[PendingLive] = (),
    run: int = 0,
) -> tuple[CheckpointView, ...]:
    """All that is known, newest first. `stored`: what lies in storage; `pending`: what `run` has under way."""
    known: dict[Name, CheckpointView] = {}
    failed: list[CheckpointView] = []
    for event in events:
        match event:
            case CheckpointCompleted():
                known[event.checkpoint, event.run] = _completed(event)
            case CheckpointCommitted() if (event.checkpoint, event.run) in known:
                one = known[event.checkpoint, event.run]
                known[event.checkpoint, event.run] = msgspec.structs.replace(
                    one, committed_at=event.at, commit_ms=event.commit_ms
                )
            case CheckpointFailed():
                failed.append(_failed(event))
    for name, completed in stored.items():
        known[name] = msgspec.structs.replace(known.get(name) or of_metadata(completed), retained=True)
    restored = [(one.restored_from, one.restored_from_run) for one in events if isinstance(one, RunStarted)]
    for name in (*committed, *restored):  # a run commits what its checkpoint promised before it starts
        if name in known and not known[name].committed_at:
            known[name] = msgspec.structs.replace(known[name], committed_at=known[name].completed_at)
    under_way = [_pending(one, run) for one in pending if (one.checkpoint, run) not in known]
    everything = [*known.values(), *failed, *under_way]
    return tuple(sorted(everything, key=lambda one: (one.triggered_at, one.checkpoint), reverse=True))


def with_promised(
    live: Progress,
    events: Iterable[Event],
    stored: Mapping[Name, Completed],
    known: Iterable[CheckpointView],
) -> Progress:
    """The last progress of a job that does not run. Its sinks wait for the transactions that the newest checkpoint promised, and no others.

    The next run commits them, and aborts all others. If sinks were down, the other sinks have committed theirs.
    """
    newest = max(stored, default=None)
    is_committed = any((one.checkpoint, one.run) == newest and one.committed_at for one in known)
    promised = () if newest is None or is_committed else stored[newest].transactions
    down = _sinks_down(events)
    if any(one.sink in down for one in promised):
        promised = tuple(one for one in promised if one.sink in down)
    sinks = {uid: SinkLive() for uid in (one.sink for one in promised)} | live.sinks
    for uid, sink in sinks.items():
        own = [one for one in promised if one.sink == uid]
        sinks[uid] = msgspec.structs.replace(
            sink,
            waiting=len(own),
            waiting_rows=sum(one.rows for one in own),
            waiting_since=stored[newest].completed_at if own and newest is not None else 0.0,
            down=down.get(uid, sink.down) if own else sink.down,
        )
    return msgspec.structs.replace(live, sinks=sinks)


def _sinks_down(events: Iterable[Event]) -> dict[str, str]:
    """The sinks that did not take commits at the end, and why. All had taken them when a run started."""
    down: dict[str, str] = {}
    for event in events:
        match event:
            case SinkDown():
                down[event.sink] = event.why
            case SinkUp():
                down.pop(event.sink, None)
            case RunStarted():
                down.clear()
    return down


def _completed(event: CheckpointCompleted) -> CheckpointView:
    """The fields of the event, under the same names."""
    facts = msgspec.structs.asdict(event) | {
        "status": CheckpointStatus.COMPLETED,
        "completed_at": event.at,
        "acknowledged": event.subtasks_in_all,
    }
    return msgspec.convert(facts, CheckpointView)


def of_metadata(completed: Completed) -> CheckpointView:
    """One that the journal does not know, or does not know any more: what its metadata says."""
    at = completed.completed_at
    return _completed(checkpoint_completed(completed, at=at, complete_s=0.0, rows=0, wanted=False))


def _failed(event: CheckpointFailed) -> CheckpointView:
    return CheckpointView(
        checkpoint=event.checkpoint,
        run=event.run,
        status=CheckpointStatus.FAILED,
        triggered_at=event.triggered_at or event.at,
        completed_at=event.at,
        reason=event.text,
        detail=event.detail,
        counts=event.counts,
        duration_ms=max(0.0, event.at - (event.triggered_at or event.at)) * 1000,
    )


def _pending(one: PendingLive, run: int) -> CheckpointView:
    return CheckpointView(
        checkpoint=one.checkpoint,
        run=run,
        status=CheckpointStatus.IN_PROGRESS,
        triggered_at=one.triggered_at,
        barrier_at=one.barrier_at,
        acknowledged=one.acknowledged,
        subtasks_in_all=one.subtasks,
        missing=one.missing,
    )


def summary(checkpoints: Sequence[CheckpointView], events: Iterable[Event]) -> CheckpointSummary:
    """The percentiles over the completed checkpoints that are known."""
    completed = [one for one in checkpoints if one.status is CheckpointStatus.COMPLETED]
    restored = sum(isinstance(event, RunStarted) and event.restored_from >= 0 for event in events)
    return CheckpointSummary(
        completed=len(completed),
        failed=sum(one.status is CheckpointStatus.FAILED for one in checkpoints),
        in_progress=sum(one.status is CheckpointStatus.IN_PROGRESS for one in checkpoints),
        restored=restored,
        duration_ms=percentiles([one.duration_ms for one in completed]),
        state_bytes=percentiles([float(one.state_bytes) for one in completed]),
        new_bytes=percentiles([float(one.new_bytes) for one in completed]),
    )


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """The nearest that was measured, no number in between; None where nothing was."""
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1

    def at(part: float) -> float:
        return ordered[min(last, round(part * last))]

    return Percentiles(
        ordered[0], sum(ordered) / len(ordered), at(0.5), at(0.9), at(0.95), at(0.99), at(0.999), ordered[-1]
    )


def failures(
    events: Sequence[Event],
    runs: Sequence[RunView],
    lives: Mapping[int, Progress],
    *,
    reads_again: bool = True,
) -> tuple[FailureView, ...]:
    """Newest first. `lives`: the last progress of runs; for a run that was killed it shows how far it had come.

    `reads_again`: not so where the job processes each row at most once.
    """
    found = [*_told(events), *_deaths(runs, lives, events, reads_again=reads_again)]
    starts = {event.run: event for event in events if isinstance(event, RunStarted)}
    first = {event.run: event for event in events if isinstance(event, FirstBatch)}
    complete = (_with_the_way_back(one, batch_at, runs, starts, first) for one, batch_at in found)
    return tuple(sorted(complete, key=lambda one: one.at, reverse=True))


def _told(events: Iterable[Event]) -> Iterable[tuple[FailureView, float]]:
    """Each failure in the journal, and when its run finished its last batch; 0: unknown."""
    given_up = {event.run for event in events if isinstance(event, RunFailed) and not event.restarts}
    for event in events:
        match event:
            case RunFailed():
                yield msgspec.convert(event, FailureView, from_attributes=True), event.batch_at
            case JobEnded() if event.how == _FAILED_FOR_GOOD and event.run not in given_up:
                ended = msgspec.convert(event, FailureView, from_attributes=True)
                decision = "given up: another attempt would only meet it again"
                yield msgspec.structs.replace(ended, decision=decision), 0.0


def _deaths(
    runs: Sequence[RunView], lives: Mapping[int, Progress], events: Sequence[Event], *, reads_again: bool
) -> Iterable[tuple[FailureView, float]]:
    """Runs whose process was killed, or whose machine is gone: they recorded no end."""
    told = {event.run for event in events if isinstance(event, RunFailed | JobEnded)}
    for run in runs:
        if run.how != DID_NOT_SAY or run.run in told:
            continue
        live = lives.get(run.run)
        at = max(run.ended_at, live.at if live else 0.0, run.started_at)
        seen = _seen_by_a_supervisor(events, run, at)
        yield (
            FailureView(
                at=seen.at if seen else at,
                run=run.run,
                error=DIED,
                why=f"the driver (pid {run.pid} on {run.host}) ended without reporting a reason: it was killed, or its machine is gone"
                + (f"; its supervisor saw: {seen.how}" if seen else ""),
                decision=seen.decision if seen else "",
                delay_s=seen.delay_s if seen else 0.0,
                rows_again=(live.rows_since_checkpoint if live else None) if reads_again else 0,
            ),
            live.batch_at if live else 0.0,
        )


def untold_deaths(events: Sequence[Event], failures: Sequence[FailureView]) -> list[FailureView]:
    """The deaths of drivers that no event in the journal records: no supervisor saw them, and the driver itself could not."""
    seen = {event.at for event in events if isinstance(event, ProcessDied)}
    return [one for one in failures if one.error == DIED and one.at not in seen]


def _seen_by_a_supervisor(events: Sequence[Event], run: RunView, at: float) -> ProcessDied | None:
    of_it = (event for event in events if isinstance(event, ProcessDied) and event.pid == run.pid)
    return next((event for event in of_it if event.at >= run.started_at and event.at >= at - _CLOCKS_S), None)


def _with_the_way_back(
    failure: FailureView,
    batch_at: float,
    runs: Sequence[RunView],
    starts: Mapping[int, RunStarted],
    first: Mapping[int, FirstBatch],
) -> FailureView:
    later = sorted(run.run for run in runs if run.run > failure.run)
    begun = next((run for run in later if run in starts), None)
    processing = next((run for run in later if run in first), None)
    back_at = first[processing].at if processing is not None else 0.0
    return msgspec.structs.replace(
        failure,
        next_run=begun,
        tried_again=bool(later),
        restored_from=starts[begun].restored_from if begun is not None else None,
        back_at=back_at,
        down_s=max(0.0, back_at - (batch_at or failure.at)) if back_at else None,
    )


def grouped(failures: Sequence[FailureView]) -> tuple[FailureGroup, ...]:
    """Neighbours with the same cause together, so that one that comes again and again hides no other. Newest first, as they are given."""
    groups: list[FailureGroup] = []
    begins = 0
    for _, found in groupby(failures, key=_cause):
        group = _group(begins, tuple(found))
        groups.append(group)
        begins += group.count
    return tuple(groups)


def _group(begins: int, of: Sequence[FailureView]) -> FailureGroup:
    down_s: dict[float, float] = {}
    for one in of:
        if one.down_s is not None:
            down_s[one.back_at] = max(one.down_s, down_s.get(one.back_at, 0.0))
    again = [one.rows_again for one in of if one.rows_again is not None]
    return FailureGroup(
        begins=begins,
        count=len(of),
        first_at=of[-1].at,
        last_at=of[0].at,
        down_s=sum(down_s.values()) if down_s else None,
        rows_again=sum(again) if again else None,
    )


def _cause(failure: FailureView) -> tuple[str, str]:
    """What reads the same when the same happens again: batches, processes and addresses have other numbers each time."""
    return failure.error, without_numbers(failure.root or failure.why)


def without_numbers(text: str) -> str:
    """The same text for events that differ in numbers only."""
    return _NUMBER.sub("#", text)
