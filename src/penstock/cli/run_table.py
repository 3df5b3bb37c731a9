"""How the list of runs is printed: a table for people, JSON for programs. Driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from penstock.cli.console import table_console
from penstock.cli.printing import iso, moment
from penstock.ownership.run_list import ListedRun

LONGEST_WHY = 300
"""Characters of a reason in the table; `--json` has all that was written down."""


def print_json(runs: Sequence[ListedRun]) -> None:
    """Print a list with one object a run."""
    json.dump([_as_json(run) for run in runs], sys.stdout, indent=2)
    sys.stdout.write("\n")


def _as_json(run: ListedRun) -> dict[str, Any]:
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


def print_table(job: str, runs: Sequence[ListedRun]) -> None:
    """Print the runs, and below the table why those ended that did not end by themselves."""
    console = table_console()
    if not runs:
        console.print(f"job {job} has no record of a run", highlight=False)
        return
    console.print(_overview(job, runs))
    for run in runs:
        for text in (*((run.why,) if run.why else ()), *run.unreadable):
            style = "" if text == run.why else "red"
            console.print(f"run {run.run}: {_in_brief(text)}", style=style, soft_wrap=True, highlight=False)


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
        table.add_row(*_cells(run))
    return table


def _cells(run: ListedRun) -> list[str]:
    record = run.record
    return [
        str(run.run),
        moment(record.started_at) if record else "?",
        f"{record.host}, {record.pid}" if record else "?",
        _number(run.descent.restored_from) if run.descent else "?",
        _number(run.newest_checkpoint),
        run.how,
        moment(run.end.at) if run.end else "",
    ]


def _in_brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_WHY else f"{line[: LONGEST_WHY - 4]} ..."


def _number(checkpoint: int) -> str:
    return str(checkpoint) if checkpoint >= 0 else "-"


def _checkpoint(checkpoint: int) -> int | None:
    return checkpoint if checkpoint >= 0 else None
