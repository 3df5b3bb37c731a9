"""Looking at all jobs of some storages, for many who ask: what was seen is kept, and looked at anew in a thread. The dashboard's process.

While somebody asks, the thread looks every half second, and never for more than half of the time, however slow storage is. When nobody
asks any more, it stands still. Whoever comes then waits for one look.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.view.find import FoundJob, find_jobs, job_of, linked_jobs
from penstock.view.look import JobWatcher
from penstock.view.model import JobState, JobView

_log = logging.getLogger(__name__)

EVERY_S = 0.5
"""How often is looked, while somebody asks."""
FIND_EVERY_S = 2.0
"""How often is looked whether there are other jobs."""
ASLEEP_EVERY_S = 2.0
"""How often is looked at a job that does not run."""
WANTED_S = 3.0
"""So long after somebody has asked, looking goes on."""
STALE_S = 5.0
"""What was seen so long ago is not shown: somebody who asks waits for a new look."""
PATIENCE_S = 10.0
"""But not longer than this: then what there is is shown, with its age."""
CLOSE_S = 2.0
_MOST_TOLD, _LONGEST_TOLD = 100, 200


class Looker(Protocol):
    """What pages, REST and metrics ask. Answers come from memory, and are at most about a second old while somebody asks."""

    def views(self) -> list[JobView]:
        """All jobs, by name. One that is damaged is there all the same, as `unreadable`."""
        ...

    def view(self, job: str) -> JobView | None:
        """The job of this name or id; None when there is none, or several have the name."""
        ...

    def found(self, job: str) -> FoundJob:
        """Its storage, for those who ask it for something; raises `ConfigError` that says which jobs there are."""
        ...


@dataclass(frozen=True)
class Seen:
    """A job as it was seen last. The revision grows whenever it looks different."""

    job: FoundJob
    view: JobView
    revision: int
    looked_at: float
    """By the clock that never goes back."""


@dataclass(frozen=True)
class _Sight:
    """All that was seen at one time; never changed, so that it can be read without a lock."""

    seen: tuple[Seen, ...] = ()
    problems: tuple[str, ...] = ()
    at: float = float("-inf")


class StorageLooker:
    """A `Looker` over some storages; `start` it before it is asked, `close` it at the end.

    What always holds: a method that is not `wait` returns at once; nothing that lies in a storage makes one raise.
    """

    def __init__(
        self, places: Sequence[str], *, only: str | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`only`: the name of the one job that is shown, whatever else lies there."""
        self._places = tuple(places)
        self._only = only
        self._clock = clock
        self._sight = _Sight()
        self._watchers: dict[str, tuple[FoundJob, JobWatcher]] = {}
        self._revision = 0
        self._found_at = float("-inf")
        self._asked_at = float("-inf")
        self._looking_since = float("inf")
        """When the look began that is under way."""
        self._told: set[tuple[str, str]] = set()
        """Jobs that could not be looked at, and why."""
        self._asked = threading.Event()
        self._looked = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-look", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. A storage that does not answer is not waited for."""
        self._ended.set()
        self._asked.set()
        self._thread.join(CLOSE_S)

    # ── for those who ask ──────────────────────────────────────────────────────────────────────

    def views(self) -> list[JobView]:
        """See `Looker.views`."""
        return [one.view for one in self._now().seen]

    def view(self, job: str) -> JobView | None:
        """See `Looker.view`."""
        seen = self.seen(job)
        return None if seen is None else seen.view

    def found(self, job: str) -> FoundJob:
        """See `Looker.found`."""
        return job_of((one.job for one in self._now().seen), job)

    def seen(self, job: str) -> Seen | None:
        """The same as `view`, with its revision."""
        matching = [one for one in self._now().seen if job in (one.job.name, one.job.id)]
        return matching[0] if len(matching) == 1 else None

    def all_seen(self) -> tuple[Seen, ...]:
        """All jobs, by name."""
        return self._now().seen

    def last_look(self) -> object:
        """Another object for each look: whatever was made of what was seen is good as long as this stays the same one."""
        return self._now()

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with a storage as a whole, for people."""
        return self._sight.problems

    def is_fresh(self) -> bool:
        """Whether what is kept can be shown; if not, `wait` in a thread before. A look that takes long is not waited for a second time."""
        now, sight = self._clock.monotonic(), self._sight
        takes_long = now - self._looking_since > STALE_S and sight.at > float("-inf")
        return takes_long or now - sight.at < STALE_S

    def wait(self) -> None:
        """Wait until what is kept can be shown, or patience ends. Never in the thread of an event loop."""
        self._want()
        with self._looked:
            self._looked.wait_for(self.is_fresh, PATIENCE_S)

    def _now(self) -> _Sight:
        self._want()
        return self._sight

    def _want(self) -> None:
        self._asked_at = self._clock.monotonic()
        if not self._asked.is_set():
            self._asked.set()

    # ── the thread that looks ──────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._ended.is_set():
            self._asked.wait()
            began = self._clock.monotonic()
            if began - self._asked_at > WANTED_S:
                self._asked.clear()
                continue
            self.look()
            took = self._clock.monotonic() - began
            self._clock.wait(self._ended, max(EVERY_S - took, took))

    def look(self) -> None:
        """Look at everything that may have changed. By one thread at a time: that of `start`, or one that never starts it."""
        self._looking_since = self._clock.monotonic()
        problems = self._find()
        before = {one.job.storage.uri: one for one in self._sight.seen}
        seen = tuple(self._seen(*one, before.get(uri)) for uri, one in self._watchers.items())
        with self._looked:
            self._sight = _Sight(seen, problems, self._clock.monotonic())
            self._looking_since = float("inf")
            self._looked.notify_all()

    def _find(self) -> tuple[str, ...]:
        if self._clock.monotonic() - self._found_at < FIND_EVERY_S:
            return self._sight.problems
        jobs, problems, linked = _found(self._places)
        self._found_at = self._clock.monotonic()
        kept = {uri: one for uri, one in self._watchers.items() if uri not in linked}
        self._watchers = {
            job.storage.uri: _known(kept, job) or (job, JobWatcher(job))
            for job in (_not_lost(jobs, kept) if problems else jobs)
            if self._only in (None, job.name)
        }
        return (*problems, *linked.values())

    def _seen(self, job: FoundJob, watcher: JobWatcher, before: Seen | None) -> Seen:
        now = self._clock.monotonic()
        is_asleep = before is not None and before.job is job and not before.view.state.is_alive
        if before is not None and is_asleep and now - before.looked_at < ASLEEP_EVERY_S:
            return before
        view = self._view(job, watcher)
        if before is not None and _looks_the_same(before.view, view):
            return Seen(job, view, before.revision, now)
        self._revision += 1
        return Seen(job, view, self._revision, now)

    def _view(self, job: FoundJob, watcher: JobWatcher) -> JobView:
        now = self._clock.wall()
        try:
            return watcher.look(now)
        except Exception as error:  # noqa: BLE001 - whatever lies there: the other jobs are shown all the same
            self._tell_once(job, error)
            return JobView(
                id=job.id,
                name=job.name,
                storage=job.storage.uri,
                place=job.place,
                state=JobState.UNREADABLE,
                now=now,
                unreadable=(f"{type(error).__name__}: {error}",),
            )

    def _tell_once(self, job: FoundJob, error: Exception) -> None:
        """A log that says it twice a second would fill the disk."""
        told = (job.storage.uri, repr(error)[:_LONGEST_TOLD])
        if told not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(told)
            _log.exception("job %s in %s cannot be looked at", job.name, job.storage.uri)


def _found(places: Sequence[str]) -> tuple[list[FoundJob], tuple[str, ...], dict[str, str]]:
    """The jobs of all storages that answer, why others do not, and links that are no jobs, see `linked_jobs`."""
    try:
        return find_jobs(places), (), linked_jobs(places)
    except (PenstockError, OSError):
        pass  # which of them it is, is found out one by one
    answering, problems = [], []
    for place in places:
        try:
            find_jobs([place])
            answering.append(place)
        except (PenstockError, OSError) as error:
            problems.append(str(error))
    try:
        return find_jobs(answering), tuple(problems), linked_jobs(answering)
    except (PenstockError, OSError) as error:
        return [], (*problems, str(error)), {}


_Watched = tuple[FoundJob, JobWatcher]


def _known(kept: dict[str, _Watched], job: FoundJob) -> _Watched | None:
    """Who watches it already: what was read once is not read again. Storages are not compared: each look opens its own."""
    watched = kept.get(job.storage.uri)
    if watched is None or (watched[0].id, watched[0].place) != (job.id, job.place):
        return None
    return watched


def _not_lost(jobs: list[FoundJob], kept: dict[str, _Watched]) -> list[FoundJob]:
    """With those known before whose storage does not answer now: they are shown, with what is wrong."""
    there = {job.storage.uri for job in jobs}
    both = [*jobs, *(job for uri, (job, _) in kept.items() if uri not in there)]
    return sorted(both, key=lambda job: (job.name, job.place))


def _looks_the_same(one: JobView, other: JobView) -> bool:
    return msgspec.structs.replace(one, now=other.now) == other
