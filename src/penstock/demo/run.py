"""The demonstration from beginning to end; `penstock demo` calls it. Process of the command line.

It writes the input, has the driver kept alive as `penstock keep-alive` does, shows what the drivers say, and compares the results with
the truth. Each driver kills itself at a planned moment, and the supervisor starts the next one.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import IO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.child_process import ChildProcess
from penstock.clock import Stopwatch
from penstock.config import Mode
from penstock.demo.settings import (
    TABLE,
    DemoSettings,
    DriverFailed,
    Ending,
    Finished,
    Killed,
    Moved,
    Started,
    checked,
    prepare_folder,
    read_message,
)
from penstock.demo.truth import (
    compare,
    counts_in_database,
    counts_in_files,
    print_reason,
    print_table,
    true_counts,
    verdict,
    write_events,
)
from penstock.errors import JobFailedError
from penstock.sources import PartitionedLog
from penstock.testing.faulty_storage import KillMoment
from penstock.wording import counted

POLL_S = 0.2


# ── what a person sees: a live panel on a terminal, plain lines anywhere else ──────────────────────

BAR_COLUMNS = 40
PLAIN_EVERY_S = 2.0
REFRESH_PER_S = 8


@dataclass
class Scene:
    """The values that the panel shows."""

    doing: str = "writing page views"
    written: int = 0
    read: int = 0
    visible: int = 0
    batch: int = -1
    checkpoint: int = -1
    run: int = 0
    kills: int = 0


class DemoDisplay:
    """Follows a demonstration. Notes stay on the screen; the panel below them moves."""

    def __init__(self, settings: DemoSettings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self._watch = Stopwatch()
        self._scene = Scene()
        self._plain_shown = (0.0, "")
        self._live = Live(get_renderable=self._panel, console=console, refresh_per_second=REFRESH_PER_S)

    def watching(self) -> AbstractContextManager[object]:
        """Show the panel as long as this context lasts."""
        return self._live if self._console.is_terminal else nullcontext()

    def note(self, text: str, style: str = "") -> None:
        """Print a line that stays on the screen."""
        stamp = (f"{self._watch.seconds:6.1f} s  ", "dim")
        self._console.print(Text.assemble(stamp, (text, style)), soft_wrap=True)

    # ── what happens ───────────────────────────────────────────────────────────────────────────

    def written(self, events: int) -> None:
        """More page views are in the log."""
        self._scene.written = events
        if events == self._settings.events:
            self.note(f"{events:,} page views written, {counted(self._settings.partitions, 'partition')}")

    def driver_starts(self, number: int) -> None:
        """A driver process begins; Spark takes a few seconds."""
        self._scene.doing = "starting Spark" if number == 0 else "starting Spark again"
        self._scene.batch = -1
        if not self._console.is_terminal:
            self.note(self._scene.doing)

    def driver_started(self, message: Started, where: str) -> None:
        """Show that the job runs, and from where it resumed."""
        self._scene.doing = "counting"
        self._scene.run, self._scene.read = message.run, message.read
        self._scene.checkpoint = message.restored_from
        self.note(f"run {message.run} {where}", style="green" if message.run > 1 else "")

    def moved(self, message: Moved) -> None:
        """A batch or a checkpoint was finished."""
        self._scene.batch, self._scene.checkpoint, self._scene.read = (
            message.batch,
            message.checkpoint,
            message.read,
        )

    def visible(self, events: int | None) -> None:
        """What a reader of SQLite sees now."""
        if events is not None:
            self._scene.visible = events
        self._print_plain()

    def driver_killed(self, what: str, kills: int) -> None:
        """Show that the driver was killed as planned."""
        self._scene.kills, self._scene.doing = kills, "killed"
        self.note(what, style="bold red")

    def finished(self) -> None:
        """Show that the job has finished."""
        self._scene.doing = "done"
        self.note(f"finished after {counted(self._scene.kills, 'kill')}")

    # ── how it looks ───────────────────────────────────────────────────────────────────────────

    def _panel(self) -> RenderableType:
        scene, total = self._scene, self._settings.events
        bars = Table.grid(padding=(0, 2))
        bars.add_column(style="bold")
        bars.add_column(width=BAR_COLUMNS)
        bars.add_column(justify="right")
        for name, value in (("in", scene.written), ("read", scene.read), ("counted", scene.visible)):
            share = f"{value:>{len(f'{total:,}')},} of {total:,}"
            bars.add_row(name, ProgressBar(total=total, completed=value, width=BAR_COLUMNS), share)
        return Padding(Group(bars, self._facts()), (1, 0, 0, 1))

    def _facts(self) -> Text:
        scene = self._scene
        facts = [
            ("run", str(scene.run or "-")),
            ("batch", _number(scene.batch)),
            ("last checkpoint", _number(scene.checkpoint)),
            ("kills", f"{scene.kills} of {self._settings.kills}"),
        ]
        line = Text(f"{scene.doing}  ", style="cyan")
        for name, value in facts:
            line.append(f"  {name} ", style="dim")
            line.append(value, style="bold")
        return line.append(f"   {self._watch.seconds:.0f} s", style="dim")

    def _print_plain(self) -> None:
        """Without a terminal: a line now and then, when something has changed."""
        scene = self._scene
        line = (
            f"read {scene.read:,}, counted {scene.visible:,} of {self._settings.events:,}; run {scene.run}, "
            f"batch {_number(scene.batch)}, last checkpoint {_number(scene.checkpoint)}, kills {scene.kills}"
        )
        shown_at, shown = self._plain_shown
        due = self._watch.seconds - shown_at >= PLAIN_EVERY_S and line != shown and scene.batch >= 0
        if due and not self._console.is_terminal:
            self._plain_shown = (self._watch.seconds, line)
            self.note(line)


def _number(value: int) -> str:
    return str(value) if value >= 0 else "-"


# ── the drivers ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Kill:
    """One kill, and where the next driver went back to."""

    moment: KillMoment
    checkpoint: int
    mode: Mode
    back_to: int | None = None

    @property
    def came_back(self) -> str:
        """Where the next driver began, in words."""
        if self.back_to is None or self.back_to < 0:
            return "began from the start"
        text = f"went back to checkpoint {self.back_to}"
        if self.mode is Mode.AT_MOST_ONCE:
            return f"{text} and skipped what had been read since"
        if self.back_to == self.checkpoint:
            return f"{text} and committed its output"
        return text

    def __str__(self) -> str:
        text = f"driver killed {self.moment.value} of checkpoint {self.checkpoint}"
        if self.back_to is not None:
            text += f"; started again, {self.came_back}"
        return text


class DemoDrivers:
    """The drivers of the demonstration, one after the other, under a supervisor."""

    def __init__(self, settings: DemoSettings, display: DemoDisplay) -> None:
        self._settings = settings
        self._display = display
        self.kills: list[Kill] = []

    def run(self) -> None:
        """Return when the job is finished; raises `JobFailedError` when it ends in another way."""
        log_path = self._settings.root / "driver.log"
        ending: Ending | None = None
        self._display.driver_starts(0)
        with log_path.open("wb") as log, self._start(log) as supervisor:
            for line in supervisor.lines(POLL_S):
                ending = self._take(line or b"") or ending
                self._display.visible(self._visible())
            status = supervisor.wait()
        if status or not isinstance(ending, Finished):
            why = ending.error if isinstance(ending, DriverFailed) else f"the driver ended with code {status}"
            raise JobFailedError(f"the demonstration failed: {why}; more in {log_path}", returncode=status)

    def _start(self, log: IO[bytes]) -> ChildProcess:
        """Start the supervisor at the head of a process group, which its drivers end with themselves if this process dies."""
        kills = self._settings.kills
        restart = f"fixed-delay:attempts={kills},delay=10ms" if kills else "none"
        supervisor = ["-m", "penstock", "keep-alive", "--restart", restart, "--"]
        python = [sys.executable, "-P"]
        return ChildProcess([*python, *supervisor, *python, *self._driver()], log=log, start_new_session=True)

    def _driver(self) -> list[str]:
        return ["-m", "penstock.demo.worker", msgspec.json.encode(self._settings).decode()]

    def _take(self, line: bytes) -> Ending | None:
        """Show what a driver says; returns it if it is about the end.

        A driver may still say how far it is when one of its threads is about to kill it.
        """
        message = read_message(line)
        match message:
            case Started():
                self._display.driver_started(message, self._came_back(message.restored_from))
            case Moved():
                self._display.moved(message)
            case Killed():
                self.kills.append(Kill(message.moment, message.checkpoint, self._settings.mode))
                self._display.driver_killed(str(self.kills[-1]), len(self.kills))
                self._display.driver_starts(len(self.kills))
        return message if isinstance(message, Ending) else None

    def _came_back(self, restored_from: int) -> str:
        if not self.kills:
            return "begins"
        self.kills[-1].back_to = restored_from
        return self.kills[-1].came_back

    def _visible(self) -> int | None:
        """What a reader of the output sees at this moment; None when it cannot tell."""
        path = self._settings.database_path
        with (
            contextlib.suppress(sqlite3.Error),
            closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database,
        ):
            found = database.execute(f"SELECT sum(pv) FROM {TABLE}").fetchone()[0]  # noqa: S608 - a constant
            return int(found or 0)
        return None


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
    drivers = DemoDrivers(settings, display)
    with display.watching():
        log = write_events(settings, display.written)
        drivers.run()
        display.finished()
    return _judge(settings, console, log, [str(kill) for kill in drivers.kills])


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
