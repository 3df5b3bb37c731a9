"""Starts the driver, watches it, and starts it again when it was killed. Runs in the process of the command line."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

import penstock
from penstock.config import Mode
from penstock.demo.display import DemoDisplay
from penstock.demo.job import TABLE
from penstock.demo.settings import (
    DemoSettings,
    DriverFailed,
    Ending,
    Finished,
    Killed,
    Message,
    Moved,
    Started,
    read_message,
)
from penstock.errors import JobFailedError
from penstock.testing.faulty_storage import KillMoment

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
        """Follow a driver until it is gone; returns what it said of its end."""
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
