"""`penstock inspect` and `diff`: the contents of savepoints and checkpoints, as tables and as JSON. Driver; no Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.table import Table

from penstock.cli.console import table_console
from penstock.cli.job_arguments import is_job, open_job
from penstock.long_work import show_progress
from penstock.operators.views import ROW, View
from penstock.savepoint.compare import APPEARED, CHANGED, WENT, SavepointDifference, StateDifference, compare
from penstock.savepoint.contents import (
    Contents,
    OperatorContents,
    TableContents,
    held_checkpoint,
    newest_contents,
    savepoint_contents,
)
from penstock.state.backends.base import VALUES
from penstock.state.ddl import spark_type
from penstock.storage import open_storage
from penstock.wording import event_moment, size


def contents_at(path: str, job: str | None = None) -> Contents:
    """The contents of a savepoint, or of the newest checkpoint of a job given by its folder, or by storage and name."""
    if job is not None:
        return newest_contents(open_job(path, job))
    return newest_contents(open_storage(path)) if is_job(path) else savepoint_contents(path)


@contextmanager
def readable_at(path: str) -> Iterator[Contents]:
    """Contents whose rows can be read: nothing of it is deleted inside the block."""
    if is_job(path):
        with held_checkpoint(open_storage(path)) as contents:
            yield contents
    else:
        yield savepoint_contents(path)


# ── for programs ───────────────────────────────────────────────────────────────────────────────────


def contents_json(contents: Contents) -> dict[str, Any]:
    """The JSON of `penstock inspect`; the names contain the units."""
    return {
        "what": contents.what,
        "uri": contents.uri,
        "id": contents.id or None,
        "job": contents.job,
        "checkpoint": contents.checkpoint,
        "run": contents.run,
        "mode": contents.mode,
        "parallelism": contents.parallelism,
        "max_parallelism": contents.max_parallelism,
        "made_at": contents.made_at.isoformat(timespec="milliseconds"),
        "made_by": contents.made_by or None,
        "state_bytes": contents.size,
        "positions": contents.positions,
        "watermarks": {uid: _iso(at) for uid, at in contents.watermarks.items()},
        "source_watermarks": {uid: _iso(at) for uid, at in contents.source_watermarks.items()},
        "bad_records": dict(contents.bad_records),
        "late_rows": dict(contents.late_rows),
        "operators": {uid: _operator(one) for uid, one in contents.operators.items()},
    }


def _operator(operator: OperatorContents) -> dict[str, Any]:
    return {
        "key": operator.key,
        "state_bytes": operator.size,
        "states": {
            name: {"kind": view.kind, "table": view.table.name, "columns": _columns(view)}
            for name, view in operator.views.items()
            if name != ROW
        },
        "tables": {
            name: {"rows": table.rows, "bytes": table.size, "files": len(table.parts)}
            for name, table in operator.tables.items()
        },
    }


def _columns(view: View) -> dict[str, str]:
    return {column.name: spark_type(column.type) for column in view.columns}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


# ── for people ─────────────────────────────────────────────────────────────────────────────────────


def print_contents(contents: Contents) -> None:
    """Print a summary, a table of sources and a table of states."""
    console = table_console()
    console.print(str(contents), soft_wrap=True, highlight=False)
    shared_out = f"parallelism {contents.parallelism} of at most {contents.max_parallelism}"
    console.print(f"{contents.mode}, {shared_out}, {size(contents.size)} of state", highlight=False)
    if contents.positions:
        console.print(_sources(contents))
    if contents.operators:
        console.print(_states(contents))
    for what, found in (("bad rows", contents.bad_records), ("late rows", contents.late_rows)):
        if found:
            counts = ", ".join(f"{uid} {rows:,}" for uid, rows in sorted(found.items()))
            console.print(f"{what} so far: {counts}", style="yellow", soft_wrap=True, highlight=False)


def _sources(contents: Contents) -> Table:
    table = Table(title="sources", title_justify="left", title_style="bold")
    table.add_column("source", no_wrap=True)
    table.add_column("position", overflow="fold")
    table.add_column("event time (UTC)", no_wrap=True)
    for uid, at in contents.positions.items():
        table.add_row(uid, json.dumps(at, default=str), moment(contents.source_watermarks.get(uid)))
    return table


def _states(contents: Contents) -> Table:
    table = Table(title="state", title_justify="left", title_style="bold")
    for name in ("operator", "state", "kind"):
        table.add_column(name, no_wrap=True)
    table.add_column("columns", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("event time (UTC)", no_wrap=True)
    for uid, operator in contents.operators.items():
        reached = moment(contents.watermarks.get(uid))
        keys = _rows(operator.tables.get(VALUES)) if ROW in operator.views else ""
        table.add_row(uid, "", "", "by " + _column_list(operator.key), keys, size(operator.size), reached)
        for view in operator.views.values():
            if view.name != ROW:
                beyond = {name: kind for name, kind in _columns(view).items() if name not in operator.key}
                table.add_row("", view.name, view.kind, _column_list(beyond), *_amounts(operator, view), "")
    return table


def _column_list(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _amounts(operator: OperatorContents, view: View) -> tuple[str, str]:
    """Rows and bytes of a table; empty for states that share the row of the key."""
    table = operator.tables[view.table.name]
    if view.without_null or table.size is None:
        return "", ""
    return _rows(table), size(table.size)


def _rows(table: TableContents | None) -> str:
    return "" if table is None or table.rows is None else f"{table.rows:,}"


def moment(at: datetime | None) -> str:
    """Event time for a table; '' if unknown."""
    return "" if at is None else event_moment(at)


_MARKS = {APPEARED: "+", WENT: "-", CHANGED: "~"}
_STYLES = {APPEARED: "green", WENT: "red", CHANGED: "yellow"}
_MOST_BYTES = 24


def differing(before: str, after: str, *, examples: int) -> SavepointDifference:
    """Compare the state at two paths."""
    with readable_at(before) as one, readable_at(after) as other, show_progress():
        return compare(one, other, examples=examples)


def print_difference_json(difference: SavepointDifference) -> None:
    """Print the difference as one JSON object."""
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
    """Encode values for which JSON has no type."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def print_difference(difference: SavepointDifference) -> None:
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
            reason = f"{state.operator} {state.state} cannot be compared: {state.refused}"
            console.print(reason, style="red", soft_wrap=True, highlight=False)
        for what, mark in _MARKS.items():
            for row in state.examples[what]:
                line = f"{mark} {state.operator} {state.state}: {_row(row)}"
                console.print(line, style=_STYLES[what], soft_wrap=True, highlight=False)
            more = state.counts[what] - len(state.examples[what])
            if more and state.examples[what]:
                console.print(f"{mark} {state.operator} {state.state}: {more:,} more", highlight=False)


def _overview(difference: SavepointDifference) -> Table:
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
    text = ", ".join(f"{name}={_value(value)}" for name, value in key.items())
    if "before" not in row:
        return text
    before, after = ((", ".join(map(_value, row[side].values()))) for side in ("before", "after"))
    return f"{text}: {before} -> {after}"


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return value[:_MOST_BYTES].hex() + ("..." if len(value) > _MOST_BYTES else "")
    if isinstance(value, dict | list):
        return json.dumps(value, default=_text, ensure_ascii=False)
    return value.isoformat() if isinstance(value, datetime) else str(value)
