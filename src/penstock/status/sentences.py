"""The one set of sentences for events and for the log. Pages, `penstock watch` and terminals only style them. Pure."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

import msgspec

from penstock.guarantee import Guarantee
from penstock.recovery.restore_plan import RestorePlan
from penstock.requests.request_files import PROGRAM
from penstock.savepoint.manifest import Manifest
from penstock.status.events import (
    Answered,
    Asked,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FirstBatch,
    JobEnded,
    Lost,
    ProcessDied,
    ProcessStarted,
    RunFailed,
    RunStarted,
    SavepointDeleted,
    SavepointMade,
    SinkDown,
    SinkUp,
    TasksRepeated,
)
from penstock.status.health import Tone
from penstock.status.job_history import untold_deaths, without_numbers
from penstock.status.live import Progress
from penstock.status.view import FailureView, RequestView
from penstock.wording import (
    capital,
    counted,
    duration,
    event_moment,
    lasted,
    milliseconds,
    shortened,
    size,
    start_option,
)

MOST_NAMED = 5
"""Subtasks in a sentence."""
LONGEST_WHY = 500
"""Characters of an error in a sentence; the page of failures has all of it."""


class Sentence(msgspec.Struct, frozen=True):
    """One event in words. `detail` is for those who want to know more."""

    at: float
    run: int
    tone: Tone
    text: str
    detail: str = ""
    routine: bool = False
    """Whether it happens all the time in a healthy job."""
    times: int = 1
    """The number of events that it stands for."""
    first_at: float = 0.0
    """When the first of them happened; 0: there is only one."""

    @property
    def line(self) -> str:
        """Text and detail as one line."""
        return f"{self.text.removesuffix('.')}: {self.detail}" if self.detail else self.text

    @property
    def is_bad(self) -> bool:
        """Whether it reports a problem."""
        return self.tone in (Tone.BAD, Tone.WARNING)


def sentence(event: Event) -> Sentence:  # noqa: C901, PLR0911, PLR0912 - one case for each event
    """The sentence for an event."""
    match event:
        case RunStarted():
            return _said(event, Tone.BUSY, _started(event))
        case FirstBatch():
            text = f"The first batch of run {event.run}, batch {event.batch}, finished after {lasted(event.took_s)}."
            return _said(event, Tone.GOOD, text)
        case CheckpointCompleted():
            return _said(event, Tone.GOOD, _completed(event), routine=True)
        case CheckpointCommitted():
            text = f"The output of checkpoint {event.checkpoint} is visible, {milliseconds(event.commit_ms)} later."
            return _said(event, Tone.GOOD, text, routine=True)
        case CheckpointFailed():
            counts = f"It {'counts' if event.counts else 'does not count'} against tolerable_failures."
            text = f"Checkpoint {event.checkpoint} failed: {event.text}. {counts}"
            return _said(event, Tone.WARNING, text, event.detail)
        case RunFailed():
            return _said(event, Tone.BAD, _failed(event), event.decision)
        case JobEnded():
            return _ended(event)
        case TasksRepeated():
            return _said(event, Tone.WARNING, _repeated(event), event.why)
        case SavepointMade():
            text = f"A savepoint of checkpoint {event.checkpoint} was made in {lasted(event.took_s)}."
            return _said(event, Tone.GOOD, text, event.folder)
        case SavepointDeleted():
            text = f"{_who(event.by)} deleted a savepoint with {counted(event.files, 'file')}."
            return _said(event, Tone.WARNING, text, event.folder)
        case Asked():
            return _said(event, Tone.BUSY, f"{_who(event.by)} requested: {event.what}.")
        case Answered():
            text = f"The {event.what} requested by {event.by or 'an unknown client'} {'is done' if event.ok else 'failed'}."
            tone = Tone.GOOD if event.ok else Tone.BAD
            return _said(event, tone, text, event.error)
        case SinkDown():
            waiting = counted(event.waiting, "transaction waits", "transactions wait")
            text = f"The sink {event.sink} does not take commits; {waiting}."
            return _said(event, Tone.BAD, text, event.why)
        case SinkUp():
            text = f"The sink {event.sink} takes commits again, after {lasted(event.down_s)}."
            return _said(event, Tone.GOOD, text)
        case ProcessDied():
            again = f"started again in {lasted(event.delay_s)}" if event.restarts else "not started again"
            text = f"The driver (pid {event.pid}) ended: {event.how}. It is {again}."
            return _said(event, Tone.BAD, text, event.decision)
        case ProcessStarted():
            text = f"The supervisor started the program (pid {event.pid}), attempt {event.attempt}."
            return _said(event, Tone.BUSY, text)
        case Lost():
            lost = counted(event.events, "event")
            text = f"{lost} could not be written: storage did not accept them in time."
            return _said(event, Tone.WARNING, text)


def sentences(events: Sequence[Event], failures: Sequence[FailureView]) -> list[Sentence]:
    """The sentences for all events, newest first as they are given, and for deaths of drivers that no event reports."""
    said = [sentence(event) for event in events]
    untold = [(_place(events, one), one) for one in untold_deaths(events, failures)]
    # The oldest first, so that no place moves.
    for place, death in sorted(untold, key=lambda one: (-one[0], one[1].run)):
        said.insert(place, Sentence(death.at, death.run, Tone.BAD, f"{capital(death.why)}."))
    return said


def _place(events: Sequence[Event], death: FailureView) -> int:
    """The position of a death: before the starts of later runs and after the events of its own run, whatever their clocks say."""
    starts = (at for at in range(len(events) - 1, -1, -1) if isinstance(events[at], RunStarted))
    place = next((at + 1 for at in starts if events[at].run > death.run), 0)
    while place < len(events) and events[place].at > death.at and events[place].run != death.run:
        place += 1
    return place


def outcome_sentence(asked: RequestView) -> Sentence:
    """A request and its result."""
    later = f"{lasted(asked.answered_at - asked.asked_at)} later"
    made = f", with checkpoint {asked.checkpoint}" if asked.checkpoint >= 0 else ""
    tone, came_of_it = {
        "under way": (Tone.BUSY, "The job is working on it."),
        "done": (Tone.GOOD, f"Done {later}{made}."),
        "failed": (Tone.BAD, f"It failed {later}."),
    }.get(asked.state, (Tone.QUIET, "Its result is unknown: the process ended before it answered."))
    text = f"{_who(asked.by)} requested: {asked.what}. {came_of_it}"
    return Sentence(asked.asked_at, 0, tone, text, asked.error or asked.folder)


LONGEST_CYCLE = 4
"""Events in a cycle: the process dies, is started again, its run starts, its first batch is done."""


def collapsed(story: Sequence[Sentence]) -> list[Sentence]:
    """Reports repeated events once, with their number: the same event, or the same few events in turn.

    Two events are equal when they differ in numbers only, as batches, runs and processes do.
    """
    marks = [(one.tone, without_numbers(one.text), without_numbers(one.detail)) for one in story]
    found: list[Sentence] = []
    at = 0
    while at < len(story):
        length, times = _cycle(marks, at)
        if times == 1 or story[at].routine:
            found.append(story[at])
            at += 1
            continue
        for newest in range(at, at + length):
            first_at = story[newest + (times - 1) * length].at
            found.append(msgspec.structs.replace(story[newest], times=times, first_at=first_at))
        at += length * times
    return found


def _cycle(marks: Sequence[object], at: int) -> tuple[int, int]:
    """The shortest cycle that begins here, and how often it comes. One of several events must come three times."""
    for length in range(1, LONGEST_CYCLE + 1):
        cycle = marks[at : at + length]
        starts = range(at, len(marks) - length + 1, length)
        times = sum(1 for _ in takewhile(lambda start: marks[start : start + length] == cycle, starts))  # noqa: B023 - used at once
        if times > (1 if length == 1 else 2):
            return length, times
    return 1, 1


def _who(by: str) -> str:
    return capital(by) if by == PROGRAM else by or "An unknown client"


def _said(event: Event, tone: Tone, text: str, detail: str = "", *, routine: bool = False) -> Sentence:
    return Sentence(event.at, event.run, tone, text, detail, routine)


def _started(event: RunStarted) -> str:
    where = f"on {event.host} (pid {event.pid})"
    origin = f"checkpoint {event.restored_from}" if event.restored_from >= 0 else "nothing"
    if event.savepoint:
        origin = f"the savepoint {event.savepoint}"
    took = f" in {lasted(event.restore_s)}" if event.restore_s else ""
    rescaled = (
        f" Parallelism {event.rescaled_from} became {event.parallelism}." if event.rescaled_from else ""
    )
    return f"Run {event.run} started {where} from {origin}{took}.{rescaled}"


def _completed(event: CheckpointCompleted) -> str:
    wanted = ", as requested," if event.wanted else ""
    return (
        f"Checkpoint {event.checkpoint} was completed{wanted} in {milliseconds(event.duration_ms)}: "
        f"{size(event.state_bytes)} of state, {size(event.new_bytes)} of it new."
    )


def _failed(event: RunFailed) -> str:
    then = (
        f"It restarts from its last checkpoint in {lasted(event.delay_s)}."
        if event.restarts
        else "It is not restarted."
    )
    return (
        f"Run {event.run} failed: {shortened(event.root or event.why, LONGEST_WHY)} ({event.error}). {then}"
    )


def _repeated(event: TasksRepeated) -> str:
    which = ", ".join(f"{event.operator}-{index}" for index in event.subtasks[:MOST_NAMED]) or event.operator
    more = len(event.subtasks) - MOST_NAMED
    others = f" and {counted(more, 'other')}" if more > 0 else ""
    before = (
        f" The same happened in {counted(event.batches_before, 'batch', 'batches')} since the last report."
        if event.batches_before
        else ""
    )
    silent = "" if event.why else " The first attempt ended without an error message."
    return f"Spark needed {counted(event.attempts, 'attempt')} for {which}{others} in batch {event.batch}, which succeeded.{silent}{before}"


def _ended(event: JobEnded) -> Sentence:
    why = f": {event.why}" if event.why else ""
    amount = f" after {counted(event.batches, 'batch', 'batches')} and {counted(event.rows_in, 'row')}"
    tone = Tone.BAD if event.how == "failed" else Tone.QUIET
    return _said(event, tone, f"The job ended ({event.how}){amount}{why}.")


LIFE = logging.getLogger("penstock.job")
"""Tells when a run begins and from where, and how the job ends."""
RATE_OVER_S = 10.0
"""Rows a second are those of so long: much shorter and the number jumps from batch to batch."""
MORE = "..."


def started(job: str, parallelism: int, guarantee: Guarantee, point: RestorePlan, now: float) -> str:
    """Which run begins, from where, and with which guarantee."""
    parts = [_origin(point, now)]
    checkpoint = point.checkpoint
    if checkpoint is not None and checkpoint.operators and checkpoint.parallelism != parallelism:
        parts.append(f"rescaled from {checkpoint.parallelism} to {counted(parallelism, 'subtask')}")
    if point.last_read > point.id:
        parts.append(f"batches up to {point.last_read} are not read again")
    return f"job {job}, run {point.run}, {'; '.join(parts)}; {guarantee}"


def given(job: str, folder: str, manifest: Manifest) -> str:
    """What a start was given to begin with."""
    of = manifest.origin.job
    made_of = f" of job {of}, checkpoint {manifest.checkpoint}" if of else ""
    return f"job {job} was given the savepoint {folder}{made_of}, {size(manifest.size)}"


def adopted(job: str, *, now: bool) -> str:
    """Whether it begins with it, or goes on."""
    if now:
        return f"job {job} begins with this savepoint: its state is loaded"
    return f"job {job} has begun with this savepoint before: it goes on from its newest checkpoint"


def _origin(point: RestorePlan, now: float) -> str:
    checkpoint = point.checkpoint
    if checkpoint is None:
        return "begins from nothing: there is no checkpoint"
    when = _ago(now - checkpoint.completed_at)
    return f"goes on from checkpoint {checkpoint.checkpoint} of run {checkpoint.run}, completed {when}"


def _ago(seconds: float) -> str:
    """Whole seconds, because the line is redrawn all the time. Never negative, although the clocks of two machines may differ."""
    whole = round(seconds)
    return f"{duration(whole)} ago" if whole >= 1 else "just now"


def ended(job: str, how: str, progress: Progress) -> str:
    """How the job ended, and how far it came."""
    run = f"run {progress.run}, " if progress.run else ""
    parts = (*_counts(progress), *_left_out(progress), _last_checkpoint(progress))
    return f"job {job} {how}: {run}{', '.join(parts)}{_restarts(progress)}"


def _counts(progress: Progress) -> Iterator[str]:
    yield counted(progress.batches, "batch", "batches")
    counts_are_out = progress.batches and not progress.rows_in and not _are_counted(progress)
    yield "its rows are not counted yet" if counts_are_out else f"{counted(progress.rows_in, 'row')} in"


def _are_counted(progress: Progress) -> bool:
    return any(source.looked_at for source in progress.sources.values())


def _left_out(progress: Progress) -> Iterator[str]:
    """From the job's first batch on."""
    for kind, found in (("bad row", progress.bad_records), ("late row", progress.late_rows)):
        rows = {uid: number for uid, number in sorted(found.items()) if number}
        if len(rows) == 1:
            yield counted(sum(rows.values()), kind)
        elif rows:  # no sum: one row may be among those of several
            yield f"{kind}s ({'; '.join(f'{uid} {number:,}' for uid, number in rows.items())})"


