"""Where the time of checkpoints and batches went: phases, slow subtasks, the timeline of a checkpoint, and charts. Pure.

The x of a timeline lies between 0 and 100 percent of its width. Times from machines whose clocks differ are clamped to it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from penstock.status.events import SubtaskTimes
from penstock.status.view import CheckpointStatus, CheckpointView, JobView
from penstock.wording import duration

SLOW_TIMES, SLOW_MS = 2.0, 50.0
"""A subtask is slow if it took more than this many times the median of its operator, and more than this time."""


class Phase(msgspec.Struct, frozen=True):
    """A phase of a checkpoint or batch. `left` and `width` are percentages of the bar."""

    name: str
    ms: float
    left: float = 0.0
    width: float = 0.0


class LabelledPhase(msgspec.Struct, frozen=True):
    """A phase in the legend."""

    name: str
    meaning: str


LEGEND = (
    LabelledPhase(
        "batch", "from the trigger until the barrier has passed the whole job, without the next two phases"
    ),
    LabelledPhase("alignment", "in that time: how long the slowest subtask waited for its inputs"),
    LabelledPhase("synchronous", "in that time: how long the slowest subtask took to freeze its state"),
    LabelledPhase(
        "asynchronous",
        "after the barrier, until all state was in storage; later rows are processed meanwhile",
    ),
    LabelledPhase("complete", "writing the metadata that makes the checkpoint exist"),
    LabelledPhase("commit", "after the checkpoint: until all its output was visible"),
)


def split(one: CheckpointView) -> tuple[Phase, ...]:
    """The phases in order; all but the commit add up to the duration.

    Alignment and freezing happen inside the batch, so they are subtracted from it. If a checkpoint was triggered without a batch, they
    happened before. The times of subtasks are not added up: they upload in parallel.
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
    """The sum of all phases."""
    return sum(phase.ms for phase in split(one))


def full_bar_ms(shown: Sequence[CheckpointView]) -> float:
    """The duration of a full bar: the longest checkpoint. If a few took much longer than the others, their bars are cut."""
    ordered = sorted(split_ms(one) for one in shown if one.status is CheckpointStatus.COMPLETED)
    if not ordered:
        return 0.0
    usual_ms = ordered[round((len(ordered) - 1) * _USUAL)]
    return min(ordered[-1], _CUT_TIMES * usual_ms) if usual_ms > 0 else ordered[-1]


_USUAL, _CUT_TIMES = 0.9, 2.5


def bar(one: CheckpointView, full_ms: float) -> tuple[Phase, ...]:
    """The bar of a checkpoint."""
    return side_by_side(split(one), full_ms)


def side_by_side(phases: Sequence[Phase], full_ms: float) -> tuple[Phase, ...]:
    """Place phases side by side; what exceeds a full bar is cut."""
    left, found = 0.0, []
    for phase in phases:
        end = min(100.0, left + (100.0 * phase.ms / full_ms if full_ms > 0 else 0.0))
        if phase.ms > 0:
            found.append(Phase(phase.name, phase.ms, left, end - left))
        left = end
    return tuple(found)


def slow_subtasks(subtasks: Sequence[SubtaskTimes]) -> frozenset[tuple[str, int]]:
    """The subtasks that were slow compared with others of their operator."""
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
    """The time that a subtask spent on a checkpoint."""
    return one.alignment_ms + one.sync_ms + one.async_ms


BATCH_LEGEND = (
    LabelledPhase("look", "Spark asked the sources for new data and made a batch of it"),
    LabelledPhase("plan", "Spark planned the reading, and Penstock filled the plan of the job, or made it"),
    LabelledPhase("tasks", "the actions of Spark: reading, shuffles, own code, writing into sinks"),
    LabelledPhase("state", "in that time: how long the slowest subtask took to open and freeze its state"),
    LabelledPhase("barrier", "after the tasks: the driver took their answers"),
    LabelledPhase("log", "Spark wrote its progress log"),
    LabelledPhase("other", "the rest: calls between Spark and Python, and waiting for ticks and sinks"),
)


class Point(msgspec.Struct, frozen=True):
    """A value at a moment."""

    at: float
    value: float


def rates(checkpoints: Sequence[CheckpointView], most: int = 120) -> tuple[Point, ...]:
    """Rows per second between completed checkpoints, oldest first, according to the journal."""
    completed = [one for one in checkpoints if one.status is CheckpointStatus.COMPLETED][: most + 1]
    return tuple(
        Point(newer.completed_at, newer.rows / (newer.completed_at - older.completed_at))
        for newer, older in reversed(list(pairwise(completed)))
        if newer.run == older.run and newer.completed_at > older.completed_at
    )


