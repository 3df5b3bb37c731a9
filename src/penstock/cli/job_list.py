"""`penstock list`: all jobs in storages, a line each; also the top of `penstock watch`. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.printing import about
from penstock.status.backlog import is_caught_up, total_behind
from penstock.status.health import needs_somebody
from penstock.status.view import JobState, JobView

WIDE = 150
"""From so many columns on, ids and pages stand in the same table."""
TIGHT = (0, 1, 0, 0)
STATE_STYLES = {
    JobState.STARTING: "yellow",
    JobState.RUNNING: "green",
    JobState.STOPPING: "yellow",
    JobState.RESTARTING: "bold yellow",
    JobState.FAILED: "bold red",
    JobState.DIED: "bold red",
    JobState.UNREADABLE: "bold red",
}


def as_json(view: JobView) -> dict[str, Any]:
    """What `--json` prints of a job."""
    last = view.last_completed
    return {
        "name": view.name,
        "id": view.id,
        "storage": view.storage,
        "state": view.state.value,
        "since": view.since or None,
        "needs_somebody": needs_somebody(view),
        "run": view.run or None,
        "checkpoint": None if last is None else last.checkpoint,
        "checkpoint_age_s": view.checkpoint_age_s,
        "late": view.is_late,
        "rows_per_s": _rate_of(view),
        "behind": total_behind(view).now,
        "caught_up": is_caught_up(view).answer.value,
        "restarts": view.restarts,
        "guarantee": view.guarantee or None,
        "ui": ui(view) or None,
    }


def ui(view: JobView) -> str:
    """Where its pages are, while it runs."""
    return view.live.ui if view.live is not None and view.state.is_alive else ""


def _rate_of(view: JobView) -> float | None:
    return view.live.rows_per_s if view.live is not None and view.is_up else None


def overview(views: Sequence[JobView], columns: int) -> RenderableType:
    """A table of jobs; where there is little room, runs, ids and pages stand below it."""
    wide = columns >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=TIGHT)
    table.add_column("job", no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    numbers = ("for", "checkpoint", "age", "rows/s", "behind", *(("run", "restarts") if wide else ()))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("guarantee", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("id", no_wrap=True)
        table.add_column("pages", overflow="fold")
    for view in views:
        table.add_row(*_cells(view), *(_run_cells(view) if wide else ()), *_last_cells(view, wide=wide))
    return table if wide else Group(table, Text(), _ids(views))


def _cells(view: JobView) -> list[Text | str]:
    last, rows = view.last_completed, _rate_of(view)
    return [
        Text(view.name, "bold"),
        state_text(view),
        about(view.now - view.since) if view.since else "",
        "-" if last is None else str(last.checkpoint),
        age_text(view),
        "" if rows is None else f"{rows:,.0f}",
        _number(total_behind(view).now, view),
    ]


def _run_cells(view: JobView) -> list[Text | str]:
    restarts = view.restarts
    return [str(view.run or ""), Text(str(restarts), "yellow" if restarts else "")]


def _last_cells(view: JobView, *, wide: bool) -> list[str]:
    return [view.guarantee or "?", *([view.id, ui(view) or "-"] if wide else [])]


def _number(rows: int | None, view: JobView) -> str:
    """Of a job that runs, what is not known is a question."""
    if rows is None:
        return "?" if view.state.is_alive else ""
    return f"{rows:,}"


def _ids(views: Sequence[JobView]) -> Table:
    table = Table(box=None, pad_edge=False, padding=TIGHT)
    table.add_column("job", no_wrap=True, overflow="ellipsis")
    for name in ("run", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True, style="dim")
    table.add_column("pages", overflow="fold")
    for view in views:
        table.add_row(Text(view.name), *_run_cells(view), view.id, ui(view) or "-")
    return table


def state_text(view: JobView) -> Text:
    """The state in its colour."""
    return Text(view.state.value, STATE_STYLES.get(view.state, ""))


def age_text(view: JobView) -> Text:
    """How old the last checkpoint is; marked when the next one is late."""
    age_s = view.checkpoint_age_s
    said = "-" if age_s is None else about(age_s)
    return Text(f"{said} late", "bold red") if view.is_late else Text(said)
