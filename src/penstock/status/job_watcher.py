"""Reads a job's storage into a `JobView`, again and again. What no longer changes is read once. Changes nothing.

No file is read whole that is larger than any file Penstock writes: a storage may hold hostile files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from typing_extensions import override

from penstock.checkpoint.metadata import CheckpointName, read_metadata
from penstock.checkpoint.model import Completed
from penstock.config import Mode
from penstock.errors import CorruptStateError, IncompatibleStateError, PenstockError
from penstock.ids import CheckpointId, RunId
from penstock.ownership.claim import is_gone, pid_space
from penstock.ownership.heartbeat import Pulse
from penstock.ownership.runs import ListedRun, list_runs
from penstock.status.events import (
    Answered,
    Asked,
    Event,
    ProcessDied,
    ProcessStarted,
    SavepointDeleted,
    SavepointMade,
)
from penstock.status.job_history import Name, failures, history, summary, with_promised
from penstock.status.jobs import FoundJob
from penstock.status.journal import JournalReader, read_live, read_plan
from penstock.status.live import Progress
from penstock.status.plan import Plan
from penstock.status.view import JobState, JobView, RequestView, RunView
from penstock.storage import Storage
from penstock.storage.forwarding import ForwardingStorage
from penstock.wording import size


def asked_for(events: Iterable[Event], runs: Sequence[RunView], present: int) -> tuple[RequestView, ...]:
    """The requests to the job, newest first. `events`: oldest first. `present`: the run that is alive; 0: none is.

    A later run of the same process continues with the requests that an earlier one accepted. A dead process answers nothing: if the request
    is still in storage, the next process accepts it and writes another event.
    """
    found: dict[str, RequestView] = {}
    processes = {run.run: (run.host, run.pid) for run in runs}
    here = processes.get(present)
    for number, event in enumerate(events):
        match event:
            case Asked():
                name = event.request or f"without an id, {number}"
                goes_on = bool(event.request) and here is not None and processes.get(event.run) == here
                known: dict[str, object] = {"state": "under way" if goes_on else "unknown"}
            case Answered():
                name = event.request
                known = {"state": "done" if event.ok else "failed", "answered_at": event.at}
            case _:
                continue
        before = found.pop(name, None)
        known["asked_at"] = before.asked_at if before else event.at
        found[name] = msgspec.convert(msgspec.structs.asdict(event) | known, RequestView)
    return tuple(sorted(found.values(), key=lambda one: one.asked_at, reverse=True))


LARGEST_METADATA_BYTES = 128 * 1024 * 1024
"""The largest files that are read whole are metadata of checkpoints, with a few megabytes at most."""


class BoundedReading(ForwardingStorage):
    """The same storage, but `get` refuses files that are too large to be Penstock's."""

    @override
    def get(self, name: str) -> bytes:
        found = self.size(name) or 0
        if found > LARGEST_METADATA_BYTES:
            raise CorruptStateError(
                f"{name} has {size(found)}: Penstock writes no such large file here; it was not read",
                file=name,
            )
        return super().get(name)


_FOLDER = re.compile(r"chk-(\d{1,18})-r(\d{1,18})")
_BY_HOW = {
    "finished": JobState.FINISHED,
    "stopped": JobState.STOPPED,
    "cancelled": JobState.CANCELLED,
    "failed": JobState.FAILED,
    "fenced": JobState.DIED,
}
_BY_STATUS = {
    "running": JobState.RUNNING,
    "restarting": JobState.RESTARTING,
    "stopping": JobState.STOPPING,
    "starting": JobState.STARTING,
    **dict.fromkeys(("finished", "stopped", "cancelled", "failed"), JobState.STOPPING),
}


def unreadable_view(job: FoundJob, now: float, why: str) -> JobView:
    """The view of a job of which nothing can be read."""
    return JobView(
        id=job.id,
        name=job.name,
        storage=job.storage.uri,
        place=job.place,
        state=JobState.UNREADABLE,
        now=now,
        unreadable=(why,),
    )


