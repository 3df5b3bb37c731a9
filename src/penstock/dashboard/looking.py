"""Looking at all jobs of some storages, for many who ask: what was seen is kept, and looked at anew in threads. The dashboard's process.

Each storage has a thread, so that one that does not answer holds up no other. While somebody asks, it looks every half second, and never
for more than half of the time, however slow storage is. When nobody asks any more, it stands still. Whoever comes then waits for one look.

What was not looked at for a while is shown as it was last seen, and says so: `JobView.looked_at` stays, and `now` goes on. That is so of a
storage that does not answer, and of one that is gone.
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

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.status.job_watcher import JobWatcher
from penstock.status.jobs import FoundJob, find_jobs, job_id, job_of, linked_jobs
from penstock.status.view import JobState, JobView
from penstock.storage import LocalStorage, open_storage
from penstock.wording import counted, duration

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
"""What was seen so long ago is not shown as if it were so now: somebody who asks waits for a new look, or is told the age."""
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
    of: tuple[object, ...] = ()
    """Of all storages together: what was seen in each of them."""


class StorageLooker:
    """A `Looker` over some storages; `start` it before it is asked, `close` it at the end.

    What always holds: a method that is not `wait` returns at once; nothing that lies in a storage makes one raise.
    """

    def __init__(
        self, places: Sequence[str], *, only: str | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`only`: the name of the one job that is shown, whatever else lies there."""
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
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Look no more. A storage that does not answer is not waited for."""
        self._ended.set()
        self._asked.set()
        until = self._clock.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - self._clock.monotonic()))

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

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with a storage as a whole, for people."""
        return self._now().problems

    def is_fresh(self) -> bool:
        """Whether what is kept can be shown; if not, `wait` in a thread before. A look that takes long is not waited for a second time."""
        now = self._clock.monotonic()
        return all(now - place.sight.at < STALE_S or place.takes_long(now) for place in self._places)

    def wait(self) -> None:
        """Wait until what is kept can be shown, or patience ends. Never in the thread of an event loop."""
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
        """All storages, each as it was last seen."""
        by_uri = {one.job.storage.uri: one for sight in sights for one in sight.seen}
        times = Counter(one.job.name for one in by_uri.values())
        seen = [self._aged(_told_apart(one, times), now) for one in by_uri.values()]
        problems = [text for place in self._places for text in place.problems(now)]
        in_order = sorted(seen, key=lambda one: (one.job.name, one.job.place))
        return _Sight(tuple(in_order), tuple(problems), now, sights)

    def _aged(self, seen: Seen, now: float) -> Seen:
        """What was not looked at for a while looks different every few seconds: it gets older."""
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
        """Look at everything that may have changed. By one thread, of a looker that is never started."""
        for place in self._places:
            place.look()


def _is_another(one: object, other: object) -> bool:
    return one is not other


def _told_apart(seen: Seen, times: Counter[str]) -> Seen:
    """The ids of two jobs of one name are made of their places, too."""
    wanted = job_id(seen.job.name, seen.job.storage.uri if times[seen.job.name] > 1 else "")
    if seen.job.id == wanted:
        return seen
    return replace(seen, job=replace(seen.job, id=wanted), view=msgspec.structs.replace(seen.view, id=wanted))


class _Place:
    """One storage. It is looked at by one thread, and what was seen is read by others."""

    def __init__(self, place: str, only: str | None, clock: Clock, looked: Callable[[], None]) -> None:
        self.sight = _Sight()
        self._place = place
        self._only = only
        self._clock = clock
        self._looked = looked
        self._watchers: dict[str, _Watched] = {}
        self._identity: _Identity = None
        """Of the folder in which jobs were found: where another one, or none, is in its place, they are not deleted but away."""
        self._revision = 0
        self._found_at = float("-inf")
        self._looking_since = float("inf")
        """When the look began that is under way."""
        self._told: set[tuple[str, str]] = set()
        """Jobs that could not be looked at, and why."""

    def takes_long(self, now: float) -> bool:
        """Whether a look that is under way has taken so long that nobody waits for it."""
        return now - self._looking_since > STALE_S

    def problems(self, now: float) -> tuple[str, ...]:
        """What is wrong with the storage by now."""
        if not self.takes_long(now):
            return self.sight.problems
        how_long = duration(round(now - self._looking_since))
        shown = (
            "what is shown of its jobs was last seen before that"
            if self.sight.seen
            else "no job of it was seen yet"
        )
        return (*self.sight.problems, f"{self._place} has not answered for {how_long}; {shown}")

    def look(self) -> None:
        """Look at everything that may have changed."""
        self._looking_since = self._clock.monotonic()
        before = {one.job.storage.uri: one for one in self.sight.seen}
        try:
            problems = self._find()
            seen = tuple(self._seen(*one, before.get(uri)) for uri, one in self._watchers.items())
        except _AwayError as error:  # its jobs are shown as they were last seen
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
                f"{counted(len(self._watchers), 'job')} of it can be seen no more"
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


_Watched = tuple[FoundJob, JobWatcher]
_Identity = tuple[int, int] | None


class _AwayError(Exception):
    """A storage does not answer, or is gone."""


def _identity(place: str) -> _Identity:
    """Of a folder; None where there is none, or the storage has no such thing."""
    opened = open_storage(place)
    if not isinstance(opened, LocalStorage):
        return None
    try:
        found = os.stat(opened.root)  # noqa: PTH116 - two numbers
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _known(kept: dict[str, _Watched], job: FoundJob) -> _Watched | None:
    """Who watches it already: what was read once is not read again. Storages are not compared: each look opens its own."""
    watched = kept.get(job.storage.uri)
    if watched is None or (watched[0].id, watched[0].place) != (job.id, job.place):
        return None
    return watched


def _looks_the_same(one: JobView, other: JobView) -> bool:
    return msgspec.structs.replace(one, now=other.now) == other
