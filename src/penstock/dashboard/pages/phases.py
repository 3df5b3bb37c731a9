"""The durations of a checkpoint's and a batch's phases, slow subtasks, and the data of charts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from penstock.status.events import SubtaskTimes
from penstock.status.live import BatchLive
from penstock.status.view import CheckpointStatus, CheckpointView, JobView

SLOW_TIMES, SLOW_MS = 2.0, 50.0
"""A subtask is slow when it took more than so many times the median of its operator, and longer than this."""


class Phase(msgspec.Struct, frozen=True):
    """A part of the time of a checkpoint. `left` and `width` are parts of a hundred of the bar."""

    name: str
    ms: float
    left: float = 0.0
    width: float = 0.0


class LabelledPhase(msgspec.Struct, frozen=True):
    """A phase, for the legend."""

    name: str
    meaning: str


LEGEND = (
    LabelledPhase(
        "batch", "from the trigger until the barrier had passed the whole job, without the next two"
    ),
    LabelledPhase("alignment", "of that time, the slowest subtask waited so long for its inputs"),
    LabelledPhase(
        "synchronous", "of that time, the slowest subtask was held up so long by freezing its state"
    ),
    LabelledPhase(
        "asynchronous", "from then on until all state was in storage, while later rows were already processed"
    ),
    LabelledPhase("complete", "writing the metadata that makes the checkpoint exist"),
    LabelledPhase("commit", "after its duration: from then on until all its output was visible"),
)


def split(one: CheckpointView) -> tuple[Phase, ...]:
    """The phases in their order: all but the commit add up to the duration.

    Alignment and freezing happen inside the batch, so they are taken out of it. One that was triggered while no batch came has had them
    before. What subtasks measured is not added up: they upload side by side.
    """
    batch_ms = min(one.batch_ms, one.duration_ms)
    alignment_ms = min(one.alignment_ms, batch_ms)
    sync_ms = min(one.sync_ms, batch_ms - alignment_ms)
    complete_ms = min(one.complete_ms, one.duration_ms - batch_ms)
    lengths = (
        batch_ms - alignment_ms - sync_ms,
        alignment_ms,
        sync_ms,
        one.duration_ms - batch_ms - complete_ms,
        complete_ms,
        one.commit_ms,
    )
    return tuple(Phase(label.name, ms) for label, ms in zip(LEGEND, lengths, strict=True))


def split_ms(one: CheckpointView) -> float:
    """All phases one after the other."""
    return sum(phase.ms for phase in split(one))


def full_bar_ms(shown: Sequence[CheckpointView]) -> float:
    """How long a full bar is: as the longest checkpoint, unless a few took very much longer than all others. Their bars are cut."""
    ordered = sorted(split_ms(one) for one in shown if one.status is CheckpointStatus.COMPLETED)
    if not ordered:
        return 0.0
    usual_ms = ordered[round((len(ordered) - 1) * _USUAL)]
    return min(ordered[-1], _CUT_TIMES * usual_ms) if usual_ms > 0 else ordered[-1]


_USUAL, _CUT_TIMES = 0.9, 2.5


def bar(one: CheckpointView, full_ms: float) -> tuple[Phase, ...]:
    """The phases of a checkpoint side by side."""
    return side_by_side(split(one), full_ms)


def side_by_side(phases: Sequence[Phase], full_ms: float) -> tuple[Phase, ...]:
    """What goes beyond a full bar is cut."""
    left, found = 0.0, []
    for phase in phases:
        end = min(100.0, left + (100.0 * phase.ms / full_ms if full_ms > 0 else 0.0))
        if phase.ms > 0:
            found.append(Phase(phase.name, phase.ms, left, end - left))
        left = end
    return tuple(found)


def slow_subtasks(subtasks: Sequence[SubtaskTimes]) -> frozenset[tuple[str, int]]:
    """Those that held the checkpoint up, measured against their own kind."""
    by_operator: defaultdict[str, list[SubtaskTimes]] = defaultdict(list)
    for one in subtasks:
        by_operator[one.operator].append(one)
    return frozenset(
        (one.operator, one.index)
        for kind in by_operator.values()
        for one in kind
        if took_ms(one) > SLOW_MS and took_ms(one) > SLOW_TIMES * median(map(took_ms, kind))
    )


def took_ms(one: SubtaskTimes) -> float:
    """What a subtask spent on a checkpoint."""
    return one.alignment_ms + one.sync_ms + one.async_ms


BATCH_LEGEND = (
    LabelledPhase("look", "Spark asked the sources what there is, and made a batch of it"),
    LabelledPhase("plan", "Spark planned its query"),
    LabelledPhase("process", "operators and sinks: Penstock's part, with all that it asked of Spark"),
    LabelledPhase("log", "Spark wrote its progress log"),
    LabelledPhase("other", "the rest of the time"),
)
_OF_SPARK = {
    "latestOffset": "look",
    "getBatch": "look",
    "queryPlanning": "plan",
    "addBatch": "process",
    "walCommit": "log",
    "commitOffsets": "log",
    "commitBatch": "log",
}


def batch_phases(one: BatchLive) -> tuple[Phase, ...]:
    """Where the time of a batch went. The phases add up to all of it."""
    found = dict.fromkeys((label.name for label in BATCH_LEGEND), 0.0)
    for name, ms in one.phases_ms.items():
        if name in _OF_SPARK:
            found[_OF_SPARK[name]] += ms
    found["other"] = max(0.0, one.seconds * 1000 - sum(found.values()))
    return tuple(Phase(name, ms) for name, ms in found.items())


class Point(msgspec.Struct, frozen=True):
    """A value at a moment."""

    at: float
    value: float


def rates(checkpoints: Sequence[CheckpointView], most: int = 120) -> tuple[Point, ...]:
    """Rows a second between one completed checkpoint and the next, oldest first: what the journal remembers of the input."""
    completed = [one for one in checkpoints if one.status is CheckpointStatus.COMPLETED][: most + 1]
    return tuple(
        Point(newer.completed_at, newer.rows / (newer.completed_at - older.completed_at))
        for newer, older in reversed(list(pairwise(completed)))
        if newer.run == older.run and newer.completed_at > older.completed_at
    )


def sparkline(points: Sequence[Point], width: float, height: float) -> str:
    """The `d` of an SVG path through them, from the left edge to the right one; '' for fewer than two."""
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    highest = max(point.value for point in points) or 1.0
    first, last = points[0].at, points[-1].at
    spots = (
        f"{width * (point.at - first) / (last - first):.1f} {height - (height - 2) * point.value / highest - 1:.1f}"
        for point in points
    )
    return "M" + "L".join(spots)


MOST_POINTS = 300


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line; `tone` names its colour in the style sheet."""

    label: str
    tone: str
    values: list[float]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Values over moments, in seconds since the epoch. `unit`: `ms`, `bytes` or `rows/s`."""

    unit: str
    x: list[float]
    series: list[Series]

    @property
    def as_json(self) -> str:
        """For an attribute."""
        return msgspec.json.encode(self).decode()


def rates_chart(view: JobView) -> Chart:
    """Rows a second, as far as the journal goes back."""
    points = rates(view.checkpoints, MOST_POINTS)
    return Chart(
        unit="rows/s",
        x=[round(point.at, 1) for point in points],
        series=[
            Series(label="rows a second", tone="accent", values=[round(point.value, 2) for point in points])
        ],
    )


def batch_rates_chart(view: JobView) -> Chart:
    """How fast rows came and how fast they were processed, batch by batch."""
    found = view.live.recent_batches[::-1] if view.live else ()
    return Chart(
        unit="rows/s",
        x=[round(one.at, 1) for one in found],
        series=[
            Series(label="input", tone="accent", values=[round(one.input_per_s, 2) for one in found]),
            Series(label="processing", tone="warm", values=[round(one.processed_per_s, 2) for one in found]),
        ],
    )


def durations_chart(view: JobView) -> Chart:
    """How long checkpoints took, and how long nobody saw their output after that."""
    completed = _completed(view)
    return Chart(
        unit="ms",
        x=[one.completed_at for one in completed],
        series=[
            Series(label="duration", tone="accent", values=[round(one.duration_ms, 1) for one in completed]),
            Series(label="commit", tone="warm", values=[round(one.commit_ms, 1) for one in completed]),
        ],
    )


def sizes_chart(view: JobView) -> Chart:
    """How large they were."""
    completed = _completed(view)
    return Chart(
        unit="bytes",
        x=[one.completed_at for one in completed],
        series=[
            Series(label="full", tone="accent", values=[float(one.state_bytes) for one in completed]),
            Series(label="new", tone="warm", values=[float(one.new_bytes) for one in completed]),
        ],
    )


def _completed(view: JobView) -> Sequence[CheckpointView]:
    """The oldest first, each moment once: two runs may say the same."""
    newest = [one for one in view.checkpoints if one.status is CheckpointStatus.COMPLETED][:MOST_POINTS]
    by_moment = {one.completed_at: one for one in newest}
    return [by_moment[at] for at in sorted(by_moment)]
