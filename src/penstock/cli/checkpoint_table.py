"""How the list of checkpoints is printed: tables for people, JSON for programs. Driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from penstock.checkpoint.completed import Completed
from penstock.cli.checkpoint_listing import Entry
from penstock.cli.console import table_console
from penstock.cli.printing import iso, moment
from penstock.ids import SubtaskId
from penstock.wording import duration, size


def as_objects(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One object a checkpoint; units are in the names."""
    return [_as_json(entry) for entry in entries]


def _as_json(entry: Entry) -> dict[str, Any]:
    known: dict[str, Any] = {
        "checkpoint": entry.checkpoint,
        "usable": not entry.unusable,
        "reason": entry.unusable or None,
    }
    completed = entry.completed
    if completed is None:
        return known
    return known | {
        "job": completed.job,
        "run": completed.run,
        "mode": completed.mode,
        "parallelism": completed.parallelism,
        "triggered_at": iso(completed.triggered_at),
        "completed_at": iso(completed.completed_at),
        "duration_ms": completed.duration_ms,
        "state_bytes": completed.state_bytes,
        "new_bytes": completed.new_bytes,
        "positions": completed.barrier.positions,
        "bad_records": completed.bad_records,
        "late_rows": completed.late_rows,
        "restored_from": completed.restored_from if completed.restored_from >= 0 else None,
        "transactions": [
            {
                "sink": one.sink,
                "subtask": str(SubtaskId(one.sink, one.subtask)),
                "batch": one.checkpoint,
                "rows": one.rows,
            }
            for one in completed.transactions
        ],
        "subtasks": [
            {**msgspec.to_builtins(report), "subtask": str(report.subtask)} for report in completed.subtasks
        ],
    }


def print_tables(job: str, entries: Sequence[Entry], *, verbose: bool) -> None:
    """Print the checkpoints, and with `verbose` what every subtask of each measured."""
    console = table_console()
    if not entries:
        console.print(f"job {job} has no completed checkpoint", highlight=False)
        return
    console.print(_overview(job, entries))
    for entry in entries:
        if entry.unusable:
            reason = f"checkpoint {entry.checkpoint} cannot be used: {entry.unusable}"
            console.print(reason, style="red", soft_wrap=True, highlight=False)
    newest = entries[-1].completed
    for line in () if newest is None else _left_out(newest):
        console.print(line, style="yellow", soft_wrap=True, highlight=False)
    if verbose:
        for entry in entries:
            if entry.completed is not None:
                console.print(_subtasks(entry.completed))


def _left_out(newest: Completed) -> Iterator[str]:
    for what, found in (("bad rows", newest.bad_records), ("late rows", newest.late_rows)):
        if found:
            counts = ", ".join(f"{uid} {rows:,}" for uid, rows in sorted(found.items()))
            yield f"{what} until checkpoint {newest.checkpoint}: {counts}"


def _overview(job: str, entries: Sequence[Entry]) -> Table:
    table = Table(title=f"checkpoints of {job}", title_justify="left", title_style="bold")
    for name in ("checkpoint", "run", "completed (UTC)", "took", "state", "new", "transactions"):
        table.add_column(name, justify="left" if name.startswith("completed") else "right", no_wrap=True)
    table.add_column("positions", overflow="fold")
    table.add_column("usable")
    for entry in entries:
        usable = Text("no", "red") if entry.unusable else Text("yes", "green")
        table.add_row(str(entry.checkpoint), *_cells(entry.completed), usable)
    return table


def _cells(completed: Completed | None) -> list[str]:
    if completed is None:
        return ["?"] * 7
    return [
        str(completed.run),
        moment(completed.completed_at),
        duration(completed.duration_ms / 1000),
        size(completed.state_bytes),
        size(completed.new_bytes),
        str(len(completed.transactions)),
        "\n".join(f"{source} {_position(at)}" for source, at in completed.barrier.positions.items()),
    ]


def _subtasks(completed: Completed) -> Table:
    table = Table(title=f"subtasks in checkpoint {completed.checkpoint}", title_justify="left")
    table.add_column("subtask")
    for name in ("rows", "alignment", "synchronous", "asynchronous", "state", "new"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("host")
    for report in completed.subtasks:
        times = [duration(ms / 1000) for ms in (report.alignment_ms, report.sync_ms, report.async_ms)]
        sizes = [size(report.state_bytes), size(report.new_bytes)]
        table.add_row(str(report.subtask), f"{report.rows:,}", *times, *sizes, report.host)
    return table


def _position(position: object) -> str:
    """Partition and next offset where a source has those, JSON where it has something else."""
    if isinstance(position, dict) and all(isinstance(at, int) for at in position.values()):
        return " ".join(f"{partition}:{at}" for partition, at in position.items())
    return json.dumps(position)
