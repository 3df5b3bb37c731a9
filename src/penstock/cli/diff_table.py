"""How the difference of two savepoints is printed: a table and examples for people, JSON for programs. Driver; no Spark."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from rich.table import Table

from penstock.cli.console import table_console
from penstock.cli.state_table import readable_at
from penstock.progress_display import show_progress
from penstock.savepoint.compare import APPEARED, CHANGED, WENT, Difference, StateDifference, compare

_MARKS = {APPEARED: "+", WENT: "-", CHANGED: "~"}
_STYLES = {APPEARED: "green", WENT: "red", CHANGED: "yellow"}
_MOST_BYTES = 24


def differing(before: str, after: str, *, examples: int) -> Difference:
    """Compare what is at two paths."""
    with readable_at(before) as one, readable_at(after) as other, show_progress():
        return compare(one, other, examples=examples)


def print_json(difference: Difference) -> None:
    """Print one object."""
    found = {
        "same": difference.is_same,
        "positions": {uid: {"before": a, "after": b} for uid, (a, b) in difference.positions.items()},
        "states": [_as_json(state) for state in difference.states],
    }
    json.dump(found, sys.stdout, indent=2, default=_text)
    sys.stdout.write("\n")


def _as_json(state: StateDifference) -> dict[str, Any]:
    return {
        "operator": state.operator,
        "state": state.state,
        "same": state.is_same,
        "rows_before": state.before,
        "rows_after": state.after,
        **state.counts,
        "not_comparable": state.refused or None,
        "examples": state.examples,
    }


def _text(value: object) -> object:
    """What JSON does not have."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def print_difference(difference: Difference) -> None:
    """Print a table of states, and examples of those that differ."""
    console = table_console()
    for uid, (before, after) in difference.positions.items():
        positions = f"{json.dumps(before, default=str)} -> {json.dumps(after, default=str)}"
        console.print(f"source {uid}: {positions}", soft_wrap=True, highlight=False)
    if difference.is_same:
        console.print("all state is the same", style="green", highlight=False)
        return
    console.print(_overview(difference))
    for state in difference.states:
        if state.refused:
            said = f"{state.operator} {state.state} cannot be compared: {state.refused}"
            console.print(said, style="red", soft_wrap=True, highlight=False)
        for what, mark in _MARKS.items():
            for row in state.examples[what]:
                line = f"{mark} {state.operator} {state.state}: {_row(row)}"
                console.print(line, style=_STYLES[what], soft_wrap=True, highlight=False)
            more = state.counts[what] - len(state.examples[what])
            if more and state.examples[what]:
                console.print(f"{mark} {state.operator} {state.state}: {more:,} more", highlight=False)


def _overview(difference: Difference) -> Table:
    table = Table(title="state that differs", title_justify="left", title_style="bold")
    for name in ("operator", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("before", "after", APPEARED, CHANGED, WENT):
        table.add_column(name, justify="right", no_wrap=True)
    for state in difference.states:
        if not state.is_same:
            counts = [state.before, state.after, *(state.counts[what] for what in (APPEARED, CHANGED, WENT))]
            shown = ["?"] * len(counts) if state.refused else [f"{count:,}" for count in counts]
            table.add_row(state.operator, state.state, *shown)
    return table


def _row(row: dict[str, Any]) -> str:
    key = {name: value for name, value in row.items() if name not in ("before", "after")}
    said = ", ".join(f"{name}={_value(value)}" for name, value in key.items())
    if "before" not in row:
        return said
    before, after = ((", ".join(map(_value, row[side].values()))) for side in ("before", "after"))
    return f"{said}: {before} -> {after}"


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return value[:_MOST_BYTES].hex() + ("..." if len(value) > _MOST_BYTES else "")
    if isinstance(value, dict | list):
        return json.dumps(value, default=_text, ensure_ascii=False)
    return value.isoformat() if isinstance(value, datetime) else str(value)