def sparkline(points: Sequence[Point], width: float, height: float) -> str:
    """The `d` of an SVG path through the points; '' for fewer than two."""
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
    """One line of a chart; `tone` names its colour in the style sheet."""

    label: str
    tone: str
    values: list[float]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Values over time in seconds since the epoch. `unit`: `ms`, `bytes` or `rows/s`."""

    unit: str
    x: list[float]
    series: list[Series]

    @property
    def as_json(self) -> str:
        """The chart as JSON, for an HTML attribute."""
        return msgspec.json.encode(self).decode()


def _chart(unit: str, x: list[float], **lines: list[float]) -> Chart:
    """A chart of one or two lines; the first one has the accent."""
    tones = ("accent", "warm")
    series = [
        Series(label=label.replace("_", " "), tone=tone, values=values)
        for (label, values), tone in zip(lines.items(), tones, strict=False)
    ]
    return Chart(unit=unit, x=x, series=series)


def rates_chart(view: JobView) -> Chart:
    """Rows per second, as far as the journal goes back."""
    points = rates(view.checkpoints, MOST_POINTS)
    values = [round(point.value, 2) for point in points]
    return _chart("rows/s", [round(point.at, 1) for point in points], rows_per_second=values)


def batch_rates_chart(view: JobView) -> Chart:
    """The input rate and the processing rate of each batch."""
    found = view.live.recent_batches[::-1] if view.live else ()
    came = [round(one.input_per_s, 2) for one in found]
    processed = [round(one.processed_per_s, 2) for one in found]
    return _chart("rows/s", [round(one.at, 1) for one in found], input=came, processing=processed)


def durations_chart(view: JobView) -> Chart:
    """The duration of checkpoints, and of their commits."""
    completed = _completed(view)
    durations = [round(one.duration_ms, 1) for one in completed]
    commits = [round(one.commit_ms, 1) for one in completed]
    return _chart("ms", [one.completed_at for one in completed], duration=durations, commit=commits)


def sizes_chart(view: JobView) -> Chart:
    """The full and the new bytes of checkpoints."""
    completed = _completed(view)
    full = [float(one.state_bytes) for one in completed]
    new = [float(one.new_bytes) for one in completed]
    return _chart("bytes", [one.completed_at for one in completed], full=full, new=new)


def _completed(view: JobView) -> Sequence[CheckpointView]:
    """The completed checkpoints, oldest first, each time once: two runs may have the same."""
    newest = [one for one in view.checkpoints if one.status is CheckpointStatus.COMPLETED][:MOST_POINTS]
    by_moment = {one.completed_at: one for one in newest}
    return [by_moment[at] for at in sorted(by_moment)]


MOST_LANES = 32
"""The limit of lanes; of more subtasks, the slowest are shown."""
_TICKS = 6
_NICE = (1, 2, 2.5, 5, 10)


class Mark(msgspec.Struct, frozen=True):
    """An instant of the whole checkpoint."""

    name: str
    at: float
    x: float
    after_ms: float
    """Milliseconds after the trigger."""


class Stretch(msgspec.Struct, frozen=True):
    """A phase of a lane; `kind` is its name."""

    kind: str
    x: float
    width: float
    text: str


class Lane(msgspec.Struct, frozen=True):
    """One line of the timeline."""

    name: str
    stretches: tuple[Stretch, ...] = ()
    dot: float | None = None
    """The x of its acknowledgement."""
    slow: bool = False


class ScaleTick(msgspec.Struct, frozen=True):
    """One tick of the time scale."""

    x: float
    text: str


class Timeline(msgspec.Struct, frozen=True):
    """The timeline of one checkpoint."""

    marks: tuple[Mark, ...] = ()
    lanes: tuple[Lane, ...] = ()
    ticks: tuple[ScaleTick, ...] = ()
    left_out: int = 0
    """The number of subtasks without a lane."""


class _Scale:
    """Converts times to x positions."""

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.length_s = max(end - start, 1e-6)

    def x(self, at: float) -> float:
        return 100.0 * min(max((at - self.start) / self.length_s, 0.0), 1.0)

    def stretch(self, kind: str, begin: float, end: float) -> Stretch:
        left, right = self.x(begin), self.x(end)
        return Stretch(kind, left, max(right - left, 0.15), f"{kind} {duration(max(0.0, end - begin))}")


def timeline(one: CheckpointView, now: float) -> Timeline:
    """The timeline of a checkpoint; for one in progress, until now."""
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
    # an idle job is triggered after its last batch: state stored before lies left of the trigger
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
    """When a subtask started to wait for its inputs."""
    return min(begin for _, begin, _, _ in _stretches(one, part))


def _stretches(one: CheckpointView, part: SubtaskTimes) -> tuple[tuple[str, float, float, float], ...]:
    """Each phase with begin, end and duration. A subtask waits and freezes before the barrier has passed the job."""
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
    """One lane for each subtask: it waits, freezes, uploads, and acknowledges."""
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


def _ticks(scale: _Scale, zero: float) -> tuple[ScaleTick, ...]:
    """About six round numbers, counted from the trigger, as the duration is."""
    raw = scale.length_s / _TICKS
    power = 10 ** math.floor(math.log10(raw))
    step = next(nice * power for nice in _NICE if nice * power >= raw * 0.999)
    before = int((zero - scale.start) / step)
    after = int((scale.start + scale.length_s - zero) / step)
    return tuple(
        ScaleTick(
            100.0 * (zero - scale.start + n * step) / scale.length_s,
            f"{'-' if n < 0 else ''}{duration(abs(n) * step)}" if n else "0",
        )
        for n in range(-before, after + 1)
    )
