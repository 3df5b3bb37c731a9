"""The screens of `penstock watch`, and the changes between two looks as lines. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich import box
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from penstock.cli.console import Remembered, about, in_brief, moment, plain_console, time_of_day
from penstock.cli.job_tables import TIGHT, overview
from penstock.cli.status_screen import facts, graph_table, heading, needs_lines, problems
from penstock.status.events import Event
from penstock.status.live import Progress
from penstock.status.sentences import sentence
from penstock.status.view import CheckpointStatus, CheckpointView, JobView
from penstock.wording import duration, size

SPARK = 20
WIDE = 120
LEAST_EVENTS = 3
NUMBERS, FEWER_NUMBERS, LEAST_WHY = 80, 58, 12
"""Columns that the numbers of a checkpoint take, and what is left at least to say what became of it."""
MOST_CHECKPOINTS = 5
HINT = "q leaves"

LONGEST_EVENT = 400


class WatchScreen:
    """One screen, again and again. It remembers how rates went."""

    def __init__(self, *, one: bool) -> None:
        self._one = one
        self._rates = Remembered()
        self._noted = 0

    def note(self, views: Sequence[JobView], look: int) -> None:
        """Remember the rates that this look has found."""
        if look == self._noted:
            return
        self._noted = look
        for view in views:
            live = view.live if view.is_up else None
            self._rates.note(view.storage, live.rows_per_s if live is not None else 0.0)
            for uid, rows_per_s in _rates(live).items() if live is not None else ():
                self._rates.note(f"{view.storage}\0{uid}", rows_per_s)

    def rendered(
        self, views: Sequence[JobView], room: ConsoleDimensions, *, trouble: str = "", looked: bool = True
    ) -> RenderableType:
        """As large as the terminal."""
        above: list[RenderableType] = (
            [Text(f"{trouble}; what is shown was seen before", "bold red")] if trouble else []
        )
        if not looked:
            return Group(*above, Text("looking ..."))
        if not views:
            return Group(*above, Text("there is no job yet; one appears here when it starts"), _hint())
        body = self._job(views[0], room) if self._one else self._all(views, room)
        return Group(*above, body)

    # ── all jobs ───────────────────────────────────────────────────────────────────────────────

    def _all(self, views: Sequence[JobView], room: ConsoleDimensions) -> RenderableType:
        parts: list[RenderableType] = [overview(views, room.width), Text()]
        sick = [line for view in views for line in needs_lines(view, f"{view.name}: ")]
        parts += [*sick, Text()] if sick else []
        rates = Table.grid(padding=(0, 2, 0, 0))
        rates.add_column(no_wrap=True)
        rates.add_column(no_wrap=True, style="cyan")
        for view in views:
            if view.state.is_alive:
                rates.add_row(view.name, self._rates.line(view.storage, SPARK * 2))
        parts += [rates, Text()]
        events = sorted(
            ((event, view.name) for view in views for event in view.events), key=lambda pair: pair[0].at
        )
        left = room.height - _height([*parts], room) - 2
        parts += [
            _journal(f"{name}: {event_line(event)}", event.at, bad=sentence(event).is_bad, room=room)
            for event, name in events[-max(LEAST_EVENTS, left) :]
        ]
        return Group(*parts, _hint())

    # ── one job ────────────────────────────────────────────────────────────────────────────────

    def _job(self, view: JobView, room: ConsoleDimensions) -> RenderableType:
        parts: list[RenderableType] = [heading(view), *needs_lines(view), Text(), facts(view), Text()]
        if view.plan is not None:
            wide = room.width >= WIDE
            bars = SPARK if wide else SPARK // 2
            line = partial(self._line_of, view, bars)
            parts += [graph_table(view, line, wide=wide), Text()]
        if view.checkpoints:
            parts += [_checkpoints(view, room.width), Text()]
        left = room.height - _height(parts, room) - 2
        events = list(reversed(view.events[: max(LEAST_EVENTS, left)]))
        parts += [
            _journal(event_line(event), event.at, bad=sentence(event).is_bad, room=room) for event in events
        ]
        return Group(*parts, _hint())

    def _line_of(self, view: JobView, bars: int, uid: str) -> str:
        return self._rates.line(f"{view.storage}\0{uid}", bars)


def _rates(live: Progress) -> dict[str, float]:
    sources = {uid: one.rows_per_s for uid, one in live.sources.items()}
    operators = {uid: one.rows_per_s for uid, one in live.operators.items()}
    return {**sources, **operators, **{uid: one.rows_per_s for uid, one in live.sinks.items()}}


def _checkpoints(view: JobView, columns: int) -> Table:
    wide = columns >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=TIGHT)
    parts = ("batch", "align", "sync", "async", "commit") if wide else ("batch", "async", "commit")
    for name in ("checkpoint", "age", "took", *parts, "new"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for one in view.checkpoints[:MOST_CHECKPOINTS]:
        said, style = _what_became_of(one)
        numbers = _numbers(one, wide=wide) or [""] * (len(parts) + 2)
        age = about(view.now - (one.completed_at or one.triggered_at))
        room = max(LEAST_WHY, columns - (NUMBERS if wide else FEWER_NUMBERS))
        table.add_row(str(one.checkpoint), age, *numbers, Text(in_brief(said, room), style))
    return table


def _numbers(one: CheckpointView, *, wide: bool) -> list[str]:
    """Of one that is completed."""
    if one.status is not CheckpointStatus.COMPLETED:
        return []
    inside = (one.alignment_ms, one.sync_ms) if wide else ()
    times = (one.duration_ms, one.batch_ms, *inside, one.async_ms)
    commit = duration(one.commit_ms / 1000) if one.committed_at else ""
    return [*(duration(ms / 1000) for ms in times), commit, size(one.new_bytes)]


def _what_became_of(one: CheckpointView) -> tuple[str, str]:
    """In words, and a colour; nothing for what is as it should be."""
    match one.status:
        case CheckpointStatus.IN_PROGRESS:
            done = f", {one.acknowledged} of {one.subtasks_in_all} subtasks" if one.subtasks_in_all else ""
            return f"under way{done}", "yellow"
        case CheckpointStatus.FAILED:
            return f"{one.reason} {one.detail}".strip(), "red"
        case CheckpointStatus.COMPLETED:
            waits = one.transactions and not one.committed_at
            return ("waits for its commit" if waits else ""), "yellow"


def _journal(line: str, at: float, *, bad: bool, room: ConsoleDimensions) -> Text:
    text = Text.assemble((f"{time_of_day(at)} ", "dim"), (" ".join(line.split()), "red" if bad else ""))
    text.truncate(max(1, room.width - 1), overflow="ellipsis")
    return text


def _hint() -> Text:
    return Text(HINT, "dim")


def event_line(event: Event) -> str:
    """What happened, on one line, without the time."""
    return in_brief(sentence(event).line, LONGEST_EVENT)


def _height(parts: Sequence[RenderableType], room: ConsoleDimensions) -> int:
    """How many lines these take."""
    console = plain_console(width=room.width, height=room.height)
    lines: list[list[Segment]] = console.render_lines(Group(*parts), pad=False)
    return len(lines)


class StatusChanges:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._events: dict[str, frozenset[Event]] = {}
        self._needs: dict[str, frozenset[str]] = {}

    def lines(self, views: Sequence[JobView]) -> Iterator[str]:
        """Of a job that is new here its state, and nothing of what happened before; then what is new."""
        for view in views:
            yield from (f"{moment(at)} {view.name}: {text}" for at, text in self._of(view))
        for gone in set(self._states) - {view.storage for view in views}:
            del self._states[gone]
            yield f"{gone} is gone"

    def _of(self, view: JobView) -> Iterator[tuple[float, str]]:
        key = view.storage
        known = self._events.get(key)
        if known is not None:
            for event in reversed(view.events):
                if event not in known:
                    yield event.at, event_line(event)
        self._events[key] = frozenset(view.events)
        if self._states.get(key) != view.state:
            run = f", run {view.run}" if view.run else ""
            last = view.last_completed
            checkpoint = f", last checkpoint {last.checkpoint}" if last is not None else ""
            yield view.now, f"{view.state}{run}{checkpoint}"
        self._states[key] = view.state
        yield from ((view.now, text) for text in self._new_needs(view))

    def _new_needs(self, view: JobView) -> Iterator[str]:
        found = {_kind(one.text): one.sentences for one in problems(view)}
        for kind, text in found.items():
            if kind not in self._needs.get(view.storage, ()):
                yield " ".join(text.split())
        self._needs[view.storage] = frozenset(found)


def _kind(text: str) -> str:
    """The same need a second later: numbers in it may be others."""
    return "".join(one for one in text if not one.isdigit())
