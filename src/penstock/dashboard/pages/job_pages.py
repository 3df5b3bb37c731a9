"""Each page as a function of its data. Pure.

A page shows the newest part of a long list and says what it leaves out; its JSON twin has everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from penstock.dashboard.pages import timings
from penstock.dashboard.pages.action_forms import action_forms, outcome_words
from penstock.dashboard.pages.job_graph import draw, node_facts
from penstock.dashboard.pages.render import PageFrame, render
from penstock.dashboard.pages.timings import (
    BATCH_LEGEND,
    Mark,
    Phase,
    bar,
    full_bar_ms,
    rates,
    side_by_side,
    slow_subtasks,
    sparkline,
    split,
    split_ms,
    timeline,
    took_ms,
)
from penstock.requests.request_client import Outcome
from penstock.savepoint.contents import Contents
from penstock.status.events import SavepointMade
from penstock.status.health import Tone, Verdict, by_need, concerns, verdict
from penstock.status.job_history import grouped
from penstock.status.sentences import collapsed, outcome_sentence, sentences
from penstock.status.stored_state import ONE_ROW, ROW_NAME, FoundRows, LargestKeys, StateContents
from penstock.status.view import (
    Behind,
    CheckpointStatus,
    CheckpointView,
    FailureGroup,
    FailureView,
    JobView,
    total_behind,
)
from penstock.wording import value_text

CHECKPOINTS_A_PAGE = 50
EVENTS_A_PAGE = 100
MOST_FAILURES = 100
LARGEST_KEYS = 20
_LATELY = 8
_SPARK_POINTS, _SPARK_WIDTH, _SPARK_HEIGHT = 40, 120.0, 28.0
_TALLY = {
    Tone.BAD: "need attention",
    Tone.WARNING: "with a problem",
    Tone.BUSY: "in transition",
    Tone.GOOD: "healthy",
    Tone.QUIET: "ended",
}


def _tally(tone: Tone, number: int) -> str:
    return "needs attention" if tone is Tone.BAD and number == 1 else _TALLY[tone]


class _Page(msgspec.Struct, frozen=True):
    """A part of a long list."""

    rows: Sequence[Any]
    number: int
    pages: int
    first: int
    """The position of the first row in the whole list, starting at 1."""
    in_all: int


def paged(rows: Sequence[Any], number: int, size: int) -> _Page:
    """The rows of one page, or of the last page if there are fewer."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    begin = (number - 1) * size
    return _Page(rows[begin : begin + size], number, pages, begin + 1, len(rows))


class _OverviewRow(msgspec.Struct, frozen=True):
    view: JobView
    verdict: Verdict
    behind: Behind
    spark: str


def overview(views: Sequence[JobView], frame: PageFrame) -> str:
    """All jobs; those that need attention come first."""
    rows = [
        _OverviewRow(
            view,
            verdict(view),
            total_behind(view),
            sparkline(rates(view.checkpoints, _SPARK_POINTS), _SPARK_WIDTH, _SPARK_HEIGHT),
        )
        for view in by_need(views)
    ]
    tones = Counter(row.verdict.tone for row in rows)
    tally = [(tone, tones[tone], _tally(tone, tones[tone])) for tone in _TALLY if tones[tone]]
    several = len({view.place for view in views}) > 1
    return render("overview.html", frame, rows=rows, tally=tally, several_places=several)


def job(view: JobView, frame: PageFrame) -> str:
    """One job: its health, its graph, its activity."""
    judged = verdict(view)
    story = collapsed([one for one in sentences(view.events, view.failures) if not one.routine])
    nodes = view.plan.nodes if view.plan else ()
    return _of_job(
        "job.html",
        view,
        frame,
        "",
        others=[one for one in concerns(view) if one.text not in judged.detail],
        behind=total_behind(view),
        drawings=[draw(nodes), draw(nodes, downward=True)],
        facts=node_facts(view),
        rates_chart=timings.rates_chart(view).as_json,
        story=story[:_LATELY],
    )


class _CheckpointRow(msgspec.Struct, frozen=True):
    view: CheckpointView
    bar: tuple[Phase, ...]
    phases: tuple[Phase, ...]
    is_cut: bool


