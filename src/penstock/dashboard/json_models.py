"""The JSON twin of each page. Pure; the dashboard's process.

A twin has what its page shows and no more: a whole `JobView` may contain megabytes of history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.requests.request_client import Outcome
from penstock.status.job_history import grouped, untold_deaths
from penstock.status.view import CheckpointView, JobView, total_behind

Json = dict[str, Any]
MOST_EVENTS = 200
MOST_CHECKPOINTS = 20
"""The history in the JSON of a job; `checkpoints.json` and `journal.json` have all of it."""


def overview(views: Sequence[JobView], problems: tuple[str, ...] = ()) -> Json:
    """`/index.json`: all jobs, and the problems of storages."""
    return {"jobs": [summary(view) for view in views], "problems": problems}


def summary(view: JobView) -> Json:
    """A job as the overview shows it."""
    live, plan, last = view.live, view.plan, view.last_completed
    failure = view.failures[0] if view.failures else None
    return {
        "id": view.id,
        "name": view.name,
        "place": view.place,
        "storage": view.storage,
        "state": view.state,
        "now": view.now,
        "looked_at": view.looked_at,  # if that is some time ago; 0: just now
        "since": view.since,
        "run": view.run,
        "host": view.host,
        "pid": view.pid,
        "supervised": view.supervised,
        "guarantee": view.guarantee,
        "limited_by": plan.limited_by if plan else "",
        "reason": plan.reason if plan else "",
        "started_at": live.started_at if live else 0.0,
        "checkpoint": last.checkpoint if last else -1,
        "checkpoint_at": last.completed_at if last else 0.0,
        "checkpoint_age_s": view.checkpoint_age_s,
        "interval_s": plan.settings.interval_s if plan else None,
        "late": view.is_late,
        "rows_per_s": live.rows_per_s if live and view.is_up else 0.0,
        "behind": total_behind(view).now,  # unread rows in all sources; None if unknown, or if no run is up
        "restarts": view.restarts,
        "failures": len(view.failures),
        "last_failure": (failure.root or failure.why) if failure else "",
        "last_failure_at": failure.at if failure else 0.0,
        "unreadable": view.unreadable,
    }


def job(view: JobView) -> JobView:
    """A job with as much history as its page shows."""
    return msgspec.structs.replace(
        view,
        events=view.story[:MOST_EVENTS],
        asked=view.asked[:MOST_EVENTS],
        checkpoints=_light(view.checkpoints[:MOST_CHECKPOINTS]),
    )


def checkpoints(view: JobView) -> Json:
    """`/jobs/{job}/checkpoints.json`: without the measurements of subtasks, which the JSON of one checkpoint has."""
    settings = view.plan.settings if view.plan else None
    known = _light(view.checkpoints)
    return _of_job(view, settings=settings, summary=view.summary, checkpoints=known)


def _light(known: Sequence[CheckpointView]) -> tuple[CheckpointView, ...]:
    return tuple(msgspec.structs.replace(one, subtasks=()) for one in known)


def failures(view: JobView) -> Json:
    """`/jobs/{job}/failures.json`: failures; runs of consecutive ones with the same cause, as groups; and runs of the job."""
    return _of_job(view, failures=view.failures, groups=grouped(view.failures), runs=view.runs)


def journal(view: JobView) -> Json:
    """`/jobs/{job}/journal.json`: all events, newest first.

    `deaths` has the drivers that died before they could write an event. The page shows them among the events.
    """
    return _of_job(view, events=view.events, deaths=untold_deaths(view.events, view.failures))


def batches(view: JobView) -> Json:
    """`/jobs/{job}/batches.json`: the recent batches of the current run, newest first."""
    found, why = (view.live.recent_batches, view.live.planned_anew) if view.live else ((), "")
    return _of_job(view, batches=found, planned_anew=why or None)


def savepoints(view: JobView) -> Json:
    """`/jobs/{job}/savepoints.json`: the folders of savepoints that the journal names, newest first."""
    return _of_job(view, savepoints=view.savepoints)


def actions(view: JobView, allowed: Sequence[str], outcome: Outcome | None) -> Json:
    """`/jobs/{job}/actions.json`: the possible actions, the outcome of one request, and earlier requests from the journal."""
    earlier = {"savepoints": view.savepoints, "asked": view.asked}
    return _of_job(view, state=view.state, allowed=allowed, **earlier, outcome=outcome)


def _of_job(view: JobView, **shown: object) -> Json:
    return {"job": view.name, "now": view.now, **shown}
