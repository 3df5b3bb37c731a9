"""What is not as it should be with a job, what follows, and what somebody can do. Pure; wherever somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import msgspec

from penstock.status.live import Progress
from penstock.status.view import CheckpointStatus, JobState, JobView
from penstock.wording import counted, duration


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """One thing."""

    text: str
    advice: str
    urgent: bool = False
    """A person must look: the job is down for good, or its results do not become visible."""


def needs(view: JobView) -> tuple[Concern, ...]:
    """The most urgent first; nothing for a job that is as it should be."""
    return (
        *_of_the_look(view),
        *_of_the_state(view),
        *_of_checkpoints(view),
        *_of_sinks(view.live, view),
        *_of_files(view),
    )


def needs_somebody(view: JobView) -> bool:
    """Whether a person must look. Pages, exit codes and alerts (`monitoring/alerts.yml`) all go by this."""
    return any(need.urgent for need in needs(view))


def _of_the_look(view: JobView) -> Iterator[Concern]:
    if view.is_unseen:
        yield Concern(
            text=f"it was last seen {duration(round(view.look_age_s))} ago, as {view.state}: its storage does not answer, or is gone",
            advice=f"see whether {view.place} is mounted and answers; how the job is now is not known",
            urgent=True,
        )


def _of_the_state(view: JobView) -> Iterator[Concern]:
    last = view.failures[0] if view.failures else None
    cause = f": {last.error}: {last.why}" if last is not None else ""
    goes_on = _goes_on(view)
    if view.supervisor_gone:
        yield Concern(
            text="its supervisor is gone: nobody starts the job again if it dies",
            advice="when it suits, stop the job and start it anew with `penstock run --keep-alive`: a second start beside it is refused",
        )
    if view.is_stuck:
        doing = f": {view.live.doing}" if view.live is not None and view.live.doing else ""
        yield Concern(
            text=f"it has been {view.state} for {duration(round(view.not_up_s))}{doing}",
            advice="see its log for what it waits for: a source, a sink or storage that does not answer, or a cluster without free cores",
            urgent=True,
        )
    match view.state:
        case JobState.FAILED if view.supervised:
            yield Concern(
                text=f"its program has failed{cause}",
                advice="its supervisor starts it again, unless another attempt would only meet the same",
            )
        case JobState.FAILED:
            yield Concern(
                text=f"the job has failed for good{cause}",
                advice=f"mend the cause, then start the program again: it goes on {goes_on}",
                urgent=True,
            )
        case JobState.DIED if view.supervised:
            yield Concern(
                text="its process is gone", advice="its supervisor starts it again: nothing is to be done"
            )
        case JobState.DIED:
            yield Concern(
                text=f"its process (pid {view.pid} on {view.host or 'an unknown machine'}) is gone or silent, and has not said why",
                advice=f"start the program again: it goes on {goes_on}; `penstock run --keep-alive` does so by itself",
                urgent=True,
            )
        case JobState.UNREADABLE:
            yield Concern(
                text="the job cannot be seen: its files cannot be read",
                advice="see whether storage answers, and whether another version of Penstock runs the job",
                urgent=True,
            )
        case JobState.RESTARTING:
            yield _of_a_restart(view)


def _of_a_restart(view: JobView) -> Concern:
    """The cause first. A person must look when a restart has not helped: nothing becomes visible meanwhile."""
    live = view.live
    said = live.failure if live is not None and live.failure else "it has failed: see its failures"
    tries = live.failed_in_a_row if live is not None else 0
    down = f". Down for {duration(round(view.now - live.down_since))}" if live and live.down_since else ""
    times = f", {counted(tries, 'failure')} in a row" if tries > 1 else ""
    return Concern(
        text=f"{said}{down}{times}, goes back to its last checkpoint{_next_try(view)}",
        advice="it is tried again by itself; see whether what the error names answers",
        urgent=tries > 1,
    )


def _goes_on(view: JobView) -> str:
    last = view.last_completed
    return f"from checkpoint {last.checkpoint}" if last is not None else "from the beginning"


def _next_try(view: JobView) -> str:
    at = view.live.next_try_at if view.live is not None else 0.0
    return f" in {duration(round(at - view.now))}" if at > view.now else ""


def _of_checkpoints(view: JobView) -> Iterator[Concern]:
    if (
        view.is_late
        and view.state not in (JobState.STARTING, JobState.RESTARTING)
        and view.plan is not None
        and view.live is not None
    ):
        since = view.now - max(view.live.checkpoint_at, view.live.started_at)
        yield Concern(
            text=f"no checkpoint for {duration(round(since))}; the interval is {duration(view.plan.settings.interval_s)}",
            advice="results are not visible before the next one; `penstock checkpoints -v` shows which subtasks are slow",
            urgent=True,
        )
    ended = [one for one in view.checkpoints if one.status is not CheckpointStatus.IN_PROGRESS]
    failed = list(takewhile(lambda one: one.status is CheckpointStatus.FAILED, ended))
    if any(one.counts for one in failed) and view.state.is_alive and view.state is not JobState.RESTARTING:
        yield Concern(
            text=f"the last {counted(len(failed), 'checkpoint was', 'checkpoints were')} given up: {failed[0].reason}: {failed[0].detail}",
            advice="docs/troubleshooting.md, 'Slow or full storage', says what each reason means and what to set",
        )


def _of_sinks(live: Progress | None, view: JobView) -> Iterator[Concern]:
    if live is None or not view.state.is_alive:
        return
    for uid, sink in live.sinks.items():
        if sink.down:
            yield Concern(
                text=f"sink {uid} does not take commits ({counted(sink.waiting, 'transaction waits', 'transactions wait')}): {sink.down}",
                advice="they are tried again until they come through; see whether its target answers",
                urgent=True,
            )


def _of_files(view: JobView) -> Iterator[Concern]:
    for text in view.unreadable:
        yield Concern(text=text, advice="`penstock checkpoints` says which checkpoints can be used")
