"""Checkpoints that the journal knows of and that are not in storage: subsumed, given up, under way. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from penstock.cli.console import table_console
from penstock.cli.printing import in_brief, moment
from penstock.clock import SYSTEM_CLOCK
from penstock.status.job_watcher import look_at
from penstock.status.jobs import FoundJob
from penstock.status.view import CheckpointStatus, CheckpointView
from penstock.wording import duration, size

LONGEST_WHY = 300


def history(job: FoundJob, most: int) -> list[CheckpointView]:
    """The last ones, the oldest first."""
    past = [one for one in look_at(job, SYSTEM_CLOCK.wall()).checkpoints if not one.retained]
    return past[:most][::-1]


def with_history(in_storage: list[dict[str, Any]], past: Sequence[CheckpointView]) -> list[dict[str, Any]]:
    """What `--json` prints: those of the past come first; they cannot be used, and say in `status` and `reason` why."""
    return [*(_as_json(one) for one in past), *in_storage]


def _as_json(one: CheckpointView) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(one),
        "usable": False,
        "reason": _what_became_of(one),
        "retained": False,
    }


def _what_became_of(one: CheckpointView) -> str:
    match one.status:
        case CheckpointStatus.IN_PROGRESS:
            return "it is under way"
        case CheckpointStatus.FAILED:
            return ": ".join(part for part in (one.reason, one.detail) if part)
        case CheckpointStatus.COMPLETED:
            return "it was subsumed"


def print_history(past: Sequence[CheckpointView]) -> None:
    """A table; nothing where there is none."""
    if not past:
        return
    table = Table(title="not in storage", title_justify="left", title_style="bold")
    for name in (
        "checkpoint",
        "run",
        "triggered (UTC)",
        "took",
        "batch",
        "alignment",
        "sync",
        "async",
        "complete",
        "commit",
        "new",
    ):
        table.add_column(name, justify="left" if name.startswith("trig") else "right", no_wrap=True)
    table.add_column("what became of it", overflow="fold")
    for one in past:
        table.add_row(*_cells(one))
    table_console().print(table)


def _cells(one: CheckpointView) -> list[str | Text]:
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
        Text(in_brief(_what_became_of(one), LONGEST_WHY), style),
    ]
