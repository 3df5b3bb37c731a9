"""The one judgement of a job's health: what is wrong, what follows, what to do, and a verdict in one line.

Pages, `penstock status`, its exit code and the alerts of `monitoring/alerts.yml` all use it. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

import msgspec

from penstock.status.live import LIVE_S
from penstock.status.view import CheckpointStatus, JobState, JobView
from penstock.wording import ago, capital, counted, lasted, shortened

SILENT_AFTER_S = 15 * LIVE_S
"""A running job reports its progress every second. After so long without a report, its numbers are old."""
RECENT_S = 3600.0
"""A failure that the job recovered from is mentioned for so long."""
_LONGEST_WHY = 300
"""Characters of an error in a sentence; the page of failures has all of it."""


class Tone(enum.StrEnum):
    """How serious something is. Pages show it as a colour and as a sign or word."""

    BAD = "bad"
    """A person must act: the job is down for good, or its results do not become visible."""
    WARNING = "warning"
    BUSY = "busy"
    GOOD = "good"
    QUIET = "quiet"

    @property
    def rank(self) -> int:
        """The order of severity, worst first."""
        return list(Tone).index(self)


class Concern(msgspec.Struct, frozen=True):
    """Something that is not as it should be, in whole sentences."""

    tone: Tone
    text: str
    advice: str = ""
    """What to do about it."""
    page: str = ""
    """The page with more about it."""

    @property
    def urgent(self) -> bool:
        """Whether a person must act."""
        return self.tone is Tone.BAD

    @property
    def sentences(self) -> str:
        """The text, then the advice."""
        return " ".join(filter(None, (self.text, self.advice)))


class Verdict(msgspec.Struct, frozen=True):
    """The first line about a job."""

    tone: Tone
    headline: str
    detail: str


def verdict(view: JobView) -> Verdict:
    """How the job is. It is bad exactly when the job needs attention."""
    found = concerns(view)
    if view.is_unseen:
        return Verdict(Tone.BAD, "Not seen", found[0].sentences)
    if view.state is JobState.RUNNING:
        return _running(view, found)
    urgent = any(one.urgent for one in found)
    tone = Tone.BAD if urgent else Tone.WARNING if view.state.is_down else _TONES.get(view.state, Tone.QUIET)
    details = _of_the_state(view)
    detail = details.sentences if details is not None else _DETAILS.get(view.state, _ended)(view)
    others = [one.text for one in found if one.urgent and one != details][:1]
    return Verdict(tone, _HEADLINES.get(view.state, capital(view.state)), " ".join([detail, *others]))


def needs_attention(view: JobView) -> bool:
    """Whether a person must act."""
    return any(one.urgent for one in concerns(view))


def by_need(views: Iterable[JobView]) -> list[JobView]:
    """The jobs in the worst state first."""
    return sorted(views, key=lambda view: (verdict(view).tone.rank, view.name, view.place))


def concerns(view: JobView) -> tuple[Concern, ...]:
    """Everything that is not as it should be, the worst first. Quiet ones only inform."""
    return tuple(sorted(_concerns(view), key=lambda one: one.tone.rank))


def _concerns(view: JobView) -> Iterator[Concern]:
    yield from _unseen(view)
    state = _of_the_state(view)
    if state is not None:
        yield state
    yield from _supervisor_gone(view)
    yield from _late(view)
    yield from _failed_checkpoints(view)
    yield from _sinks_down(view)
    yield from _uncommitted(view)
    yield from _silent(view)
    yield from _failed_lately(view)
    yield from _unreadable_files(view)


# ── the state ──────────────────────────────────────────────────────────────────────────────────────


def _unseen(view: JobView) -> Iterator[Concern]:
    if view.is_unseen:
        yield Concern(
            Tone.BAD,
            f"It was last seen {ago(view.looked_at, view.now)}, as {view.state}: its storage {view.place} has not answered since, or is "
            "gone.",
            "Check that the storage is mounted and answers. The current state of the job is unknown: what is shown here is from then.",
        )


def _of_the_state(view: JobView) -> Concern | None:
    """A state that a healthy job is not in."""
    match view.state:
        case JobState.FAILED:
            return _failed(view)
        case JobState.DIED:
            return _died(view)
        case JobState.RESTARTING:
            return _restarting(view)
        case JobState.UNREADABLE:
            return Concern(
                Tone.BAD,
                f"The job's files cannot be read: {_brief(view.unreadable[0])}."
                if view.unreadable
                else "The job's files cannot be read.",
                "Check that storage answers, and whether another version of Penstock runs the job.",
            )
        case _:
            return None


def _failed(view: JobView) -> Concern:
    last = view.failures[0] if view.failures else None
    cause = f": {last.error}: {_brief(last.root or last.why)}" if last is not None else ""
    if view.supervised:
        return Concern(
            Tone.WARNING,
            f"The program has failed{cause}.",
            f"Its supervisor starts it again, unless the next attempt would fail in the same way. The job {_continues(view)}.",
        )
    return Concern(
        Tone.BAD,
        f"The job has failed for good{cause}.",
        f"Fix the cause and start the program again. The job {_continues(view)}.",
        "failures",
    )


def _died(view: JobView) -> Concern:
    process = f"Its process (pid {view.pid} on {view.host or 'an unknown machine'})"
    if view.supervised:
        return Concern(
            Tone.WARNING,
            f"{process} is gone and has not reported why.",
            f"Its supervisor starts it again. The job {_continues(view)}.",
        )
    return Concern(
        Tone.BAD,
        f"{process} is gone or does not respond, and has not reported why: it was killed, or its machine is gone.",
        f"Start the program again. The job {_continues(view)}. `penstock run --keep-alive` does this by itself.",
    )


def _restarting(view: JobView) -> Concern:
    """A person must act when a restart has not helped: nothing becomes visible until one does."""
    live = view.live
    said = (
        _brief(live.failure) if live is not None and live.failure else "The job has failed: see its failures"
    )
    tries = live.failed_in_a_row if live is not None else 0
    down = f" Down for {lasted(view.now - live.down_since)}" if live is not None and live.down_since else ""
    times = f", {counted(tries, 'failure')} in a row" if tries > 1 else ""
    wait_s = live.next_try_at - view.now if live is not None else 0.0
    when = f"in {lasted(wait_s)}" if wait_s > 0 else "now"
    return Concern(
        Tone.BAD if tries > 1 else Tone.WARNING,
        f"{said}.{f'{down}{times}.' if down else ''}",
        f"It restarts from its last checkpoint {when}. Check that the service in the error answers.",
        "failures",
    )


def _continues(view: JobView) -> str:
    last = next((one for one in view.checkpoints if one.retained), None)
    return (
        f"continues from checkpoint {last.checkpoint}"
        if last is not None
        else "has no checkpoint and begins anew"
    )


def _supervisor_gone(view: JobView) -> Iterator[Concern]:
    if view.supervisor_gone:
        yield Concern(
            Tone.WARNING,
            "Its supervisor is gone: nothing starts the job again if it dies.",
            "At a convenient time, stop the job and start it with `penstock run --keep-alive`: a second start while it runs is refused.",
        )


# ── checkpoints, sinks, reports ────────────────────────────────────────────────────────────────────


def _late(view: JobView) -> Iterator[Concern]:
    live = view.live
    if view.is_stuck:
        doing = f": {live.doing}" if live is not None and live.doing else ""
        yield Concern(
            Tone.BAD,
            f"It has been {view.state} for {lasted(view.not_up_s)}{doing}.",
            "Its log says what it waits for: a source, a sink or storage that does not answer, or a cluster without free cores.",
        )
    elif (
        view.is_late and live is not None and view.plan is not None and view.state is not JobState.RESTARTING
    ):
        since = max(live.checkpoint_at, live.started_at)
        rows = live.rows_since_checkpoint
        again = f" After a failure now, {counted(rows, 'row')} would be processed again." if rows else ""
        yield Concern(
            Tone.BAD,
            f"No checkpoint was completed for {lasted(view.now - since)}; the interval is "
            f"{lasted(view.plan.settings.interval_s)}.{again}",
            "Results become visible with the next one. `penstock checkpoints -v` shows which subtasks are slow.",
            "checkpoints",
        )


def _failed_checkpoints(view: JobView) -> Iterator[Concern]:
    row = []
    for one in view.checkpoints:
        if one.status is CheckpointStatus.COMPLETED:
            break
        if one.status is CheckpointStatus.FAILED and one.run == view.run:
            row.append(one)
    if row and view.state.is_alive and view.state is not JobState.RESTARTING:
        allowed = view.plan.settings.tolerable_failures if view.plan else None
        counting = sum(one.counts for one in row)
        limit = f" {counting} of {allowed} tolerated failures in a row." if allowed is not None else ""
        which = "The last checkpoint" if len(row) == 1 else f"The last {len(row)} checkpoints"
        why = _brief(": ".join(filter(None, (row[0].reason, row[0].detail))))
        yield Concern(
            Tone.WARNING,
            f"{which} failed: {why}.{limit}",
            "docs/troubleshooting.md, 'Slow or full storage', explains each reason and what to set.",
            "checkpoints",
        )


def _sinks_down(view: JobView) -> Iterator[Concern]:
    if view.live is None or not view.state.is_alive:
        return
    for uid, sink in view.live.sinks.items():
        if sink.down:
            waits = f"; the oldest for {lasted(view.now - sink.waiting_since)}" if sink.waiting_since else ""
            yield Concern(
                Tone.BAD,
                f"The sink {uid} does not take commits: {_brief(sink.down)}. "
                f"{counted(sink.waiting, 'transaction')} ({counted(sink.waiting_rows, 'row')}) wait{waits}.",
                "Commits are retried until they succeed. Check that the sink's target answers.",
            )


def _uncommitted(view: JobView) -> Iterator[Concern]:
    """Nothing commits for a job that does not run."""
    if view.live is None or view.state.is_alive:
        return
    for uid, sink in view.live.sinks.items():
        if sink.waiting:
            wait = "may still wait" if not sink.down else "waits" if sink.waiting == 1 else "wait"
            why = f", which did not take commits: {_brief(sink.down)}" if sink.down else ""
            yield Concern(
                Tone.WARNING if view.supervised and view.state.is_down else Tone.BAD,
                f"{counted(sink.waiting, 'transaction')} ({counted(sink.waiting_rows, 'row')}) of the sink {uid} {wait} for a commit that "
                f"the last checkpoint promised{why}. Readers do not see these rows.",
                "Check that the sink's target answers, and start the job again: it commits them first. Until then keep the job's storage "
                "and the open transactions in the target, or the rows are lost.",
            )


def _silent(view: JobView) -> Iterator[Concern]:
    if view.live is None or not view.state.is_alive:
        return
    silent_s = view.now - view.live.at
    if silent_s > SILENT_AFTER_S:
        yield Concern(
            Tone.WARNING,
            f"The job has not reported for {lasted(silent_s)}, so these numbers are old.",
            "Its machine is busy, or its storage slow.",
        )


def _failed_lately(view: JobView) -> Iterator[Concern]:
    recent = [one for one in view.failures if view.now - one.at < RECENT_S and one.back_at]
    if recent and view.state is JobState.RUNNING:
        last = recent[0]
        cost = (
            f"nothing was processed for {lasted(last.down_s)}"
            if last.down_s is not None
            else "it has recovered"
        )
        again = (
            f", {counted(last.rows_again, 'row was', 'rows were')} processed again" if last.rows_again else ""
        )
        yield Concern(
            Tone.QUIET,
            f"It failed {ago(last.at, view.now)} and recovered by itself: {cost}{again}.",
            page="failures",
        )


def _unreadable_files(view: JobView) -> Iterator[Concern]:
    for text in view.unreadable if view.state is not JobState.UNREADABLE else ():
        yield Concern(
            Tone.WARNING,
            f"Not readable: {_brief(text)}.",
            "`penstock checkpoints` lists the usable checkpoints.",
        )


def _brief(text: str) -> str:
    return shortened(text, _LONGEST_WHY).rstrip(".")


# ── the verdict ────────────────────────────────────────────────────────────────────────────────────


def _running(view: JobView, found: tuple[Concern, ...]) -> Verdict:
    if found and found[0].tone is not Tone.QUIET:
        headline = "Running, but not well" if found[0].urgent else "Running, with a problem"
        return Verdict(found[0].tone, headline, found[0].sentences)
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


def _ended(view: JobView) -> str:
    fine = "" if needs_attention(view) else "Nothing is wrong. "
    return f"{fine}Started again, the job {_continues(view)}."


_DETAILS: dict[JobState, Callable[[JobView], str]] = {
    JobState.STARTING: _starting,
    JobState.STOPPING: lambda _: (
        "The current batch ends, and everything processed is completed and committed. Then the job ends."
    ),
    JobState.NEW: lambda _: "It has never run. Start its program.",
}
"""Of the states that a healthy job is in while it does not process rows; the others are those of a job that ended."""
_HEADLINES = {JobState.DIED: "Dead", JobState.NEW: "Never run", JobState.UNREADABLE: "Not readable"}
"""Where the name of the state is not clear enough."""
_TONES = {
    JobState.STARTING: Tone.BUSY,
    JobState.STOPPING: Tone.BUSY,
    JobState.RESTARTING: Tone.WARNING,
}
