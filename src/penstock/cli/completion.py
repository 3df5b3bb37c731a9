"""What a shell offers behind `penstock COMMAND STORAGE`: the names of the jobs there. Driver.

A shell asks by starting the command anew for every press of the key. So nothing is imported before it is needed, and whatever is wrong
with a storage is no answer rather than an error: nobody reads one there.
"""

from __future__ import annotations

import typer

from penstock.errors import PenstockError


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """The jobs in the storage that stands before."""
    from penstock.status.jobs import find_jobs

    places = context.params.get("storage") or context.params.get("path") or ()
    try:
        jobs = find_jobs([places] if isinstance(places, str) else list(places))
    except (PenstockError, OSError):
        return []
    return [job.name for job in jobs if job.name.startswith(incomplete)]
