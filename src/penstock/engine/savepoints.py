"""Where savepoints of a job go, and the one place where one is made of a completed checkpoint. Driver, and the command line."""

from __future__ import annotations

import logging

from penstock.checkpoint.completed import Completed
from penstock.clock import Stopwatch
from penstock.ownership.requests import Facts
from penstock.savepoint.beside import create_beside
from penstock.savepoint.manifest import MANIFEST
from penstock.storage import LocalStorage, Storage, open_storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

TOKEN_DIGITS = 8


def make_savepoint(job_storage: Storage, completed: Completed, *, to: str | None, token: str) -> Facts:
    """Make one of a checkpoint that is committed and held; says where it is. The same token again finds what it has made before."""
    made = _made_before(job_storage, completed.job, token) if to is None else None
    place = made or savepoint_place(job_storage, completed, to=to, token=token)
    watch = Stopwatch()
    if made is None:
        _create(job_storage, completed, place, token=token)
    _log.info(
        "savepoint of checkpoint %d of job %s is in %s", completed.checkpoint, completed.job, shown(place)
    )
    return {
        "savepoint": shown(place),
        "checkpoint": completed.checkpoint,
        "took": duration(watch.seconds),
    }


def savepoint_place(job_storage: Storage, completed: Completed, *, to: str | None, token: str) -> Storage:
    """The folder that somebody has named, or a new one beside that of the job."""
    if to is not None:
        return open_storage(to)
    return open_storage(
        f"{_beside(job_storage, completed.job)}/{completed.checkpoint}-{token[:TOKEN_DIGITS]}"
    )


def shown(place: Storage) -> str:
    """As a person would type it."""
    return str(place.root) if isinstance(place, LocalStorage) else place.uri


def _beside(job_storage: Storage, job: str) -> str:
    folder, _, _ = job_storage.uri.rpartition("/")
    return f"{folder}/{job}-savepoints"


def _made_before(job_storage: Storage, job: str, token: str) -> Storage | None:
    """What a run that died before it could say so has made for the same request; of another checkpoint perhaps."""
    beside = _beside(job_storage, job)
    end = f"-{token[:TOKEN_DIGITS]}/{MANIFEST}"
    for name in open_storage(beside).names():
        if name.endswith(end):
            return open_storage(f"{beside}/{name.removesuffix(f'/{MANIFEST}')}")
    return None


def _create(job_storage: Storage, completed: Completed, to: Storage, *, token: str) -> None:
    """In a process of its own. Whoever asks knows that all the checkpoint promised is committed, also if it is not noted yet."""
    create_beside(job_storage, completed, to, token=token, committed=True)
