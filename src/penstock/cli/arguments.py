"""Arguments and options that several commands share, and shell completion of job names. Driver.

A shell starts the command anew for every press of the key. So imports are late, and a storage that cannot be read completes to nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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


StorageOfJob = Annotated[
    str,
    typer.Argument(
        metavar="STORAGE",
        help="Path or URI, as in Job(storage=...); or the job's own folder.",
        show_default=False,
    ),
]
NameOfJob = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="The name of the job, or its id; not needed behind the job's own folder.",
        show_default=False,
        autocompletion=job_names,
    ),
]
Storages = Annotated[
    list[str],
    typer.Argument(
        metavar="STORAGE...",
        help="Paths or URIs, as in Job(storage=...); or folders of jobs.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Patience = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the job, such as 30s or 5min.")
]
JobFile = Annotated[
    Path, typer.Argument(metavar="FILE.py", help="A Python file that defines a Job.", show_default=False)
]
JobVariable = Annotated[
    str | None,
    typer.Option(
        "--job", metavar="NAME", help="The Job, or the function(spark) that makes it; 'job' by default."
    ),
]
RestartOption = Annotated[
    str | None,
    typer.Option(
        "--restart",
        metavar="STRATEGY",
        help="With --keep-alive: when, and how often; such as fixed-delay:attempts=3,delay=10s.",
        show_default=False,
    ),
]
