"""Why a job went down, as Flink shows it. Pure: a view in, JSON out."""

from __future__ import annotations

from penstock.dashboard.flink.words import Json, millis
from penstock.status.view import FailureView, JobView

MOST = 20
"""So many are shown if nobody says how many; Flink's own number."""


def exceptions(view: JobView, most: int = MOST) -> Json:
    """`/jobs/:jobid/exceptions`, newest first. The first two fields are for clients of older Flinks."""
    newest = view.failures[0] if view.failures else None
    return {
        "root-exception": None if newest is None else account(newest),
        "timestamp": None if newest is None else millis(newest.at),
        "all-exceptions": [],
        "truncated": False,
        "exceptionHistory": {
            "entries": [_entry(view, failure) for failure in view.failures[:most]],
            "truncated": len(view.failures) > most,
        },
    }


def _entry(view: JobView, failure: FailureView) -> Json:
    hosts = {run.run: run.host for run in view.runs}
    return {
        "exceptionName": failure.error,
        "stacktrace": account(failure),
        "timestamp": millis(failure.at),
        "failureLabels": {},
        "taskName": None,
        "endpoint": hosts.get(failure.run),
        "taskManagerId": None,
        "concurrentExceptions": [],
    }


def account(failure: FailureView) -> str:
    """All that is known of it, root cause first, in lines."""
    head = f"{failure.error}: {failure.why}"
    lines = [f"{failure.root}\nwhich led to {head}" if failure.root else head, *failure.notes]
    if failure.decision:
        lines.append(f"decided: {failure.decision}")
    if failure.restored_from is not None:
        back = (
            "nothing: it began again" if failure.restored_from < 0 else f"checkpoint {failure.restored_from}"
        )
        lines.append(f"went back to {back}")
    if failure.down_s is not None:
        lines.append(f"processed nothing for {failure.down_s:.1f} s")
    if failure.rows_again is not None:
        lines.append(f"rows processed again: {failure.rows_again}")
    return "\n".join([*lines, *([failure.trace] if failure.trace else [])])