def checkpoints(view: JobView, frame: PageFrame, *, page: int = 1) -> str:
    """The history of checkpoints, with a summary and the settings."""
    shown = paged(view.checkpoints, page, CHECKPOINTS_A_PAGE)
    full_ms = full_bar_ms(shown.rows)
    return _of_job(
        "checkpoints.html",
        view,
        frame,
        "checkpoints",
        shown=shown,
        rows=[
            _CheckpointRow(one, bar(one, full_ms), split(one), split_ms(one) > full_ms * 1.001)
            for one in shown.rows
        ],
        completed=sum(one.status is CheckpointStatus.COMPLETED for one in view.checkpoints),
        worries=[one for one in concerns(view) if one.page == "checkpoints"],
        durations_chart=timings.durations_chart(view).as_json,
        sizes_chart=timings.sizes_chart(view).as_json,
    )


def checkpoint(view: JobView, one: CheckpointView, frame: PageFrame) -> str:
    """One checkpoint: its time line, and every subtask."""
    line = timeline(one, view.now)
    places = {(other.checkpoint, other.run): n for n, other in enumerate(view.checkpoints)}
    at = places.get((one.checkpoint, one.run))
    slow = slow_subtasks(one.subtasks)
    placed = _placed(line.marks)
    return _of_job(
        "checkpoint.html",
        view,
        frame,
        "checkpoints",
        one=one,
        line=line,
        placed_marks=placed,
        lines_of_marks=max((mark.level for mark in placed), default=0) + 1,
        newer=view.checkpoints[at - 1] if at else None,
        older=view.checkpoints[at + 1] if at is not None and at + 1 < len(view.checkpoints) else None,
        slow=slow,
        aggregated=_partly_aggregated(view, {of.operator for of in one.subtasks}),
        subtasks=sorted(
            one.subtasks, key=lambda of: ((of.operator, of.index) not in slow, of.operator, -took_ms(of))
        ),
    )


def _partly_aggregated(view: JobView, operators: set[str]) -> list[str]:
    """The operators whose rows are counted after partial aggregation."""
    nodes = view.plan.nodes if view.plan else ()
    return [node.uid for node in nodes if node.partly_aggregated and node.uid in operators]


class _PlacedMark(msgspec.Struct, frozen=True):
    mark: Mark
    level: int
    anchor: str


def _placed(marks: Sequence[Mark]) -> list[_PlacedMark]:
    """Put the names of marks that are close together on separate lines."""
    placed: list[_PlacedMark] = []
    for mark in marks:
        close = [one.level for one in placed if mark.x - one.mark.x < _WORD_WIDTH]
        level = next(level for level in range(len(close) + 1) if level not in close)
        anchor = (
            "start" if mark.x < _WORD_WIDTH / 2 else "end" if mark.x > 100 - _WORD_WIDTH / 2 else "middle"
        )
        placed.append(_PlacedMark(mark, level, anchor))
    return placed


_WORD_WIDTH = 9.0
"""The width of the name of a mark, in percent of the timeline."""


def batches(view: JobView, frame: PageFrame) -> str:
    """The newest batches: input rate, processing rate, and where the time went."""
    found = view.live.recent_batches if view.live else ()
    full_ms = max((one.seconds for one in found), default=0.0) * 1000
    phases = [tuple(Phase(name, ms) for name, ms in one.phases.items()) for one in found]
    rows = [(one, of, side_by_side(of, full_ms)) for one, of in zip(found, phases, strict=True)]
    seconds = sum(one.seconds for one in found)
    return _of_job(
        "batches.html",
        view,
        frame,
        "batches",
        rows=rows,
        legend=BATCH_LEGEND,
        processing=sum(one.rows for one in found) / seconds if seconds else None,
        chart=timings.batch_rates_chart(view).as_json,
    )


class _FailureRow(msgspec.Struct, frozen=True):
    group: FailureGroup
    newest: FailureView
    others: tuple[FailureView, ...]
    """The earlier failures of the group, as far as the page has room."""
    mark: str
    """The id of its HTML element, which stays when the group grows."""


