"""`penstock checkpoints`: the retained checkpoints, whether each can be used, and the history of the others. Driver; no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from penstock.checkpoint.metadata import CheckpointName, found_checkpoints, read_metadata
from penstock.checkpoint.model import Completed
from penstock.cli.console import in_brief, iso, moment, table_console
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.ids import RunId, SubtaskId
from penstock.ownership.claim import Descent, read_descents, went_on_without
from penstock.recovery.history import read_history
from penstock.status.job_watcher import look_at
from penstock.status.jobs import FoundJob
from penstock.status.view import CheckpointStatus, CheckpointView
from penstock.storage import Storage
from penstock.wording import counted, duration, size


class Entry(msgspec.Struct, frozen=True):
    """One checkpoint: its metadata (None if unreadable or gone) and why it cannot be used ('' if it can)."""

    checkpoint: int
    completed: Completed | None
    unusable: str = ""


def list_checkpoints(storage: Storage) -> list[Entry]:
    """All checkpoints with metadata, and those known to have had it; oldest first."""
    descents = read_descents(storage)
    files = set(storage.names("state"))
    found = [_entry(storage, name, descents, files) for name in found_checkpoints(storage)]
    return sorted([*found, *_gone(storage, descents, found)], key=lambda entry: entry.checkpoint)


def _gone(storage: Storage, descents: Sequence[Descent], found: Sequence[Entry]) -> list[Entry]:
    """Checkpoints whose metadata is missing although another record names them: a commit mark, or the record of a run."""
    try:
        broken = read_history(storage, descents).broken
    except IncompatibleStateError:
        return []  # a listed checkpoint has another version, and its entry says so
    listed = {entry.checkpoint for entry in found}
    return [Entry(number, None, why) for number, why in broken.items() if number not in listed]


def _entry(storage: Storage, name: CheckpointName, descents: Sequence[Descent], files: set[str]) -> Entry:
    try:
        completed = read_metadata(storage, name)
    except (CorruptStateError, IncompatibleStateError) as error:
        return Entry(name.checkpoint, None, str(error))
    except FileNotFoundError:
        return Entry(name.checkpoint, None, "it was discarded while this command ran")
    return Entry(name.checkpoint, completed, _why_unusable(completed, descents, files))


def _why_unusable(completed: Completed, descents: Sequence[Descent], files: set[str]) -> str:
    decided = went_on_without(completed.id, RunId(completed.run), descents)
    if decided is not None:
        return _left_behind(completed, decided)
    missing = sorted(completed.files - files)
    if missing:
        are = "is" if len(missing) == 1 else "are"
        return f"{len(missing)} of its {counted(len(completed.files), 'state file')} {are} gone, such as {missing[0]}"
    return ""


def _left_behind(completed: Completed, decided: Descent) -> str:
    if decided.run < completed.run:
        return (
            f"no record says from which checkpoint run {completed.run} started, and run {decided.run} is the newest run with one: "
            f"runs/{completed.run}.restored is gone, or the checkpoint belongs to an earlier job of this name"
        )
    origin = f"checkpoint {decided.restored_from}" if decided.restored_from >= 0 else "the beginning"
    whose = f" of run {decided.completed_by}" if completed.checkpoint <= decided.restored_from else ""
    return f"run {completed.run} was fenced off: run {decided.run} continued from {origin}{whose}"


def checkpoints_json(entries: Sequence[Entry], past: Sequence[CheckpointView]) -> list[dict[str, Any]]:
    """The JSON of `penstock checkpoints`; the names contain the units.

    Past checkpoints come first; their `status` and `reason` say why they cannot be used.
    """
    return [*(_history_json(one) for one in past), *(_entry_json(entry) for entry in entries)]


def _entry_json(entry: Entry) -> dict[str, Any]:
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


def print_checkpoints(job: str, entries: Sequence[Entry], *, verbose: bool) -> None:
    """Print the checkpoints, and with `verbose` the measurements of every subtask."""
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
    """`partition:offset` pairs if the source has them, else JSON."""
    if isinstance(position, dict) and all(isinstance(at, int) for at in position.values()):
        return " ".join(f"{partition}:{at}" for partition, at in position.items())
    return json.dumps(position)


LONGEST_WHY = 300


def history(job: FoundJob, most: int) -> list[CheckpointView]:
    """The last checkpoints that are no longer in storage, oldest first."""
    past = [one for one in look_at(job, SYSTEM_CLOCK.wall()).checkpoints if not one.retained]
    return past[:most][::-1]


def _history_json(one: CheckpointView) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(one),
        "usable": False,
        "reason": _outcome(one),
        "retained": False,
    }


def _outcome(one: CheckpointView) -> str:
    match one.status:
        case CheckpointStatus.IN_PROGRESS:
            return "it is in progress"
        case CheckpointStatus.FAILED:
            return ": ".join(part for part in (one.reason, one.detail) if part)
        case CheckpointStatus.COMPLETED:
            return "it was subsumed"


def print_history(past: Sequence[CheckpointView]) -> None:
    """Print a table of past checkpoints, if there are any."""
    if not past:
        return
    table = Table(title="not in storage", title_justify="left", title_style="bold")
    numbers = ("took", "batch", "alignment", "sync", "async", "complete", "commit", "new")
    for name in ("checkpoint", "run", "triggered (UTC)", *numbers):
        table.add_column(name, justify="left" if name.startswith("trig") else "right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for one in past:
        table.add_row(*_history_cells(one))
    table_console().print(table)


def _history_cells(one: CheckpointView) -> list[str | Text]:
    completed = one.status is CheckpointStatus.COMPLETED
    parts = (one.batch_ms, one.alignment_ms, one.sync_ms, one.async_ms, one.complete_ms, one.commit_ms)
    style = {CheckpointStatus.FAILED: "red", CheckpointStatus.IN_PROGRESS: "yellow"}.get(one.status, "")
    return [
        str(one.checkpoint),
        str(one.run),
        moment(one.triggered_at),
        duration(one.duration_ms / 1000) if one.duration_ms else "",
        *(duration(ms / 1000) if completed else "" for ms in parts),
        size(one.new_bytes) if completed else "",
        Text(in_brief(_outcome(one), LONGEST_WHY), style),
    ]
