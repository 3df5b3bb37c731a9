"""Reads the status of all jobs in some storages: threads read storage, requests get the last result. The dashboard's process.

Each storage has its own thread, so a storage that does not answer delays no other. While clients ask, the thread reads every half second,
but never for more than half of the time, however slow the storage is. Without clients, the thread sleeps; the next client waits for one
read.

A job that could not be read for a while is shown in its last known state and marked as such: `JobView.looked_at` stays, and `now` advances.
This applies to a storage that does not answer and to one that is gone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.status.job_watcher import JobWatcher, unreadable_view
from penstock.status.jobs import FoundJob, find_jobs, job_id, job_of, linked_jobs
from penstock.status.view import JobView
from penstock.storage import LocalStorage, open_storage
from penstock.wording import counted, duration

_log = logging.getLogger(__name__)

EVERY_S = 0.5
"""How often storage is read while clients ask."""
FIND_EVERY_S = 2.0
"""How often storage is searched for new jobs."""
ASLEEP_EVERY_S = 2.0
"""How often a job that is not running is read."""
WANTED_S = 3.0
"""How long reading goes on after the last request."""
STALE_S = 5.0
"""An older result is not shown as current: a request waits for a new read, or the page shows its age."""
PATIENCE_S = 10.0
"""The longest wait for a new read; then the page shows the old result with its age."""
CLOSE_S = 2.0
_MOST_LOGGED, _LONGEST_LOGGED = 100, 200


class JobViews(Protocol):
    """What pages, REST and metrics read. Results come from memory, and are at most about a second old while clients ask."""

    def views(self) -> list[JobView]:
        """All jobs, by name. A damaged job is included as `unreadable`."""
        ...

    def view(self, job: str) -> JobView | None:
        """The job of this name or id; None if there is none, or if several have the name."""
        ...

    def found(self, job: str) -> FoundJob:
        """The storage of a job, for requests to it; raises `ConfigError` with the names of all jobs."""
        ...


@dataclass(frozen=True)
class Seen:
    """The last known state of a job. The revision grows with every change."""

    job: FoundJob
    view: JobView
    revision: int
    looked_at: float
    """By the monotonic clock."""


@dataclass(frozen=True)
class _Sight:
    """The result of one read. It is immutable, so that it needs no lock."""

    seen: tuple[Seen, ...] = ()
    problems: tuple[str, ...] = ()
    at: float = float("-inf")
    of: tuple[object, ...] = ()
    """If this combines several storages: the result of each."""


class StatusPoller(JobViews):
    """A `JobViews` over some storages; `start` it before it is asked, `close` it at the end.

    Invariants: every method except `wait` returns at once; no content of a storage makes a method raise.
    """

    def __init__(
        self, places: Sequence[str], *, only: str | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`only`: the name of the single job to show."""
        self._clock = clock
        self._sight = _Sight()
        self._revision = 0
        self._asked_at = float("-inf")
        self._asked = threading.Event()
        self._looked = threading.Condition()
        self._ended = threading.Event()
        self._places = [_Place(place, only, clock, self._place_looked) for place in dict.fromkeys(places)]
        self._threads = [
            threading.Thread(target=self._run, args=(place,), name="penstock-look", daemon=True)
            for place in self._places
        ]

    def start(self) -> None:
        """Start one thread for each storage."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads, without waiting for a storage that does not answer."""
        self._ended.set()
        self._asked.set()
        until = self._clock.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - self._clock.monotonic()))

    # ── for those who ask ──────────────────────────────────────────────────────────────────────

    @override
    def views(self) -> list[JobView]:
        return [one.view for one in self._now().seen]

    @override
    def view(self, job: str) -> JobView | None:
        seen = self.seen(job)
        return None if seen is None else seen.view

    @override
    def found(self, job: str) -> FoundJob:
        return job_of((one.job for one in self._now().seen), job)

    def seen(self, job: str) -> Seen | None:
        """The job of this name or id with its revision; None as in `view`."""
        matching = [one for one in self._now().seen if job in (one.job.name, one.job.id)]
        return matching[0] if len(matching) == 1 else None

    def all_seen(self) -> tuple[Seen, ...]:
        """All jobs with their revisions, by name."""
        return self._now().seen

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of storages as a whole, for people."""
        return self._now().problems

    def is_fresh(self) -> bool:
        """Whether the last result is recent enough; if not, call `wait` in a thread. A slow read is not waited for twice."""
        now = self._clock.monotonic()
        return all(now - place.sight.at < STALE_S or place.takes_long(now) for place in self._places)

    def wait(self) -> None:
        """Wait until the result is recent, for at most `PATIENCE_S`. Never call it in an event loop."""
        self._want()
        with self._looked:
            self._looked.wait_for(self.is_fresh, PATIENCE_S)

    def _now(self) -> _Sight:
        self._want()
        sight, sights, now = (
            self._sight,
            tuple(place.sight for place in self._places),
            self._clock.monotonic(),
        )
        is_new = len(sights) != len(sight.of) or any(map(_is_another, sights, sight.of))
        if is_new or (now - sight.at >= STALE_S and any(now - one.at >= STALE_S for one in sights)):
            self._sight = sight = self._together(sights, now)
        return sight

    def _want(self) -> None:
        self._asked_at = self._clock.monotonic()
        if not self._asked.is_set():
            self._asked.set()

    def _together(self, sights: tuple[_Sight, ...], now: float) -> _Sight:
        """Combine the last results of all storages."""
        by_uri = {one.job.storage.uri: one for sight in sights for one in sight.seen}
        times = Counter(one.job.name for one in by_uri.values())
        seen = [self._aged(_with_unique_id(one, times), now) for one in by_uri.values()]
        problems = [text for place in self._places for text in place.problems(now)]
        in_order = sorted(seen, key=lambda one: (one.job.name, one.job.place))
        return _Sight(tuple(in_order), tuple(problems), now, sights)

    def _aged(self, seen: Seen, now: float) -> Seen:
        """Give an old result a new revision, so that pages show its age."""
        if now - seen.looked_at < STALE_S:
            return seen
        self._revision += 1
        view = msgspec.structs.replace(seen.view, now=self._clock.wall(), looked_at=seen.view.now)
        return Seen(seen.job, view, seen.revision + self._revision, now)

    # ── the threads that look ──────────────────────────────────────────────────────────────────

    def _run(self, place: _Place) -> None:
        while not self._ended.is_set():
            self._asked.wait()
            began = self._clock.monotonic()
            if began - self._asked_at > WANTED_S:
                self._asked.clear()
                continue
            place.look()
            took = self._clock.monotonic() - began
            self._clock.wait(self._ended, max(EVERY_S - took, took))

    def _place_looked(self) -> None:
        with self._looked:
            self._looked.notify_all()

    def look(self) -> None:
        """Read everything that may have changed. Only for a poller that is never started, in one thread."""
        for place in self._places:
            place.look()


def _is_another(one: object, other: object) -> bool:
    return one is not other


def _with_unique_id(seen: Seen, times: Counter[str]) -> Seen:
    """Make the ids of two jobs with the same name different, by their storage."""
    wanted = job_id(seen.job.name, seen.job.storage.uri if times[seen.job.name] > 1 else "")
    if seen.job.id == wanted:
        return seen
    return replace(seen, job=replace(seen.job, id=wanted), view=msgspec.structs.replace(seen.view, id=wanted))


class _Place:
    """One storage. One thread reads it, others use the result."""

    def __init__(self, place: str, only: str | None, clock: Clock, looked: Callable[[], None]) -> None:
        self.sight = _Sight()
        self._place = place
        self._only = only
        self._clock = clock
        self._looked = looked
        self._watchers: dict[str, _Watched] = {}
        self._identity: _Identity = None
        """The identity of the folder with the jobs. If it changes or vanishes, the jobs are unavailable, not deleted."""
        self._revision = 0
        self._found_at = float("-inf")
        self._looking_since = float("inf")
        """When the read in progress began."""
        self._logged: set[tuple[str, str]] = set()
        """The jobs that could not be read, and why."""

    def takes_long(self, now: float) -> bool:
        """Whether the read in progress is so slow that requests do not wait for it."""
        return now - self._looking_since > STALE_S

    def problems(self, now: float) -> tuple[str, ...]:
        """The current problems of the storage."""
        if not self.takes_long(now):
            return self.sight.problems
        how_long = duration(round(now - self._looking_since))
        shown = (
            "its jobs are shown in their last known state"
            if self.sight.seen
            else "its jobs are not known yet"
        )
        return (*self.sight.problems, f"{self._place} has not answered for {how_long}; {shown}")

    def look(self) -> None:
        """Read everything that may have changed."""
        self._looking_since = self._clock.monotonic()
        before = {one.job.storage.uri: one for one in self.sight.seen}
        try:
            problems = self._find()
            seen = tuple(self._seen(*one, before.get(uri)) for uri, one in self._watchers.items())
        except _AwayError as error:  # its jobs keep their last known state
            problems, seen = (str(error),), self.sight.seen
            self._found_at = float("-inf")
        self.sight = _Sight(seen, problems, self._clock.monotonic())
        self._looking_since = float("inf")
        self._looked()

    def _find(self) -> tuple[str, ...]:
        if self._clock.monotonic() - self._found_at < FIND_EVERY_S:
            return self.sight.problems
        try:
            identity = _identity(self._place)
            jobs, linked = find_jobs([self._place]), linked_jobs([self._place])
        except (PenstockError, OSError) as error:
            raise _AwayError(str(error)) from error
        if self._watchers and not jobs and not linked and (identity is None or identity != self._identity):
            raise _AwayError(
                f"{self._place} is gone, or another folder is in its place: is it mounted? "
                f"The last known state of {counted(len(self._watchers), 'job')} is shown"
            )
        self._identity = identity
        self._found_at = self._clock.monotonic()
        self._watchers = {
            job.storage.uri: _known(self._watchers, job) or (job, JobWatcher(job))
            for job in jobs
            if self._only in (None, job.name)
        }
        return tuple(linked.values())

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
        except Exception as error:  # noqa: BLE001 - a damaged job must not hide the others
            self._log_once(job, error)
            return unreadable_view(job, now, f"{type(error).__name__}: {error}")

    def _log_once(self, job: FoundJob, error: Exception) -> None:
        """Log each error once: twice a second would fill the disk."""
        logged = (job.storage.uri, repr(error)[:_LONGEST_LOGGED])
        if logged not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(logged)
            _log.exception("job %s in %s cannot be read", job.name, job.storage.uri)


_Watched = tuple[FoundJob, JobWatcher]
_Identity = tuple[int, int] | None


class _AwayError(Exception):
    """A storage does not answer or is gone."""


def _identity(place: str) -> _Identity:
    """Device and inode of a folder; None if there is none, or the storage is not local."""
    opened = open_storage(place)
    if not isinstance(opened, LocalStorage):
        return None
    try:
        found = os.stat(opened.root)  # noqa: PTH116 - two numbers
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _known(kept: dict[str, _Watched], job: FoundJob) -> _Watched | None:
    """The existing watcher of a job, which caches what it has read."""
    watched = kept.get(job.storage.uri)
    if watched is None or (watched[0].id, watched[0].place) != (job.id, job.place):
        return None
    return watched


def _looks_the_same(one: JobView, other: JobView) -> bool:
    return msgspec.structs.replace(one, now=other.now) == other
