"""The demonstration from beginning to end; `penstock demo` calls it. Supervisor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from rich.console import Console

from penstock.demo.display import DemoDisplay
from penstock.demo.settings import DemoSettings, checked, prepare_folder
from penstock.demo.supervisor import DemoSupervisor
from penstock.demo.truth import (
    compare,
    counts_in_database,
    counts_in_files,
    print_reason,
    print_table,
    true_counts,
    verdict,
)
from penstock.sources import PartitionedLog
from penstock.wording import counted

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


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it and print the verdict as the last line; true when the mode's promise was kept."""
    checked(settings)
    prepare_folder(settings.root)
    words = settings.mode.value.replace("-", " ")
    console.print(
        f"Penstock demonstration, {words}: page views by app, driver killed {counted(settings.kills, 'time')}",
        style="bold",
    )
    console.print(f"everything is in {settings.folder}", style="dim", soft_wrap=True)
    display = DemoDisplay(settings, console)
    supervisor = DemoSupervisor(settings, display)
    with display.watching():
        log = write_events(settings, display.written)
        supervisor.run()
        display.finished()
    return _judge(settings, console, log, [str(kill) for kill in supervisor.kills])


def _judge(settings: DemoSettings, console: Console, log: PartitionedLog, kills: list[str]) -> bool:
    truth = true_counts(log)
    outputs = {
        "SQLite": counts_in_database(settings.database_path),
        "Parquet": counts_in_files(settings.files_path),
    }
    comparisons = [compare(name, truth, found) for name, found in outputs.items()]
    kept = len(kills) == settings.kills and all(one.keeps(settings.mode) for one in comparisons)
    console.print()
    print_table(console, truth, outputs)
    for kill in kills:
        console.print(kill, soft_wrap=True)
    print_reason(console, settings.mode, comparisons, kills=len(kills))
    line = verdict(settings.mode, settings.events, comparisons)
    console.print(line, style="bold green" if kept else "bold red", soft_wrap=True, highlight=False)
    return kept
