"""The tables of jobs, runs and failures: for people, and as JSON for programs. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.console import about, ago, in_brief, iso, moment, plain_console, table_console, visible
from penstock.ownership.runs import ListedRun
from penstock.status.health import needs_attention
from penstock.status.job_history import grouped
from penstock.status.view import FailureGroup, FailureView, JobState, JobView, is_caught_up, total_behind
from penstock.wording import counted, duration

WIDE = 150
"""From this width on, ids and pages are part of the table."""
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
    """The JSON of one job."""
    last = view.last_completed
    return {
        "name": view.name,
        "id": view.id,
        "storage": view.storage,
        "state": view.state.value,
        "since": view.since or None,
        "needs_attention": needs_attention(view),
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
    """The address of its pages, while it runs."""
    return view.live.ui if view.live is not None and view.state.is_alive else ""


def _rate_of(view: JobView) -> float | None:
    return view.live.rows_per_s if view.live is not None and view.is_up else None


def overview(views: Sequence[JobView], columns: int) -> RenderableType:
    """A table of jobs; on a narrow terminal, a second table below it shows runs, ids and pages."""
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
    """The number; for a running job, `?` if unknown."""
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
    """The state of a job, in its colour."""
    return Text(view.state.value, STATE_STYLES.get(view.state, ""))


def age_text(view: JobView) -> Text:
    """How old the last checkpoint is; marked when the next one is late."""
    age_s = view.checkpoint_age_s
    age = "-" if age_s is None else about(age_s)
    return Text(f"{age} late", "bold red") if view.is_late else Text(age)


SHORT = 300


def cost(failure: FailureView) -> str:
    """The cost of a failure in words: how long nothing was processed, and how many rows were processed again."""
    if failure.restored_from is None and not failure.back_at:
        return "the job has not recovered yet"
    origin = "the beginning" if failure.restored_from == -1 else f"checkpoint {failure.restored_from}"
    parts = [f"continued from {origin}" if failure.restored_from is not None else "recovered"]
    if failure.down_s is not None:
        parts.append(f"nothing was processed for {duration(failure.down_s)}")
    elif not failure.back_at:
        parts.append("its first batch has not finished yet")
    if failure.rows_again is not None:
        parts.append(f"{counted(failure.rows_again, 'row was', 'rows were')} processed again")
    return ", ".join(parts)


def what_happened(failure: FailureView, longest: int = SHORT) -> str:
    """The error, after its root cause."""
    root = f"{failure.root}; so " if failure.root else ""
    return in_brief(f"{root}{failure.error}: {failure.why}", longest)


def print_failures(job: str, failures: Sequence[FailureView], now: float, *, verbose: bool) -> None:
    """Print the failures, the newest last."""
    console = plain_console()
    if not failures:
        console.print(f"job {job} has no known failure", highlight=False)
        return
    for group in reversed(grouped(failures)):
        found = failures[group.begins : group.begins + (group.count if verbose else 1)]
        lines = [line for failure in reversed(found) for line in _lines(failure, now, verbose=verbose)]
        for line in (*lines, *([_in_all(group)] if group.count > 1 else [])):
            console.print(line, soft_wrap=True, highlight=False)


def _in_all(group: FailureGroup) -> Text:
    """Sum up failures that have the same cause."""
    parts = [f"{counted(group.count, 'time')} since {moment(group.first_at)} UTC"]
    if group.down_s is not None:
        parts.append(f"nothing was processed for {duration(group.down_s)} in all")
    if group.rows_again is not None:
        parts.append(f"{counted(group.rows_again, 'row was', 'rows were')} processed again")
    return Text(f"  {', '.join(parts)} (-v shows each)", "yellow")


def _lines(failure: FailureView, now: float, *, verbose: bool) -> Iterator[Text]:
    yield Text.assemble(
        (f"{moment(failure.at)} UTC", "bold"), (f"  run {failure.run}, {ago(now - failure.at)}", "dim")
    )
    yield Text("  " + what_happened(failure, 10_000 if verbose else SHORT), "red")
    if verbose:
        for text in (*failure.notes, failure.trace):
            if text:
                yield Text("\n".join(f"    {line}" for line in visible(text).splitlines()), "dim")
    if failure.strategy or failure.decision:
        decided = ": ".join(part for part in (failure.strategy, failure.decision) if part)
        yield Text(f"  decided by {visible(decided)}" if failure.strategy else f"  {visible(decided)}")
    yield Text(f"  {cost(failure)}")


LONGEST_WHY = 300
"""The longest reason in the table; `--json` has the whole text."""


def run_json(run: ListedRun) -> dict[str, Any]:
    """The JSON of one run."""
    record, end = run.record, run.end
    return {
        "run": run.run,
        "how": run.how,
        "error": (end and end.error) or None,
        "why": (end and end.why) or None,
        "started_at": record and iso(record.started_at),
        "ended_at": end and iso(end.at),
        "last_seen_at": run.heartbeat and iso(run.heartbeat.at),
        "host": record and record.host,
        "pid": record and record.pid,
        "restored_from": _checkpoint(run.descent.restored_from) if run.descent else None,
        "newest_checkpoint": _checkpoint(run.newest_checkpoint),
        "unreadable": list(run.unreadable),
    }


def print_runs(job: str, runs: Sequence[ListedRun]) -> None:
    """Print the runs, and below the table why runs ended unexpectedly."""
    console = table_console()
    if not runs:
        console.print(f"job {job} has no record of a run", highlight=False)
        return
    console.print(_overview(job, runs))
    for run in runs:
        for text in (*((run.why,) if run.why else ()), *run.unreadable):
            style = "" if text == run.why else "red"
            line = f"run {run.run}: {in_brief(text, LONGEST_WHY)}"
            console.print(line, style=style, soft_wrap=True, highlight=False)


def _overview(job: str, runs: Sequence[ListedRun]) -> Table:
    table = Table(title=f"runs of {job}", title_justify="left", title_style="bold")
    table.add_column("run", justify="right", no_wrap=True)
    table.add_column("started (UTC)", no_wrap=True)
    table.add_column("host, pid", overflow="fold")
    table.add_column("from checkpoint", justify="right", no_wrap=True)
    table.add_column("newest checkpoint", justify="right", no_wrap=True)
    table.add_column("how it ended", no_wrap=True)
    table.add_column("ended (UTC)", no_wrap=True)
    for run in runs:
        table.add_row(*_listed_run_cells(run))
    return table


def _listed_run_cells(run: ListedRun) -> list[str]:
    record = run.record
    return [
        str(run.run),
        moment(record.started_at) if record else "?",
        f"{record.host}, {record.pid}" if record else "?",
        _run_number(run.descent.restored_from) if run.descent else "?",
        _run_number(run.newest_checkpoint),
        run.how,
        moment(run.end.at) if run.end else "",
    ]


def _run_number(checkpoint: int) -> str:
    return str(checkpoint) if checkpoint >= 0 else "-"


def _checkpoint(checkpoint: int) -> int | None:
    return checkpoint if checkpoint >= 0 else None
