"""Whether a job is well, in one word and one sentence, and what wants somebody's eye. Pure.

This is what a person reads first. Every sentence has the values it speaks of. Where something is wrong, it says what follows or what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

import msgspec

from penstock.dashboard.pages.words import ago, capital, lasted, shortened
from penstock.status.health import needs_somebody
from penstock.status.live import LIVE_S
from penstock.status.view import CheckpointStatus, JobState, JobView
from penstock.wording import counted

SILENT_AFTER_S = 15 * LIVE_S
"""A running job writes every second what it does. Without a word for so long, its numbers are old."""
RECENT_S = 3600.0
"""So long a failure is worth a word, though the job has come back."""
_LONGEST_WHY = 300
"""Characters of an error in a sentence; the page of failures has all of it."""


class Tone(enum.StrEnum):
    """How something is to be taken. Pages show it as a colour and as a sign or word."""

    BAD = "bad"
    WARNING = "warning"
    BUSY = "busy"
    GOOD = "good"
    QUIET = "quiet"

    @property
    def rank(self) -> int:
        """The worst first."""
        return list(Tone).index(self)


class Verdict(msgspec.Struct, frozen=True):
    """The first line of a job."""

    tone: Tone
    headline: str
    detail: str


class Concern(msgspec.Struct, frozen=True):
    """Something that wants an eye. `page`: where there is more about it."""

    tone: Tone
    text: str
    page: str


def verdict(view: JobView) -> Verdict:
    """How the job is."""
    if view.is_unseen:
        return Verdict(Tone.BAD, "Not seen", _last_seen(view))
    if view.state is JobState.RUNNING:
        return _running(view)
    detail = _DETAILS[view.state](view)
    worst = [one.text for one in concerns(view) if one.tone is Tone.BAD][:1]
    return Verdict(_tone(view), _HEADLINES[view.state], " ".join([detail, *worst]))


def _last_seen(view: JobView) -> str:
    return (
        f"It was last seen {ago(view.looked_at, view.now)}, as {view.state}: its storage {view.place} does not answer since, or is gone. "
        "How the job is now is not known; all that is shown here is from then."
    )


def _tone(view: JobView) -> Tone:
    """Bad is what needs somebody, and nothing else: `penstock status` ends with its code for just that."""
    if needs_somebody(view):
        return Tone.BAD
    usual = _TONES[view.state]
    return Tone.WARNING if usual is Tone.BAD else usual


def by_need(views: Iterable[JobView]) -> list[JobView]:
    """Those that want somebody come first."""
    return sorted(views, key=lambda view: (verdict(view).tone.rank, view.name, view.place))


def concerns(view: JobView) -> tuple[Concern, ...]:
    """What wants an eye, the worst first."""
    return tuple(sorted(_concerns(view), key=lambda one: one.tone.rank))


def _concerns(view: JobView) -> Iterator[Concern]:
    yield from _late(view)
    yield from _failed_in_a_row(view)
    yield from _sinks_down(view)
    yield from _silent(view)
    yield from _failed_lately(view)
    for text in view.unreadable:
        yield Concern(Tone.WARNING, f"Not readable: {shortened(text, _LONGEST_WHY)}", "")


def _late(view: JobView) -> Iterator[Concern]:
    if view.is_stuck:
        yield Concern(
            Tone.BAD,
            f"It has been {view.state} for {lasted(view.not_up_s)}: its log says what it waits for.",
            "",
        )
    elif view.is_late and view.live is not None and view.plan is not None:
        since = max(view.live.checkpoint_at, view.live.started_at)
        rows = view.live.rows_since_checkpoint
        again = f" After a failure now, {counted(rows, 'row')} would be processed again." if rows else ""
        yield Concern(
            Tone.BAD,
            f"No checkpoint was completed for {lasted(view.now - since)}; the interval is "
            f"{lasted(view.plan.settings.interval_s)}.{again}",
            "checkpoints",
        )


def _failed_in_a_row(view: JobView) -> Iterator[Concern]:
    row = []
    for one in view.checkpoints:
        if one.status is CheckpointStatus.COMPLETED:
            break
        if one.status is CheckpointStatus.FAILED and one.run == view.run:
            row.append(one)
    if row and view.state.is_alive:
        allowed = view.plan.settings.tolerable_failures if view.plan else None
        counting = sum(one.counts for one in row)
        limit = f" {counting} of {allowed} tolerated failures in a row." if allowed is not None else ""
        which = "The last checkpoint" if len(row) == 1 else f"The last {len(row)} checkpoints"
        why = shortened(row[0].reason, _LONGEST_WHY)
        yield Concern(Tone.WARNING, f"{which} failed: {why}.{limit}", "checkpoints")


def _sinks_down(view: JobView) -> Iterator[Concern]:
    if view.live is None or not view.state.is_alive:
        return
    for uid, sink in view.live.sinks.items():
        if sink.down:
            waits = f"; the oldest for {lasted(view.now - sink.waiting_since)}" if sink.waiting_since else ""
            yield Concern(
                Tone.BAD,
                f"The sink {uid} does not take commits: {shortened(sink.down, _LONGEST_WHY)}. "
                f"{counted(sink.waiting, 'transaction')} ({counted(sink.waiting_rows, 'row')}) wait{waits}. They are tried again.",
                "",
            )


def _silent(view: JobView) -> Iterator[Concern]:
    if view.live is None or not view.state.is_alive:
        return
    gone_s = view.now - view.live.at
    if gone_s > SILENT_AFTER_S:
        yield Concern(
            Tone.WARNING,
            f"The job has not said for {lasted(gone_s)} what it does, so these numbers are old. Its machine is busy, or its storage slow.",
            "",
        )


def _failed_lately(view: JobView) -> Iterator[Concern]:
    recent = [one for one in view.failures if view.now - one.at < RECENT_S and one.back_at]
    if recent and view.state is JobState.RUNNING:
        last = recent[0]
        cost = (
            f"nothing was processed for {lasted(last.down_s)}"
            if last.down_s is not None
            else "it has come back"
        )
        again = f", {counted(last.rows_again, 'row')} were processed again" if last.rows_again else ""
        yield Concern(
            Tone.QUIET,
            f"It failed {ago(last.at, view.now)} and came back by itself: {cost}{again}.",
            "failures",
        )


def _running(view: JobView) -> Verdict:
    worst = concerns(view)
    if worst and worst[0].tone is not Tone.QUIET:
        return Verdict(
            worst[0].tone,
            "Running, but not well" if worst[0].tone is Tone.BAD else "Running, with a worry",
            worst[0].text,
        )
    return Verdict(Tone.GOOD, "Healthy", _safe_up_to(view))


def _safe_up_to(view: JobView) -> str:
    last, age_s = view.last_completed, view.checkpoint_age_s
    if last is None or age_s is None:
        return "It is processing. Its first checkpoint is not completed yet."
    rows = view.live.rows_since_checkpoint if view.live else 0
    if not rows:
        return f"Everything that was processed is safe in checkpoint {last.checkpoint}."
    return (
        f"Everything up to {ago(last.completed_at, view.now)} is safe in checkpoint {last.checkpoint}; "
        f"{counted(rows, 'row')} since then would be processed again after a failure."
    )


def _starting(view: JobView) -> str:
    doing = view.live.doing if view.live else ""
    return f"{capital(doing)}." if doing else f"Run {view.run} has claimed the job; no batch is done yet."


def _restarting(view: JobView) -> str:
    live = view.live
    if live is None:
        return "It has failed and goes back to its last checkpoint by itself."
    wait_s = live.next_try_at - view.now
    when = (
        f"It tries again in {lasted(wait_s)}." if wait_s > 0 else "It is going back to its last checkpoint."
    )
    return f"{shortened(live.failure, _LONGEST_WHY).rstrip('.') + '. ' if live.failure else ''}{when}"


def _goes_on(view: JobView) -> str:
    last = view.last_completed
    return (
        f"goes on from checkpoint {last.checkpoint}"
        if last
        else "begins from nothing: no checkpoint was completed"
    )


def _died(view: JobView) -> str:
    gone = f"Its process (pid {view.pid} on {view.host}) is gone and has not said why"
    if view.supervised:
        return f"{gone}. Its supervisor starts it again; it {_goes_on(view)}."
    return f"{gone}: it was killed, or its machine is gone. Start the program again; it {_goes_on(view)}."


def _failed(view: JobView) -> str:
    why = view.failures[0] if view.failures else None
    said = shortened(why.root or why.why, _LONGEST_WHY).rstrip(".") + ". " if why else ""
    if view.supervised:
        return f"{said}Its supervisor starts it again, unless another attempt would only meet the same; it {_goes_on(view)}."
    return f"{said}Mend the cause and start the program again; it {_goes_on(view)}."


def _ended(view: JobView) -> str:
    return f"Nothing is wrong. Started again, it {_goes_on(view)}."


def _unreadable(view: JobView) -> str:
    return view.unreadable[0] if view.unreadable else "Its files cannot be read."


_DETAILS: dict[JobState, Callable[[JobView], str]] = {
    JobState.STARTING: _starting,
    JobState.STOPPING: lambda _: (
        "The batch that runs ends, and everything processed is completed and committed. Then the job ends."
    ),
    JobState.RESTARTING: _restarting,
    JobState.FINISHED: _ended,
    JobState.STOPPED: _ended,
    JobState.CANCELLED: _ended,
    JobState.FAILED: _failed,
    JobState.DIED: _died,
    JobState.NEW: lambda _: "It has never run. Start its program.",
    JobState.UNREADABLE: _unreadable,
}
_HEADLINES = {
    JobState.STARTING: "Starting",
    JobState.STOPPING: "Stopping",
    JobState.RESTARTING: "Coming back",
    JobState.FINISHED: "Finished",
    JobState.STOPPED: "Stopped",
    JobState.CANCELLED: "Cancelled",
    JobState.FAILED: "Failed",
    JobState.DIED: "Dead",
    JobState.NEW: "Never run",
    JobState.UNREADABLE: "Not readable",
}
_TONES = {
    JobState.STARTING: Tone.BUSY,
    JobState.STOPPING: Tone.BUSY,
    JobState.RESTARTING: Tone.WARNING,
    JobState.FINISHED: Tone.QUIET,
    JobState.STOPPED: Tone.QUIET,
    JobState.CANCELLED: Tone.QUIET,
    JobState.FAILED: Tone.BAD,
    JobState.DIED: Tone.BAD,
    JobState.NEW: Tone.QUIET,
    JobState.UNREADABLE: Tone.BAD,
}
