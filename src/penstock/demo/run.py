"""The demonstration from beginning to end; `penstock demo` calls it. Supervisor."""

from __future__ import annotations

from rich.console import Console

from penstock.demo.display import Display
from penstock.demo.events import write_events
from penstock.demo.report import print_reason, print_table
from penstock.demo.settings import DemoSettings, checked, prepare_folder
from penstock.demo.supervisor import Supervisor
from penstock.demo.truth import compare, counts_in_database, counts_in_files, true_counts, verdict
from penstock.sources import PartitionedLog
from penstock.wording import counted


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
    display = Display(settings, console)
    supervisor = Supervisor(settings, display)
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
