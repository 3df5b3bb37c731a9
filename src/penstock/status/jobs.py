"""Finds the jobs in storages. Changes nothing; readers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError, UnavailableError
from penstock.ids import is_name
from penstock.ownership.claim import JOB_FILE
from penstock.storage import LocalStorage, Storage, open_job_storage, open_storage
from penstock.wording import did_you_mean

ID_DIGITS = 32
_ITS_OWN = (JOB_FILE, "runs", "requests", "holds", "events", "state")

_HOLLOW = "{} in it is a link, and can be that of another job; Penstock makes no links there, so look who did"


@dataclass(frozen=True)
class FoundJob:
    """A job that has been started at least once."""

    name: str
    place: str
    """The storage as the user gave it."""
    storage: Storage
    """The folder of the job."""
    id: str
    """See `JobView.id`."""


def job_id(name: str, uri: str = "") -> str:
    """What Flink's own client knows a job by. `uri`: of its folder, where another job that is shown beside it has the same name."""
    told_apart = f"{name}\0{uri}" if uri else name
    return hashlib.sha256(told_apart.encode()).hexdigest()[:ID_DIGITS]


def find_jobs(places: Sequence[str | Path]) -> list[FoundJob]:
    """All jobs in these storages, by name. A place may also be the folder of one job. Links inside of one are none, see `linked_jobs`."""
    found = {
        storage.uri: (name, place, storage) for place in places for name, place, storage in _in(str(place))
    }
    times = Counter(name for name, _, _ in found.values())
    jobs = (
        FoundJob(name, place, storage, job_id(name, uri if times[name] > 1 else ""))
        for uri, (name, place, storage) in found.items()
    )
    return sorted(jobs, key=lambda job: (job.name, job.place))


def _in(place: str) -> Iterator[tuple[str, str, Storage]]:
    opened = open_storage(place)
    if opened.size(JOB_FILE) is not None:
        if _link_inside(opened):
            return
        name = opened.uri.rstrip("/").rpartition("/")[2]
        above = (
            str(Path(opened.root).parent)
            if isinstance(opened, LocalStorage)
            else opened.uri.rpartition("/")[0]
        )
        yield name, above, opened
        return
    for name in opened.folders():
        if is_name(name) and _is_job(opened, name) and not _link_inside(opened, f"{name}/"):
            yield name, place, open_job_storage(place, name)


def linked_jobs(places: Iterable[str | Path]) -> dict[str, str]:
    """Links in these storages that are not shown as jobs: the reason by URI.

    With a link, anyone who can write into a storage could show a job under another name, and control one that lies outside. A storage may
    be a link, and so may the folder of a job: those are named by a person.
    """
    found = {}
    for place in places:
        opened = open_storage(place)
        if not isinstance(opened, LocalStorage):
            continue
        if opened.size(JOB_FILE) is not None:
            if link := _link_inside(opened):
                found[opened.uri] = f"{place} is not shown: {_HOLLOW.format(link)}"
        else:
            for name, why in _refused(opened).items():
                found[LocalStorage(opened.root / name).uri] = f"{name} in {place} is not shown: {why}"
    return found


def _refused(place: LocalStorage) -> dict[str, str]:
    linked = {
        name: f"it is a link to {leads_to}, and a job is shown where it lies; give that folder, too, if it is to be shown here"
        for name, leads_to in place.linked_folders().items()
        if _is_job(place, name)
    }
    hollow = {
        name: _HOLLOW.format(link)
        for name in place.folders()
        if _is_job(place, name) and (link := _link_inside(place, f"{name}/"))
    }
    return {**linked, **hollow}


def _link_inside(place: Storage, folder: str = "") -> str:
    """Which of the places by which a job is known and steered is a link; '' when none is. `folder`: with a slash at its end."""
    if not isinstance(place, LocalStorage):
        return ""
    return next((name for name in _ITS_OWN if place.is_link(f"{folder}{name}")), "")


def _is_job(place: Storage, folder: str) -> bool:
    """A folder that cannot be read is no job here, and hides no other."""
    try:
        return place.size(f"{folder}/{JOB_FILE}") is not None
    except UnavailableError as error:
        if isinstance(error.__cause__, PermissionError):
            return False
        raise


def job_of(jobs: Iterable[FoundJob], wanted: str) -> FoundJob:
    """The one of this name or id; raises `ConfigError` that says which there are.

    A job has two ids: which of them is shown depends on what is shown beside it, and either is understood where it says which job is meant.
    """
    known = list(jobs)
    matching = [job for job in known if wanted in (job.name, job.id)] or [
        job for job in known if wanted in (job_id(job.name), job_id(job.name, job.storage.uri))
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        where = ", ".join(f"{job.id} in {job.place}" for job in matching)
        raise ConfigError(f"there are {len(matching)} jobs {wanted!r}: {where}; ask by the id", job=wanted)
    names = [job.name for job in known]
    close = did_you_mean(wanted, names)
    there = (
        f"there are: {', '.join(names)}"
        if names
        else "there is none at all; is it the storage given to Job(storage=...)?"
    )
    raise ConfigError(f"there is no job {wanted!r}; {there}{f'; {close}' if close else ''}", job=wanted)