def failures(view: JobView, frame: PageFrame) -> str:
    """Failures and their cost. Repeated failures are shown once; the user can expand them."""
    rows: list[_FailureRow] = []
    room = MOST_FAILURES
    for group in grouped(view.failures):
        found = view.failures[group.begins : group.begins + min(group.count, room)]
        if not found:
            break
        oldest = group.begins + group.count - 1
        mark = f"{view.failures[oldest].run}-{len(view.failures) - oldest}"
        rows.append(_FailureRow(group, found[0], found[1:], mark))
        room -= len(found)
    shown = MOST_FAILURES - room
    return _of_job("failures.html", view, frame, "failures", rows=rows, left_out=len(view.failures) - shown)


def journal(view: JobView, frame: PageFrame, *, page: int = 1, routine: int = 0) -> str:
    """Events, newest first; with a `routine` other than 0, also the routine events of a healthy job."""
    events = collapsed([one for one in sentences(view.events, view.failures) if routine or not one.routine])
    shown = paged(events, page, EVENTS_A_PAGE)
    return _of_job("journal.html", view, frame, "journal", shown=shown, routine=routine)


def state(view: JobView, contents: StateContents | None, frame: PageFrame) -> str:
    """The state in the newest completed checkpoint; `contents` is None if there is none."""
    return _of_job(
        "state.html",
        view,
        frame,
        "state",
        held=contents,
        row_name=ROW_NAME,
        one_row=ONE_ROW,
        largest=str(LARGEST_KEYS),
    )


def found(content: FoundRows | LargestKeys) -> str:
    """The rows of a key, or the keys with the most rows, as a part of the State page."""
    if isinstance(content, LargestKeys):
        has_key, more = False, False
        columns = [*(content.keys[0].key if content.keys else ()), "rows"]
        rows = [[*map(value_text, one.key.values()), f"{one.rows:,}"] for one in content.keys]
    else:
        has_key, more = bool(content.key), content.more
        columns = list(content.columns)
        rows = [[value_text(row.get(name)) for name in columns] for row in content.rows]
    return render(
        "found.html", PageFrame(), found=content, columns=columns, rows=rows, has_key=has_key, more=more
    )


def savepoints(view: JobView, frame: PageFrame, folder: str = "", inside: Contents | str = "") -> str:
    """Savepoints in the journal. `folder`: the opened one; `inside`: its contents, or why they cannot be shown."""
    made = {one.folder: one for one in reversed(view.events) if isinstance(one, SavepointMade)}
    return _of_job(
        "savepoints.html",
        view,
        frame,
        "savepoints",
        rows=[made[one] for one in view.savepoints if one in made],
        folder=folder,
        wrong=inside if isinstance(inside, str) else "",
        inside=inside,
    )


def actions(view: JobView, outcome: Outcome | None, frame: PageFrame, refusal: str = "") -> str:
    """The possible actions, and the outcomes of earlier ones. `refusal`: why the last one was not sent to the job."""
    tone, headline = outcome_words(outcome) if outcome else (Tone.QUIET, "")
    return _of_job(
        "actions.html",
        view,
        frame,
        "actions",
        outcome=outcome,
        refusal=refusal,
        outcome_tone=tone,
        outcome_headline=headline,
        forms=action_forms(view),
        asked=collapsed([outcome_sentence(one) for one in view.asked])[:_LATELY],
    )


def login(frame: PageFrame, wrong: str = "", following: str = "/") -> str:
    """The login page. `wrong`: why the last token was refused; `following`: the path to open afterwards."""
    return render("login.html", frame, wrong=wrong, following=following)


def problem(status: int, text: str, frame: PageFrame) -> str:
    """The page that explains an HTTP error."""
    known = {one.value: one.phrase for one in HTTPStatus}
    return render("problem.html", frame, status=status, headline=known.get(status, "Not possible"), text=text)


def _of_job(template: str, view: JobView, frame: PageFrame, here: str, **values: object) -> str:
    return render(template, frame, view=view, here=here, judged=verdict(view), **values)
