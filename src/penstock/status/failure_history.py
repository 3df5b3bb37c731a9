"""The failures of a job, each with what it cost: made of the journal and of the records of its runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from penstock.status.events import Event, FirstBatch, JobEnded, ProcessDied, RunFailed, RunStarted
from penstock.status.live import Progress
from penstock.status.view import FailureGroup, FailureView, RunView

DIED = "died"
DID_NOT_SAY = "did not say"
_FAILED_FOR_GOOD = "failed"


def failures(
    events: Sequence[Event],
    runs: Sequence[RunView],
    lives: Mapping[int, Progress],
    *,
    reads_again: bool = True,
) -> tuple[FailureView, ...]:
    """Newest first. `lives`: what runs said last of themselves; of one that was killed it tells how far it had come.

    `reads_again`: not so where the job processes each row at most once.
    """
    found = [*_told(events), *_deaths(runs, lives, events, reads_again=reads_again)]
    starts = {event.run: event for event in events if isinstance(event, RunStarted)}
    first = {event.run: event for event in events if isinstance(event, FirstBatch)}
    complete = (_with_the_way_back(one, runs, starts, first) for one in found)
    return tuple(sorted((one for one, _ in complete), key=lambda one: one.at, reverse=True))


class _Last(msgspec.Struct, frozen=True):
    """When a run had last done a batch; 0: nobody knows."""

    batch_at: float = 0.0


def _told(events: Iterable[Event]) -> Iterable[tuple[FailureView, _Last]]:
    given_up = {event.run for event in events if isinstance(event, RunFailed) and not event.restarts}
    for event in events:
        match event:
            case RunFailed():
                yield (
                    FailureView(
                        at=event.at,
                        run=event.run,
                        error=event.error,
                        why=event.why,
                        root=event.root,
                        notes=event.notes,
                        trace=event.trace,
                        strategy=event.strategy,
                        decision=event.decision,
                        delay_s=event.delay_s,
                        rows_again=event.rows_again,
                    ),
                    _Last(event.batch_at),
                )
            case JobEnded() if event.how == _FAILED_FOR_GOOD and event.run not in given_up:
                yield (
                    FailureView(
                        at=event.at,
                        run=event.run,
                        error=event.error,
                        why=event.why,
                        decision="given up: another attempt would only meet it again",
                    ),
                    _Last(),
                )


def _deaths(
    runs: Sequence[RunView], lives: Mapping[int, Progress], events: Sequence[Event], *, reads_again: bool
) -> Iterable[tuple[FailureView, _Last]]:
    """Runs whose process was killed, or whose machine is gone: they said nothing."""
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
                why=f"the driver (pid {run.pid} on {run.host}) ended without a word: it was killed, or its machine is gone"
                + (f"; its supervisor saw: {seen.how}" if seen else ""),
                decision=seen.decision if seen else "",
                delay_s=seen.delay_s if seen else 0.0,
                rows_again=(live.rows_since_checkpoint if live else None) if reads_again else 0,
            ),
            _Last(live.batch_at if live else 0.0),
        )


def untold_deaths(events: Sequence[Event], failures: Sequence[FailureView]) -> list[FailureView]:
    """The deaths of drivers that no event in the journal records: no supervisor saw them, and the driver itself could not."""
    seen = {event.at for event in events if isinstance(event, ProcessDied)}
    return [one for one in failures if one.error == DIED and one.at not in seen]


def _seen_by_a_supervisor(events: Sequence[Event], run: RunView, at: float) -> ProcessDied | None:
    of_it = (event for event in events if isinstance(event, ProcessDied) and event.pid == run.pid)
    return next((event for event in of_it if event.at >= run.started_at and event.at >= at - _CLOCKS_S), None)


_CLOCKS_S = 60.0
"""So far two clocks, or a heartbeat and a death, may lie apart."""


def _with_the_way_back(
    told: tuple[FailureView, _Last],
    runs: Sequence[RunView],
    starts: Mapping[int, RunStarted],
    first: Mapping[int, FirstBatch],
) -> tuple[FailureView, _Last]:
    failure, last = told
    later = sorted(run.run for run in runs if run.run > failure.run)
    begun = next((run for run in later if run in starts), None)
    processing = next((run for run in later if run in first), None)
    back_at = first[processing].at if processing is not None else 0.0
    begin_s = last.batch_at or failure.at
    return (
        msgspec.structs.replace(
            failure,
            next_run=begun,
            tried_again=bool(later),
            restored_from=starts[begun].restored_from if begun is not None else None,
            back_at=back_at,
            down_s=max(0.0, back_at - begin_s) if back_at else None,
        ),
        last,
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


_NUMBER = re.compile(
    r"\b(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|0x[0-9a-fA-F]+|(?=[a-f]*[0-9])[0-9a-f]{8,}|[0-9]+)\b"
)
"""As a word of its own; also an id, or an address."""
