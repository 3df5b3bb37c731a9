"""The JSON twin of each page, as structs. Pure; the dashboard's process.

A twin has what its page shows and no more: a whole `JobView` may contain megabytes of history.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.requests.request_client import Outcome
from penstock.status.events import Event
from penstock.status.job_history import grouped, untold_deaths
from penstock.status.live import BatchLive
from penstock.status.plan import PlanSettings
from penstock.status.view import (
    CheckpointSummary,
    CheckpointView,
    FailureGroup,
    FailureView,
    JobState,
    JobView,
    RequestView,
    RunView,
    total_behind,
)

MOST_EVENTS = 200
MOST_CHECKPOINTS = 20
"""The history in the JSON of a job; `checkpoints.json` and `journal.json` have all of it."""


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the overview shows it."""

    id: str
    name: str
    place: str
    storage: str
    state: JobState
    now: float
    looked_at: float
    """When storage was last read, if that is some time ago; 0: just now."""
    since: float
    run: int
    host: str
    pid: int
    supervised: bool
    guarantee: str
    limited_by: str
    reason: str
    started_at: float
    checkpoint: int
    checkpoint_at: float
    checkpoint_age_s: float | None
    interval_s: float | None
    late: bool
    rows_per_s: float
    behind: int | None
    """Unread rows in all sources; None if unknown, or if no run is up."""
    restarts: int
    failures: int
    last_failure: str
    last_failure_at: float
    unreadable: tuple[str, ...]


class OverviewTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/index.json`: all jobs, and the problems of storages."""

    jobs: tuple[JobSummary, ...]
    problems: tuple[str, ...] = ()


class CheckpointsTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/checkpoints.json`: without the measurements of subtasks, which the JSON of one checkpoint has."""

    job: str
    now: float
    settings: PlanSettings | None
    summary: CheckpointSummary
    checkpoints: tuple[CheckpointView, ...]


class FailuresTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/failures.json`: failures, grouped, and runs."""

    job: str
    now: float
    failures: tuple[FailureView, ...]
    groups: tuple[FailureGroup, ...]
    """Runs of consecutive failures with the same cause."""
    runs: tuple[RunView, ...]


class JournalTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/journal.json`: all events, newest first."""

    job: str
    now: float
    events: tuple[Event, ...]
    deaths: tuple[FailureView, ...]
    """Drivers that died before they could write an event. The page shows them among the events."""


class BatchesTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/batches.json`: recent batches, newest first."""

    job: str
    now: float
    batches: tuple[BatchLive, ...]


class SavepointsTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/savepoints.json`: folders of savepoints, newest first."""

    job: str
    now: float
    savepoints: tuple[str, ...]


class ActionsTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/actions.json`: the possible actions, and the outcomes of earlier ones."""

    job: str
    now: float
    state: JobState
    allowed: tuple[str, ...]
    savepoints: tuple[str, ...]
    asked: tuple[RequestView, ...]
    """Earlier requests from the journal, newest first."""
    outcome: Outcome | None = None


def overview(views: Sequence[JobView], problems: tuple[str, ...] = ()) -> OverviewTwin:
    """The summary of all jobs."""
    return OverviewTwin(jobs=tuple(map(summary, views)), problems=problems)


def summary(view: JobView) -> JobSummary:
    """The summary of one job."""
    live, plan, last = view.live, view.plan, view.last_completed
    failure = view.failures[0] if view.failures else None
    return JobSummary(
        id=view.id,
        name=view.name,
        place=view.place,
        storage=view.storage,
        state=view.state,
        now=view.now,
        looked_at=view.looked_at,
        since=view.since,
        run=view.run,
        host=view.host,
        pid=view.pid,
        supervised=view.supervised,
        guarantee=view.guarantee,
        limited_by=plan.limited_by if plan else "",
        reason=plan.reason if plan else "",
        started_at=live.started_at if live else 0.0,
        checkpoint=last.checkpoint if last else -1,
        checkpoint_at=last.completed_at if last else 0.0,
        checkpoint_age_s=view.checkpoint_age_s,
        interval_s=plan.settings.interval_s if plan else None,
        late=view.is_late,
        rows_per_s=live.rows_per_s if live and view.is_up else 0.0,
        behind=total_behind(view).now,
        restarts=view.restarts,
        failures=len(view.failures),
        last_failure=(failure.root or failure.why) if failure else "",
        last_failure_at=failure.at if failure else 0.0,
        unreadable=view.unreadable,
    )


def job(view: JobView) -> JobView:
    """A job with as much history as its page shows."""
    return msgspec.structs.replace(
        view,
        events=view.story[:MOST_EVENTS],
        asked=view.asked[:MOST_EVENTS],
        checkpoints=_light(view.checkpoints[:MOST_CHECKPOINTS]),
    )


def checkpoints(view: JobView) -> CheckpointsTwin:
    """All known checkpoints of a job."""
    settings = view.plan.settings if view.plan else None
    return CheckpointsTwin(
        job=view.name,
        now=view.now,
        settings=settings,
        summary=view.summary,
        checkpoints=_light(view.checkpoints),
    )


def _light(known: Sequence[CheckpointView]) -> tuple[CheckpointView, ...]:
    return tuple(msgspec.structs.replace(one, subtasks=()) for one in known)


def failures(view: JobView) -> FailuresTwin:
    """All known failures of a job."""
    return FailuresTwin(
        job=view.name,
        now=view.now,
        failures=view.failures,
        groups=grouped(view.failures),
        runs=view.runs,
    )


def journal(view: JobView) -> JournalTwin:
    """All known events of a job."""
    deaths = tuple(untold_deaths(view.events, view.failures))
    return JournalTwin(job=view.name, now=view.now, events=view.events, deaths=deaths)


def batches(view: JobView) -> BatchesTwin:
    """The recent batches of the current run."""
    found = view.live.recent_batches if view.live else ()
    return BatchesTwin(job=view.name, now=view.now, batches=found)


def savepoints(view: JobView) -> SavepointsTwin:
    """The folders of savepoints that the journal names."""
    return SavepointsTwin(job=view.name, now=view.now, savepoints=view.savepoints)


def actions(view: JobView, allowed: Sequence[str], outcome: Outcome | None) -> ActionsTwin:
    """The possible actions and the outcome of one request."""
    return ActionsTwin(
        job=view.name,
        now=view.now,
        state=view.state,
        allowed=tuple(allowed),
        savepoints=view.savepoints,
        asked=view.asked,
        outcome=outcome,
    )