class JobWatcher:
    """Watches one job. `look` may be called as often as needed, by one thread at a time."""

    def __init__(self, job: FoundJob) -> None:
        self._job = job
        self._journal = JournalReader(job.storage)
        self._metadata: dict[Name, Completed | str] = {}
        """What could be read, or why not. A metadata is never changed."""
        self._plans: dict[int, Plan] = {}
        self._pulse = Pulse()
        self._last_lives: dict[int, Progress] = {}

    def look(self, now: float) -> JobView:
        """The view of the job now. Files that cannot be read are listed in `unreadable`, and do no further harm."""
        try:
            return self._look(now)
        except PenstockError as error:
            return unreadable_view(self._job, now, str(error))

    def _look(self, now: float) -> JobView:
        storage = self._job.storage
        listed = list_runs(storage, now, self._pulse)
        newest = listed[-1] if listed else None
        run = newest.run if newest else 0
        read = self._journal.read()
        live = _live(storage, listed)
        stored = self._stored()
        wrong = [text for one in listed for text in one.unreadable]
        wrong += [one for one in self._metadata.values() if isinstance(one, str) and one]
        if read.unreadable:
            wrong.append(
                f"{read.unreadable} lines of the journal could not be read: damaged, or of a newer version"
            )
        state, since = _state(listed, live)
        supervised = _is_supervised(read.events, state, now)
        pending = live.pending if live is not None and state.is_alive else ()
        known = history(read.events, stored, self._committed(storage, stored), pending, run)
        if live is not None and not state.is_alive:
            live = with_promised(live, read.events, stored, known)
        runs = tuple(_run_view(one) for one in reversed(listed))
        plan = self._plan(run)
        counted = live or self._live_before(run)
        reads_again = plan is None or plan.settings.mode != Mode.AT_MOST_ONCE.value
        return JobView(
            id=self._job.id,
            name=self._job.name,
            storage=storage.uri,
            place=self._job.place,
            state=state,
            now=now,
            since=since,
            run=run,
            host=newest.record.host if newest and newest.record else "",
            pid=newest.record.pid if newest and newest.record else 0,
            supervised=supervised,
            supervisor_gone=not supervised and state.is_alive and _had_a_supervisor_here(newest),
            plan=plan,
            live=live,
            checkpoints=known,
            summary=summary(known, read.events),
            failures=failures(read.events, runs, self._lives(runs, live), reads_again=reads_again),
            restarts_counted=counted.restarts_total if counted else 0,
            rows_again_counted=counted.rows_again_total if counted else 0,
            runs=runs,
            events=read.events[::-1],
            asked=asked_for(read.events, runs, run if state.is_alive else 0),
            savepoints=_savepoints(read.events),
            unreadable=tuple(wrong),
        )

    def _stored(self) -> dict[Name, Completed]:
        names = [
            (int(match[1]), int(match[2]))
            for match in map(_FOLDER.fullmatch, self._job.storage.folders())
            if match
        ]
        self._metadata = {name: self._metadata.get(name) or self._read(name) for name in names}
        return {name: one for name, one in self._metadata.items() if isinstance(one, Completed)}

    def _read(self, name: Name) -> Completed | str:
        storage, checkpoint = self._job.storage, CheckpointName(CheckpointId(name[0]), RunId(name[1]))
        try:
            if (found := storage.size(checkpoint.metadata) or 0) > LARGEST_METADATA_BYTES:
                return f"{checkpoint.metadata} has {size(found)}: no checkpoint of ours says so much"
            return read_metadata(storage, checkpoint)
        except FileNotFoundError:
            return ""  # it is not complete, or is being forgotten: looked at again the next time
        except (CorruptStateError, IncompatibleStateError) as error:
            return str(error)

    def _committed(self, storage: Storage, stored: dict[Name, Completed]) -> list[Name]:
        return [
            name
            for name in stored
            if storage.size(CheckpointName(CheckpointId(name[0]), RunId(name[1])).committed) is not None
        ]

    def _plan(self, run: int) -> Plan | None:
        """The plan of the newest run that has written one: a run that has just claimed the job has not."""
        for one in range(run, max(0, run - _RUNS_BACK), -1):
            plan = self._plans.get(one) or read_plan(self._job.storage, one)
            if plan is not None:
                self._plans = {one: plan}
                return plan
        return None

    def _live_before(self, run: int) -> Progress | None:
        """The last progress of the newest run before this one."""
        earlier = (read_live(self._job.storage, one) for one in range(run - 1, max(0, run - _RUNS_BACK), -1))
        return next(filter(None, earlier), None)

    def _lives(self, runs: tuple[RunView, ...], live: Progress | None) -> dict[int, Progress]:
        """The last progress of dead runs, which does not change any more."""
        for run in runs[1:]:
            if run.how == "did not say" and run.run not in self._last_lives:
                found = read_live(self._job.storage, run.run)
                if found is not None:
                    self._last_lives[run.run] = found
        return {**self._last_lives, **({live.run: live} if live is not None else {})}


