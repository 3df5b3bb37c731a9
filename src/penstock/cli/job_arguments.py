"""The arguments that several commands share, how they find their job, and shell completion of job names. Driver.

A job is found by storage and name, by id, or by its own folder. A storage that cannot be read completes to nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock.checkpoint.metadata import committed_checkpoints, found_checkpoints
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import checked_name
from penstock.ownership.claim import JOB_FILE
from penstock.savepoint.manifest import MANIFEST
from penstock.status.jobs import ID_DIGITS, FoundJob, find_jobs, job_id, job_of
from penstock.storage import LocalStorage, Storage, open_job_storage, open_storage
from penstock.wording import did_you_mean, duration


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a job in the storage given before it."""
    from penstock.status.jobs import find_jobs

    places = context.params.get("storage") or context.params.get("path") or ()
    try:
        jobs = find_jobs([places] if isinstance(places, str) else list(places))
    except (PenstockError, OSError):
        return []
    return [job.name for job in jobs if job.name.startswith(incomplete)]


StorageOfJob = Annotated[
    str,
    typer.Argument(metavar="STORAGE", help="Path or URI, as in Job(storage=...); or the job's own folder."),
]
NameOfJob = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="The name of the job, or its id; leave it out if STORAGE is the job's own folder.",
        autocompletion=job_names,
    ),
]
Storages = Annotated[
    list[str],
    typer.Argument(metavar="STORAGE...", help="Paths or URIs, as in Job(storage=...); or folders of jobs."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Patience = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the job, such as 30s or 5min.")
]
JobFile = Annotated[Path, typer.Argument(metavar="FILE.py", help="A Python file that defines a Job.")]
JobVariable = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="NAME",
        help="The variable with the Job, or with a function(spark) that returns one; default: 'job'.",
    ),
]
RestartOption = Annotated[
    str | None,
    typer.Option(
        "--restart",
        metavar="STRATEGY",
        help="With --keep-alive: when and how often to restart, such as fixed-delay:attempts=3,delay=10s.",
    ),
]


PATIENCE_S = 20.0
"""The time in which a storage must answer."""
_T = TypeVar("_T")


def open_job(storage: str, job: str | None = None) -> Storage:
    """The storage of a job that has run; raises `ConfigError` with the known jobs if it never ran."""
    return found_job(storage, job).storage


def found_job(storage: str, job: str | None = None) -> FoundJob:
    """A job that has run; raises `ConfigError` with the known jobs if it never ran. Without `job`, `storage` is its own folder."""
    if job is None:
        return _job_in_its_folder(storage)
    if len(job) == ID_DIGITS and all(digit in "0123456789abcdef" for digit in job):
        return job_of(jobs_in([storage]), job)
    opened = open_job_storage(storage, checked_name("job name", job))
    if opened.size(JOB_FILE) is None and not (found_checkpoints(opened) or committed_checkpoints(opened)):
        refuse_missing(storage)
        raise ConfigError(
            f"no job {job!r} ever ran with the storage {storage}; {_known(storage, job)}",
            job=job,
            storage=storage,
        )
    return FoundJob(job, storage, opened, job_id(job))


def jobs_in(storages: Sequence[str]) -> list[FoundJob]:
    """All jobs in storages; raises `ConfigError` for a storage that does not exist, since an empty list would mislead."""
    found = find_jobs(storages)
    for storage in storages:
        refuse_missing(storage)
    return found


def refuse_missing(storage: str) -> None:
    """Raise `ConfigError` if the folder does not exist. Call it when nothing was found."""
    if is_missing(opened := open_storage(storage)):
        raise ConfigError(
            f"there is no storage {storage}: the folder {opened.uri} does not exist, so it shows no job; give the storage of "
            "Job(storage=...), and check that it is mounted here",
            storage=storage,
        )


def is_missing(storage: Storage) -> bool:
    """Whether a local folder does not exist. Other storages come into being with their first file."""
    return isinstance(storage, LocalStorage) and not storage.root.is_dir()


def is_job(path: str) -> bool:
    """Whether this is the folder of a job, and neither a storage of jobs nor a savepoint."""
    folder = open_storage(path)
    return folder.size(MANIFEST) is None and folder.size(JOB_FILE) is not None


def _job_in_its_folder(folder: str) -> FoundJob:
    if not is_job(folder):
        refuse_missing(folder)
        raise ConfigError(
            f"{folder} is not the folder of a job, so give the name of a job after it; {_known(folder)}",
            storage=folder,
        )
    return find_jobs([folder])[0]


def _known(storage: str, wanted: str = "") -> str:
    known = sorted(job.name for job in find_jobs([storage]))
    if known:
        close = did_you_mean(wanted, known)
        return f"there are: {', '.join(known)}{f'; {close}' if close else ''}"
    return "it has no jobs; is it the storage given to Job(storage=...)?"


def within(seconds: float, storage: object, look: Callable[[], _T]) -> _T:
    """The result of `look`; raises `UnavailableError` if storage does not answer in time. The waiting thread is abandoned."""
    answered: queue.SimpleQueue[_T | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answered.put(look())
        except Exception as error:  # noqa: BLE001 - raised below
            answered.put(error)

    threading.Thread(target=work, name="penstock-look", daemon=True).start()
    try:
        found = answered.get(timeout=seconds)
    except queue.Empty:
        raise UnavailableError(
            f"{storage} has not answered for {duration(seconds)}, so the state of the job is unknown; the job may still be healthy; check "
            "that the storage is mounted and answers",
            storage=str(storage),
        ) from None
    if isinstance(found, Exception):
        raise found
    return found
