"""The input of the demonstration, and its results compared with the truth, which is computed from the log alone. Command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.config import Mode
from penstock.demo.settings import TABLE, DemoSettings
from penstock.sources import PartitionedLog

SCHEMA = "app string, page string, user long, event long"
_PIECE_ROWS = 65_536
_PAGES = 200
_USERS = 50_000
_SEED = 20_240_229


def write_events(
    settings: DemoSettings, on_progress: Callable[[int], None] = lambda _: None
) -> PartitionedLog:
    """Write all page views; `event` numbers them from 0, so that a single one that is lost or doubled shows."""
    log = PartitionedLog(settings.log_path, SCHEMA, settings.partitions)
    rng = np.random.default_rng(_SEED)
    written = 0
    for piece in range(-(-settings.events // _PIECE_ROWS)):
        rows = min(_PIECE_ROWS, settings.events - written)
        for partition, part in enumerate(
            np.array_split(np.arange(written, written + rows), settings.partitions)
        ):
            if len(part):
                log.append(
                    (partition + piece) % settings.partitions,
                    _page_views(part, settings.apps, rng),
                    sync=False,
                )
        written += rows
        on_progress(written)
    log.end_offsets()  # from here on every row is on disk
    return log


def _page_views(events: np.ndarray, apps: int, rng: np.random.Generator) -> pa.Table:
    """A few apps get most of the views, as in life."""
    weights = 1 / np.arange(1, apps + 1)
    app = rng.choice(apps, size=len(events), p=weights / weights.sum())
    page = rng.integers(_PAGES, size=len(events))
    return pa.table(
        {
            "app": _named("app-", app, apps),
            "page": _named("/page/", page, _PAGES),
            "user": pa.array(rng.integers(_USERS, size=len(events))),
            "event": pa.array(events),
        }
    )


def _named(prefix: str, numbers: np.ndarray, count: int) -> pa.Array:
    width = len(str(count - 1))
    names = pa.array([f"{prefix}{number:0{width}d}" for number in range(count)])
    return names.take(pa.array(numbers))


@dataclass(frozen=True)
class Checksums:
    """How many events of an app, and two checksums over which ones."""

    count: int = 0
    event_sum: int = 0
    event_xor: int = 0


NOTHING = Checksums()
Ledger = Mapping[str, Checksums]


def true_counts(log: PartitionedLog) -> Ledger:
    """The correct counts, computed from the log alone."""
    table = log.table().combine_chunks()
    apps = table.column("app").combine_chunks().dictionary_encode()
    codes = apps.indices.to_numpy(zero_copy_only=False)
    events = table.column("event").to_numpy()
    return {
        app: Checksums(len(own), int(own.sum()), int(np.bitwise_xor.reduce(own)))
        for code, app in enumerate(apps.dictionary.to_pylist())
        for own in [events[codes == code]]
    }


def counts_in_database(path: Path) -> Ledger:
    """What a reader of the SQLite table sees."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(f"SELECT app, pv, event_sum, event_xor FROM {TABLE}").fetchall()  # noqa: S608 - a constant
    return {app: Checksums(*numbers) for app, *numbers in rows}


def counts_in_files(path: Path) -> Ledger:
    """What the rows of all Parquet files add up to."""
    table = ds.dataset(path, format="parquet").to_table() if any(path.glob("*.parquet")) else pa.table({})
    ledger: dict[str, Checksums] = {}
    for row in table.to_pylist():
        before = ledger.get(row["app"], NOTHING)
        ledger[row["app"]] = Checksums(
            before.count + row["pv"], before.event_sum + row["event_sum"], before.event_xor ^ row["event_xor"]
        )
    return ledger


@dataclass(frozen=True)
class Comparison:
    """One output beside the truth."""

    output: str
    counted: int
    lost: int
    doubled: int
    mixed_up: tuple[str, ...]
    """Apps with the right number of events, but not the right events: some were lost and as many doubled."""

    @property
    def off_by(self) -> int:
        """How far it is from exact."""
        return self.lost + self.doubled

    def keeps(self, mode: Mode) -> bool:
        """Whether the promise of the mode holds for this output."""
        nothing_lost = not self.lost and not self.mixed_up
        nothing_doubled = not self.doubled and not self.mixed_up
        match mode:
            case Mode.EXACTLY_ONCE:
                return nothing_lost and nothing_doubled
            case Mode.AT_LEAST_ONCE:
                return nothing_lost
            case Mode.AT_MOST_ONCE:
                return nothing_doubled


def compare(output: str, truth: Ledger, found: Ledger) -> Comparison:
    """Compare app by app, so that too many of one cannot hide too few of another."""
    differences = [
        found.get(app, NOTHING).count - truth.get(app, NOTHING).count for app in {**truth, **found}
    ]
    return Comparison(
        output,
        counted=sum(tally.count for tally in found.values()),
        lost=-sum(difference for difference in differences if difference < 0),
        doubled=sum(difference for difference in differences if difference > 0),
        mixed_up=tuple(
            sorted(
                app
                for app, tally in found.items()
                if _same_number_other_events(truth.get(app, NOTHING), tally)
            )
        ),
    )


def _same_number_other_events(true: Checksums, found: Checksums) -> bool:
    return true.count == found.count and true != found


def verdict(mode: Mode, events: int, comparisons: Sequence[Comparison]) -> str:
    """The last line: the output that is furthest from exact speaks for all."""
    worst = max(comparisons, key=lambda one: one.off_by)
    words = mode.value.replace("-", " ")
    return f"{words}: {events} in, {worst.counted} counted, {worst.lost} lost, {worst.doubled} doubled"


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
