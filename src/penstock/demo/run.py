"""The demonstration from beginning to end; `penstock demo` calls it. Process of the command line.

It writes the input, starts the driver, watches it, starts it again after each planned kill, and compares the results with the truth.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console

import penstock
from penstock.config import Mode
from penstock.demo.display import DemoDisplay
from penstock.demo.settings import (
    TABLE,
    DemoSettings,
    DriverFailed,
    Ending,
    Finished,
    Killed,
    Message,
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
)
from penstock.errors import JobFailedError
from penstock.sources import PartitionedLog
from penstock.testing.faulty_storage import KillMoment
from penstock.wording import counted

POLL_S = 0.2
PIPE_GRACE_S = 10.0


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


class DemoSupervisor:
    """Keeps one driver running until the job is finished."""

    def __init__(self, settings: DemoSettings, display: DemoDisplay) -> None:
        self._settings = settings
        self._display = display
        self.kills: list[Kill] = []

    def run(self) -> None:
        """Return when the job is finished; raises `JobFailedError` when a driver ends in a way that was not planned."""
        number = 0
        while not self._run_driver(number):
            number += 1

    def _run_driver(self, number: int) -> bool:
        """Run one driver to its end; true when it finished the job, false when it died as planned."""
        log_path = self._settings.root / f"driver-{number + 1}.log"
        with log_path.open("wb") as log:
            driver = self._start(number, log)
            try:
                ending = self._watch(driver)
            finally:
                _end_group(driver)
        match ending:
            case Finished():
                return True
            case Killed() if driver.returncode == -signal.SIGKILL:
                return False
        raise _unplanned(driver.returncode, ending, log_path)

    def _start(self, number: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a driver at the head of a process group, so that its JVM can be ended with it."""
        self._display.driver_starts(number)
        settings = msgspec.json.encode(self._settings).decode()
        source_root = str(Path(penstock.__file__).parents[1])
        path = os.pathsep.join(filter(None, [source_root, os.environ.get("PYTHONPATH", "")]))
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "penstock.demo.worker", settings, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )

    def _watch(self, driver: subprocess.Popen[bytes]) -> Ending | None:
        """Follow a driver until it is gone; returns its last message about the end."""
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        listener = threading.Thread(target=_listen, args=(driver, messages), daemon=True)
        listener.start()
        ending: Ending | None = None
        while driver.poll() is None or not messages.empty():
            with contextlib.suppress(queue.Empty):
                ending = self._take(messages.get(timeout=POLL_S)) or ending
            self._display.visible(self._visible())
        _end_group(driver)  # what is left of it holds the pipe open
        listener.join(PIPE_GRACE_S)
        while not messages.empty():
            ending = self._take(messages.get()) or ending
        return ending

    def _take(self, message: Message) -> Ending | None:
        """Show it; returns it if it is about the end. A driver may still say how far it is when one of its threads is about to kill it."""
        match message:
            case Started():
                self._display.driver_started(message, self._came_back(message.restored_from))
            case Moved():
                self._display.moved(message)
            case Killed():
                self.kills.append(Kill(message.moment, message.checkpoint, self._settings.mode))
                self._display.driver_killed(str(self.kills[-1]), len(self.kills))
            case Finished() | DriverFailed():
                pass
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


def _listen(driver: subprocess.Popen[bytes], messages: queue.SimpleQueue[Message]) -> None:
    assert driver.stdout is not None
    for line in driver.stdout:
        message = read_message(line)
        if message is not None:
            messages.put(message)


def _end_group(driver: subprocess.Popen[bytes]) -> None:
    """End whatever is left of a driver. A JVM notices the death of its Python by itself, but not at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    if driver.stdin is not None:
        driver.stdin.close()


def _unplanned(returncode: int, ending: Ending | None, log: Path) -> JobFailedError:
    why = ending.error if isinstance(ending, DriverFailed) else f"the driver ended with code {returncode}"
    return JobFailedError(f"the demonstration failed: {why}; more in {log}", returncode=returncode)


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
