"""The end of the demonstration: every count beside the truth, the reason for what is seen, and the verdict. Supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.config import Mode
from penstock.demo.truth import NOTHING, Comparison, Ledger

MOST_ROWS = 40

_REASONS = {
    Mode.EXACTLY_ONCE: (
        "positions, state and both outputs went back to the same checkpoint each time; SQLite shows the state, Parquet every batch "
        "that was delivered."
    ),
    Mode.AT_LEAST_ONCE: (
        "results are written when their batch is done, without waiting for a checkpoint; what had been written after the last "
        "checkpoint was read and delivered again, so it is in Parquet twice, while SQLite shows the state, which went back with "
        "the positions, and replaces its rows."
    ),
    Mode.AT_MOST_ONCE: (
        "after a kill nothing is read again; SQLite shows the state, which went back to the last checkpoint while the positions did "
        "not, and Parquet misses what had not been delivered yet."
    ),
}


def print_table(console: Console, truth: Ledger, outputs: Mapping[str, Ledger]) -> None:
    """Print the counts of every app; long lists are cut in the middle of nothing wrong: rows that differ come first."""
    table = Table(title="page views by app", title_justify="left", title_style="bold")
    table.add_column("app")
    table.add_column("in the log", justify="right")
    for name in outputs:
        table.add_column(name, justify="right")
    table.add_column("")
    apps = sorted({*truth, *(app for ledger in outputs.values() for app in ledger)})
    apps.sort(key=lambda app: all(ledger.get(app) == truth.get(app) for ledger in outputs.values()))
    for app in apps[:MOST_ROWS]:
        _add_row(table, app, truth, outputs)
    _add_totals(table, truth, outputs)
    console.print(table)
    if len(apps) > MOST_ROWS:
        console.print(f"and {len(apps) - MOST_ROWS} more apps, which are in the totals")


def _add_row(table: Table, app: str, truth: Ledger, outputs: Mapping[str, Ledger]) -> None:
    true = truth.get(app, NOTHING)
    found = [ledger.get(app, NOTHING) for ledger in outputs.values()]
    right = all(tally == true for tally in found)
    cells = [_cell(tally.count, true.count) for tally in found]
    mark = Text("exact", "green") if right else Text("differs", "red")
    table.add_row(app, f"{true.count:,}", *cells, mark)


def _add_totals(table: Table, truth: Ledger, outputs: Mapping[str, Ledger]) -> None:
    total = sum(tally.count for tally in truth.values())
    sums = [sum(tally.count for tally in ledger.values()) for ledger in outputs.values()]
    table.add_section()
    table.add_row("all", f"{total:,}", *(_cell(value, total) for value in sums), "", style="bold")


def _cell(value: int, true: int) -> Text:
    difference = f" ({value - true:+,})" if value != true else ""
    return Text(f"{value:,}{difference}", "" if value == true else "red")


def print_reason(console: Console, mode: Mode, comparisons: Sequence[Comparison], *, kills: int) -> None:
    """Say in a sentence what is seen and why."""
    if kills:
        console.print(f"why: {_REASONS[mode]}", soft_wrap=True)
    for comparison in comparisons:
        if comparison.mixed_up:
            apps = ", ".join(comparison.mixed_up)
            console.print(
                f"{comparison.output}: right numbers but other events in {apps}", style="red", soft_wrap=True
            )