def event_time_left(job: str, progress: Progress, *, drainable: bool) -> str:
    """How far event time came, and what is still open; '' where nothing goes by it. `drainable`: whether a drain would have closed that."""
    if not progress.watermarks:
        return ""
    still_open = [f"{uid} (next at {_utc(at)})" for uid, at in sorted(progress.due_next.items())]
    what = f"still open: {', '.join(still_open)}" if still_open else "nothing is open"
    advice = f"; the next run goes on with it, {start_option(drain=True)} closes it" if drainable else ""
    return f"job {job}: {_reached(progress.watermarks)}, {what}{advice if still_open else ''}"


def _reached(watermarks: Mapping[str, datetime | None]) -> str:
    shown = {uid: "none yet" if at is None else _utc(at) for uid, at in sorted(watermarks.items())}
    if len(set(shown.values())) == 1:
        return f"watermark {next(iter(shown.values()))}"
    return f"watermarks ({'; '.join(f'{uid} {at}' for uid, at in shown.items())})"


def _utc(at: datetime) -> str:
    return f"{event_moment(at)} UTC"


def _last_checkpoint(progress: Progress) -> str:
    return f"last checkpoint {progress.checkpoint}" if progress.checkpoint >= 0 else "no checkpoint"


def _restarts(progress: Progress) -> str:
    """Since the first start of the job, as `status` and the pages count them."""
    return f", {counted(progress.restarts_total, 'restart')}" if progress.restarts_total else ""


class Rate:
    """Rows a second over the last while, from what is read off a counter now and then."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._seen: deque[tuple[float, int]] = deque()

    def rows_per_s(self, rows: int, at: float) -> float:
        """`rows` is the count at the time `at` (s)."""
        self._seen.append((at, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= at - self._over_s:  # noqa: PLR2004 - one is as old as that, the others younger
            self._seen.popleft()
        since, before = self._seen[0]
        return (rows - before) / (at - since) if at > since else 0.0


def live_line(progress: Progress, doing: str, rows_per_s: float, now: float, columns: int) -> str:
    """What the job does now, in one line of at most `columns` characters."""
    parts = [
        f"{doing}, run {progress.run}" if progress.run else doing,
        *_counts(progress),
        f"{rows_per_s:,.0f} rows/s",
        _last_checkpoint(progress) + _age(progress, now),
    ]
    line = ", ".join(parts) + _restarts(progress)
    return line if len(line) <= columns else line[: max(0, columns - len(MORE))] + MORE[: max(0, columns)]


def _age(progress: Progress, now: float) -> str:
    if progress.checkpoint < 0 or not progress.checkpoint_at:
        return ""
    return f", {_ago(now - progress.checkpoint_at)}"
