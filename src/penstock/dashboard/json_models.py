"""The JSON twins of pages: what each shows, as structs. Pure; the dashboard's process.

A twin has what its page has, and no more: the whole of a `JobView` may be megabytes of history.
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
"""Of history with the job itself; `checkpoints.json` and `journal.json` have all that is known."""


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the overview shows it."""

    id: str
    name: str
    place: str
    storage: str
    state: JobState
    now: float
    looked_at: float
    """When it was last seen, if that is some time ago; 0: just now."""
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
    """Rows in all sources that are not read yet; None where nobody knows, or no run is up that looks."""
    restarts: int
    failures: int
    last_failure: str
    last_failure_at: float
    unreadable: tuple[str, ...]


class OverviewTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/index.json`."""

    jobs: tuple[JobSummary, ...]
    problems: tuple[str, ...] = ()


class CheckpointsTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/checkpoints.json`: without what single subtasks measured, which the one checkpoint has."""

    job: str
    now: float
    settings: PlanSettings | None
    summary: CheckpointSummary
    checkpoints: tuple[CheckpointView, ...]


class FailuresTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/failures.json`."""

    job: str
    now: float
    failures: tuple[FailureView, ...]
    groups: tuple[FailureGroup, ...]
    """Which of them, one behind the other, have the same cause."""
    runs: tuple[RunView, ...]


class JournalTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/journal.json`: newest first."""

    job: str
    now: float
    events: tuple[Event, ...]
    deaths: tuple[FailureView, ...]
    """Drivers that died without an event: nobody was left to write one. The page shows them among the events."""


class BatchesTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/batches.json`: newest first."""

    job: str
    now: float
    batches: tuple[BatchLive, ...]


class SavepointsTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/savepoints.json`: newest first."""

    job: str
    now: float
    savepoints: tuple[str, ...]


class ActionsTwin(msgspec.Struct, frozen=True, kw_only=True):
    """`/jobs/{job}/actions.json`: what can be asked for now, and what has become of what was."""

    job: str
    now: float
    state: JobState
    allowed: tuple[str, ...]
    savepoints: tuple[str, ...]
    asked: tuple[RequestView, ...]
    """What the journal knows of earlier requests, newest first."""
    outcome: Outcome | None = None


def overview(views: Sequence[JobView], problems: tuple[str, ...] = ()) -> OverviewTwin:
    """All jobs at a glance."""
    return OverviewTwin(jobs=tuple(map(glance, views)), problems=problems)


def glance(view: JobView) -> JobSummary:
    """One of them."""
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
    """The job, with as much of its history as its page shows."""
    return msgspec.structs.replace(
        view,
        events=view.story[:MOST_EVENTS],
        asked=view.asked[:MOST_EVENTS],
        checkpoints=_light(view.checkpoints[:MOST_CHECKPOINTS]),
    )


def checkpoints(view: JobView) -> CheckpointsTwin:
    """All that is known."""
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
    """All that is known."""
    return FailuresTwin(
        job=view.name,
        now=view.now,
        failures=view.failures,
        groups=grouped(view.failures),
        runs=view.runs,
    )


def journal(view: JobView) -> JournalTwin:
    """All that is known."""
    deaths = tuple(untold_deaths(view.events, view.failures))
    return JournalTwin(job=view.name, now=view.now, events=view.events, deaths=deaths)


def batches(view: JobView) -> BatchesTwin:
    """Those that the run has written down."""
    found = view.live.recent_batches if view.live else ()
    return BatchesTwin(job=view.name, now=view.now, batches=found)


def savepoints(view: JobView) -> SavepointsTwin:
    """Folders that the journal knows of."""
    return SavepointsTwin(job=view.name, now=view.now, savepoints=view.savepoints)


def actions(view: JobView, allowed: Sequence[str], outcome: Outcome | None) -> ActionsTwin:
    """What can be asked for."""
    return ActionsTwin(
        job=view.name,
        now=view.now,
        state=view.state,
        allowed=tuple(allowed),
        savepoints=view.savepoints,
        asked=view.asked,
        outcome=outcome,
    )
