"""A poller without a thread: it looks at storage whenever it is asked."""

from __future__ import annotations

import threading
import time

from penstock.status.job_watcher import JobWatcher
from penstock.status.jobs import FoundJob, find_jobs, job_of
from penstock.status.view import JobView


class PlainLooker:
    """Looks at storage whenever it is asked."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._watchers: dict[str, JobWatcher] = {}
        self._one_at_a_time = threading.Lock()

    def views(self) -> list[JobView]:
        return [self._look(job) for job in find_jobs([self._place])]

    def view(self, job: str) -> JobView | None:
        found = [one for one in find_jobs([self._place]) if job in (one.name, one.id)]
        return self._look(found[0]) if len(found) == 1 else None

    def found(self, job: str) -> FoundJob:
        return job_of(find_jobs([self._place]), job)

    def _look(self, job: FoundJob) -> JobView:
        with self._one_at_a_time:
            return self._watchers.setdefault(job.storage.uri, JobWatcher(job)).look(time.time())
