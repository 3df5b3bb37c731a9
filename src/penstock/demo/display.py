"""What a person sees while the demonstration runs: a live panel on a terminal, plain lines anywhere else. Supervisor."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.demo.settings import DemoSettings, Moved, Started
from penstock.wording import counted

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

    def __init__(self, settings: DemoSettings, console: Console, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._console = console
        self._clock = clock
        self._started = clock.monotonic()
        self._scene = Scene()
        self._plain_shown = (0.0, "")
        self._live = Live(get_renderable=self._panel, console=console, refresh_per_second=REFRESH_PER_S)

    def watching(self) -> AbstractContextManager[object]:
        """Show the panel as long as this context lasts."""
        return self._live if self._console.is_terminal else nullcontext()

    def note(self, text: str, style: str = "") -> None:
        """Print a line that stays on the screen."""
        stamp = (f"{self._elapsed_s():6.1f} s  ", "dim")
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

    def _elapsed_s(self) -> float:
        return self._clock.monotonic() - self._started

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
        return line.append(f"   {self._elapsed_s():.0f} s", style="dim")

    def _print_plain(self) -> None:
        """Without a terminal: a line now and then, when something has changed."""
        scene = self._scene
        line = (
            f"read {scene.read:,}, counted {scene.visible:,} of {self._settings.events:,}; run {scene.run}, "
            f"batch {_number(scene.batch)}, last checkpoint {_number(scene.checkpoint)}, kills {scene.kills}"
        )
        shown_at, shown = self._plain_shown
        due = self._elapsed_s() - shown_at >= PLAIN_EVERY_S and line != shown and scene.batch >= 0
        if due and not self._console.is_terminal:
            self._plain_shown = (self._elapsed_s(), line)
            self.note(line)


def _number(value: int) -> str:
    return str(value) if value >= 0 else "-"
