"""The unread rows of a job's sources, how old that number is, and whether the job has caught up. Pure."""

from __future__ import annotations

import enum

import msgspec

from penstock.status.live import Progress, SourceLive
from penstock.status.view import JobView
from penstock.wording import counted, named


class Behind(msgspec.Struct, frozen=True):
    """Rows, None where nobody knows."""

    rows: int | None = None
    as_of: float = 0.0
    """When it was found out by a run that is over; 0: the present run says so."""

    @property
    def now(self) -> int | None:
        """The rows, unless they are those of a run that is over."""
        return None if self.as_of else self.rows


def source_behind(view: JobView, source: SourceLive) -> Behind:
    """Of one source. A run that has only just come up has not looked yet: Spark tells of a batch behind its end."""
    if source.behind is None or view.live is None:
        return Behind()
    is_old = not view.is_up or source.looked_at < view.live.up_since
    return Behind(source.behind, (source.looked_at or view.live.at) if is_old else 0.0)


def total_behind(view: JobView) -> Behind:
    """Of all sources of a job that is alive; of none where one cannot say it. As old as the oldest of them."""
    if view.live is None or not view.state.is_alive:
        return Behind()
    every = [source_behind(view, source) for source in view.live.sources.values()]
    known = [one.rows for one in every if one.rows is not None]
    if not every or len(known) < len(every):
        return Behind()
    return Behind(sum(known), min((one.as_of for one in every if one.as_of), default=0.0))


class CaughtUp(enum.StrEnum):
    """The answer."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """Nothing is known to be left, and somebody cannot say: a source, or a job that does not run."""


class CaughtUpView(msgspec.Struct, frozen=True):
    """The answer, and what is left to do, or why nobody knows."""

    answer: CaughtUp
    why: str = ""


def is_caught_up(view: JobView) -> CaughtUpView:
    """At the moment of the last word of the job, which is a second old while it runs."""
    live = view.live
    if live is None:
        return CaughtUpView(CaughtUp.UNKNOWN, "no run has said anything yet")
    under_way = ["a batch is being processed"] if live.batch_since and view.state.is_alive else []
    left = [*_left_to_read(view, live), *under_way, *_left_to_commit(live)]
    if left:
        return CaughtUpView(CaughtUp.NO, ", ".join(left))
    if not view.is_up:
        down = "no run is up" if view.state.is_alive else "the job does not run"
        return CaughtUpView(CaughtUp.UNKNOWN, f"{down} ({view.state}): nobody looks at its sources")
    silent = sorted({*_sources(view), *live.sources} - _those_that_say_it(view, live))
    if silent or not live.sources:
        whose = named(silent, "source") if silent else "its sources"
        return CaughtUpView(
            CaughtUp.UNKNOWN, f"nobody knows how far behind {whose} {'are' if len(silent) != 1 else 'is'}"
        )
    return CaughtUpView(CaughtUp.YES)


def _sources(view: JobView) -> list[str]:
    return [] if view.plan is None else [node.uid for node in view.plan.nodes if node.kind == "source"]


def _those_that_say_it(view: JobView, live: Progress) -> set[str]:
    return {uid for uid, source in live.sources.items() if source_behind(view, source).now is not None}


def _left_to_read(view: JobView, live: Progress) -> list[str]:
    """While no run is up, what was unread stays so."""
    every = {uid: source_behind(view, source) for uid, source in live.sources.items()}
    left = {uid: one.now if view.is_up else one.rows for uid, one in every.items()}
    return [f"{counted(rows, 'row')} to read from {uid}" for uid, rows in left.items() if rows]


def _left_to_commit(live: Progress) -> list[str]:
    left: list[str] = []
    if live.rows_since_checkpoint:
        left.append(f"{counted(live.rows_since_checkpoint, 'row')} in no checkpoint yet")
    waiting = {uid: sink.waiting for uid, sink in live.sinks.items() if sink.waiting}
    left += [f"{counted(number, 'transaction')} of {uid} to commit" for uid, number in waiting.items()]
    return left
