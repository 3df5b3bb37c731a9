"""Whether everything that is known to be in the sources of a job is committed. Pure; wherever somebody looks."""

from __future__ import annotations

import enum

import msgspec

from penstock.journal.live import Live
from penstock.view.model import JobView
from penstock.wording import counted, named


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
    left = [*_left_to_read(live), *under_way, *_left_to_commit(live)]
    if left:
        return CaughtUpView(CaughtUp.NO, ", ".join(left))
    if not view.state.is_alive:
        return CaughtUpView(
            CaughtUp.UNKNOWN, f"the job does not run ({view.state}): nobody looks at its sources"
        )
    silent = sorted({*_sources(view), *live.sources} - _those_that_say_it(live))
    if silent or not live.sources:
        whose = named(silent, "source") if silent else "its sources"
        return CaughtUpView(
            CaughtUp.UNKNOWN, f"nobody knows how far behind {whose} {'are' if len(silent) != 1 else 'is'}"
        )
    return CaughtUpView(CaughtUp.YES)


def _sources(view: JobView) -> list[str]:
    return [] if view.plan is None else [node.uid for node in view.plan.nodes if node.kind == "source"]


def _those_that_say_it(live: Live) -> set[str]:
    return {uid for uid, source in live.sources.items() if source.behind is not None}


def _left_to_read(live: Live) -> list[str]:
    behind = {uid: source.behind for uid, source in live.sources.items() if source.behind}
    return [f"{counted(rows, 'row')} to read from {uid}" for uid, rows in behind.items()]


def _left_to_commit(live: Live) -> list[str]:
    left: list[str] = []
    if live.rows_since_checkpoint:
        left.append(f"{counted(live.rows_since_checkpoint, 'row')} in no checkpoint yet")
    waiting = {uid: sink.waiting for uid, sink in live.sinks.items() if sink.waiting}
    left += [f"{counted(number, 'transaction')} of {uid} to commit" for uid, number in waiting.items()]
    return left