_RUNS_BACK = 20


def look_at(job: FoundJob, now: float) -> JobView:
    """Read the view of a job once."""
    return JobWatcher(job).look(now)


def _state(listed: list[ListedRun], live: Progress | None) -> tuple[JobState, float]:
    if not listed:
        return JobState.NEW, 0.0
    newest = listed[-1]
    started_at = newest.record.started_at if newest.record else 0.0
    if newest.alive:
        if live is None:
            return JobState.STARTING, started_at
        if live.run != newest.run:
            return JobState.RESTARTING, started_at
        return _BY_STATUS.get(live.status, JobState.RUNNING), started_at
    last = _last_with_an_end(listed)
    if last.end is None or last.end.how == "restarted":
        return JobState.DIED, last.heartbeat.at if last.heartbeat else started_at
    return _BY_HOW.get(last.end.how, JobState.DIED), last.end.at


def _live(storage: Storage, listed: list[ListedRun]) -> Progress | None:
    """The progress of the newest run; if it has just followed a run of the same start and has none yet, that of its predecessor."""
    for one in reversed(listed[-2:]):
        of_the_same = one.record and listed[-1].record and one.record.claimant == listed[-1].record.claimant
        found = read_live(storage, one.run) if of_the_same or one is listed[-1] else None
        if found is not None:
            return found
    return None


def _last_with_an_end(listed: list[ListedRun]) -> ListedRun:
    """The newest run that shows how the job ended. A run that only deleted files after a cancel does not."""
    newest = listed[-1]
    forgot = newest.end is None and newest.heartbeat is not None and newest.heartbeat.ended
    return listed[-2] if forgot and len(listed) > 1 else newest


def _run_view(run: ListedRun) -> RunView:
    return RunView(
        run=run.run,
        how=run.how,
        started_at=run.record.started_at if run.record else 0.0,
        ended_at=run.end.at if run.end else (run.heartbeat.at if run.heartbeat and not run.alive else 0.0),
        host=run.record.host if run.record else "",
        pid=run.record.pid if run.record else 0,
        restored_from=run.descent.restored_from if run.descent else -1,
        newest_checkpoint=run.newest_checkpoint,
        error=run.end.error if run.end else "",
        why=run.end.why if run.end else "",
    )


def _is_supervised(events: tuple[Event, ...], state: JobState, now: float) -> bool:
    """Whether a living supervisor restarts the job when its process dies."""
    said = [event for event in events if isinstance(event, ProcessDied | ProcessStarted)]
    started = next((event for event in reversed(said) if isinstance(event, ProcessStarted)), None)
    if started is None or (isinstance(said[-1], ProcessDied) and not said[-1].restarts):
        return False
    if started.pid_space and started.pid_space == pid_space() and started.supervisor:
        return not is_gone(started.supervisor, started.supervisor_started)
    return state.is_alive or now - said[-1].at < COMING_UP_S


def _had_a_supervisor_here(run: ListedRun | None) -> bool:
    record = run.record if run is not None else None
    return record is not None and bool(record.supervisor) and record.pid_space == pid_space() != ""


COMING_UP_S = 600.0
"""How long a program may take to claim the job. Whether a supervisor on another machine is alive cannot be seen from here."""


def _savepoints(events: Iterable[Event]) -> tuple[str, ...]:
    """The folders of savepoints that were made and not deleted since, newest first."""
    there: dict[str, None] = {}
    for event in events:
        if isinstance(event, SavepointMade | SavepointDeleted):
            there.pop(event.folder, None)
        if isinstance(event, SavepointMade):
            there[event.folder] = None
    return tuple(reversed(there))
