"""One checkpoint as a picture of time: trigger, barrier, acknowledgements, complete, commit. Pure.

Moments lie between 0 and 100, parts of the whole width. What was measured on machines whose clocks differ is kept inside the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from penstock.dashboard.pages.phases import slow_subtasks, took_ms
from penstock.status.events import SubtaskTimes
from penstock.status.view import CheckpointView
from penstock.wording import duration

MOST_LANES = 32
"""Subtasks that get a lane of their own; of more, the slowest."""
_TICKS = 6
_NICE = (1, 2, 2.5, 5, 10)


class Mark(msgspec.Struct, frozen=True):
    """A moment of the whole checkpoint."""

    name: str
    at: float
    x: float
    after_ms: float
    """Since the trigger."""


class Stretch(msgspec.Struct, frozen=True):
    """Something that lasted. `kind` is the name of a phase."""

    kind: str
    x: float
    width: float
    text: str


class Lane(msgspec.Struct, frozen=True):
    """One line of the picture."""

    name: str
    stretches: tuple[Stretch, ...] = ()
    dot: float | None = None
    """Where it acknowledged."""
    slow: bool = False


class Tick(msgspec.Struct, frozen=True):
    """A line of the scale."""

    x: float
    text: str


class Timeline(msgspec.Struct, frozen=True):
    """The picture."""

    marks: tuple[Mark, ...] = ()
    lanes: tuple[Lane, ...] = ()
    ticks: tuple[Tick, ...] = ()
    left_out: int = 0
    """Subtasks that have no lane."""


class _Scale:
    """Where a moment lies."""

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.length_s = max(end - start, 1e-6)

    def x(self, at: float) -> float:
        return 100.0 * min(max((at - self.start) / self.length_s, 0.0), 1.0)

    def stretch(self, kind: str, begin: float, end: float) -> Stretch:
        left, right = self.x(begin), self.x(end)
        return Stretch(kind, left, max(right - left, 0.15), f"{kind} {duration(max(0.0, end - begin))}")


def timeline(one: CheckpointView, now: float) -> Timeline:
    """The picture of a checkpoint; of one that is under way as far as it has come by now."""
    moments = [
        ("trigger", one.triggered_at),
        ("barrier", one.barrier_at),
        ("stored", one.stored_at),
        ("complete", one.completed_at if not one.reason else 0.0),
        ("given up", one.completed_at if one.reason else 0.0),
        ("commit", one.committed_at),
    ]
    known = [(name, at) for name, at in moments if at > 0]
    acknowledged = [part.acknowledged_at for part in one.subtasks if part.acknowledged_at > 0]
    ends = [at for _, at in known] + acknowledged + ([] if one.completed_at else [now])
    if not one.triggered_at or not ends:
        return Timeline()
    # an idle job is triggered behind its last batch: what was stored before lies left of the trigger
    begins = [_begin(one, part) for part in one.subtasks]
    scale = _Scale(min([at for _, at in known] + begins), max(ends))
    shown = sorted(one.subtasks, key=took_ms, reverse=True)[:MOST_LANES]
    return Timeline(
        marks=tuple(
            Mark(name, at, scale.x(at), (at - one.triggered_at) * 1000)
            for name, at in sorted(known, key=lambda of: of[1])
        ),
        lanes=(*_batch(one, scale, now), *_lanes(one, shown, scale), *_ending(one, scale)),
        ticks=_ticks(scale, one.triggered_at),
        left_out=max(0, max(one.subtasks_in_all, len(one.subtasks)) - len(shown)),
    )


def _batch(one: CheckpointView, scale: _Scale, now: float) -> tuple[Lane, ...]:
    end = one.barrier_at or one.completed_at or now
    return (
        (Lane("batch", (scale.stretch("batch", one.triggered_at, end),)),) if end > one.triggered_at else ()
    )


def _begin(one: CheckpointView, part: SubtaskTimes) -> float:
    """When a subtask began to wait for its inputs."""
    return min(begin for _, begin, _, _ in _stretches(one, part))


def _stretches(one: CheckpointView, part: SubtaskTimes) -> tuple[tuple[str, float, float, float], ...]:
    """Each with its begin, its end and how long it was. A subtask waits and freezes before the barrier has passed the job."""
    end = part.acknowledged_at or one.stored_at or one.completed_at
    upload = end - part.async_ms / 1000
    frozen = min(upload, one.barrier_at or upload)
    wait = frozen - part.sync_ms / 1000
    return (
        ("alignment", wait - part.alignment_ms / 1000, wait, part.alignment_ms),
        ("synchronous", wait, frozen, part.sync_ms),
        ("asynchronous", upload, end, part.async_ms),
    )


def _lanes(one: CheckpointView, shown: Sequence[SubtaskTimes], scale: _Scale) -> tuple[Lane, ...]:
    """One for each subtask: it waits, freezes, uploads, and acknowledges."""
    slow = slow_subtasks(one.subtasks)
    return tuple(
        Lane(
            f"{part.operator}-{part.index}",
            tuple(
                scale.stretch(kind, begin, until)
                for kind, begin, until, ms in _stretches(one, part)
                if ms > 0
            ),
            scale.x(part.acknowledged_at) if part.acknowledged_at else None,
            (part.operator, part.index) in slow,
        )
        for part in sorted(shown, key=lambda of: (of.operator, of.index))
    )


def _ending(one: CheckpointView, scale: _Scale) -> tuple[Lane, ...]:
    lanes = []
    if one.complete_ms and one.completed_at:
        begin = one.completed_at - one.complete_ms / 1000
        lanes.append(Lane("metadata", (scale.stretch("complete", begin, one.completed_at),)))
    if one.committed_at > one.completed_at > 0:
        lanes.append(Lane("sinks", (scale.stretch("commit", one.completed_at, one.committed_at),)))
    return tuple(lanes)


def _ticks(scale: _Scale, zero: float) -> tuple[Tick, ...]:
    """Round numbers, about six of them, that count from the trigger, as the duration does."""
    raw = scale.length_s / _TICKS
    power = 10 ** math.floor(math.log10(raw))
    step = next(nice * power for nice in _NICE if nice * power >= raw * 0.999)
    before = int((zero - scale.start) / step)
    behind = int((scale.start + scale.length_s - zero) / step)
    return tuple(
        Tick(
            100.0 * (zero - scale.start + n * step) / scale.length_s,
            f"{'-' if n < 0 else ''}{duration(abs(n) * step)}" if n else "0",
        )
        for n in range(-before, behind + 1)
    )
