"""Drivers as child processes with all that hangs on them: JVM, executors, Python workers. Start, kill, stop, wake, wait."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import driver
import msgspec
import psutil
import pytest
from known_truth import Site

import penstock
from services.patience import PATIENCE_S

MARK = "PENSTOCK_CHAOS_FAMILY"
POLL_S = 0.02
TAIL_CHARACTERS = 6_000
GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


class Driver:
    """One driver process. Its family is found by a mark in the environment, so orphans are found as well."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self._outcomes_path = log_path.with_suffix(".outcomes")
        self._jobs = 0
        self._mark = secrets.token_hex(8)
        source_root = str(Path(penstock.__file__).parents[1])
        path = os.pathsep.join(filter(None, [source_root, os.environ.get("PYTHONPATH", "")]))
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(driver.__file__))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, MARK: self._mark},
                start_new_session=True,
            )

    def run(self, site: Site, *, stays: bool = False, **settings: Any) -> None:
        """Tell it to run the job at this site, and then to end, or to stay for another one."""
        order = driver.Settings(
            root=str(site.root), outcomes=str(self._outcomes_path) if stays else None, **settings
        )
        self._jobs += 1
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(order) + b"\n")
        self.process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        """Every living process of this driver, itself included if it lives."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self._mark]

    def executors(self) -> list[psutil.Process]:
        return [one for one in self.family() if "CoarseGrainedExecutorBackend" in " ".join(_command(one))]

    def jvm(self) -> psutil.Process | None:
        """Its Java; None while a shell is still about to become it."""
        with suppress(*GONE):
            own = (one for one in self.family() if one.ppid() == self.process.pid and one.name() == "java")
            return next(own, None)
        return None

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def waits(self) -> bool:
        """Whether the last job it was told to run has ended, and it stays for another one."""
        return not self.ended and len(self._outcomes()) == self._jobs

    @property
    def outcome(self) -> int | None:
        """The exit code of the last job, or of the process."""
        return self._outcomes()[-1] if self.waits else self.process.poll()

    def _outcomes(self) -> list[int]:
        return (
            [int(line) for line in self._outcomes_path.read_text().splitlines()]
            if self._outcomes_path.exists()
            else []
        )

    def kill(self) -> None:
        """`kill -9` of the Python driver alone; its JVM is left to notice."""
        self.process.kill()
        self.process.wait()

    def signal_family(self, number: signal.Signals) -> None:
        """Send a signal to all of it, as when the whole machine stops, wakes up or dies. The driver first."""
        members = sorted(self.family(), key=lambda one: one.pid != self.process.pid)
        for member in members:
            with suppress(*GONE):
                member.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def wait_until_gone(self) -> list[psutil.Process]:
        """Wait for what a dead driver left behind; returns what would not go."""
        return [] if until(lambda: not self.family()) else self.family()

    def tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-TAIL_CHARACTERS:]

    def close(self) -> None:
        """End whatever is left, by process id."""
        for member in self.family():
            with suppress(*GONE):
                member.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Drivers:
    """All drivers of a test."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.all: list[Driver] = []

    def start(self, **settings: Any) -> Driver:
        self.all.append(self._new())
        self.all[-1].run(self._site, **settings)
        return self.all[-1]

    def run(self, site: Site, **settings: Any) -> Driver:
        """A job at another site, in the last driver if that waits for one: it has its Spark already."""
        if not self.all or not self.all[-1].waits:
            self.all.append(self._new())
        self.all[-1].run(site, stays=True, **settings)
        return self.all[-1]

    def _new(self) -> Driver:
        return Driver(self._site.root / f"driver-{len(self.all) + 1}.log")

    def wait_for(
        self,
        what: str,
        condition: Callable[[], object],
        alive: Driver | None = None,
        *,
        poll_s: float = POLL_S,
    ) -> None:
        """Wait for a condition; fail with the log of the driver that should bring it about."""
        met = until(lambda: condition() or (alive is not None and alive.ended), poll_s=poll_s)
        if not met or not condition():
            one = alive or self.all[-1]
            ended = f"ended with {one.process.returncode}" if one.ended else "is running"
            pytest.fail(
                f"waited in vain for {what}; driver {one.log_path.name} {ended}:\n{one.tail()}", pytrace=False
            )

    def wait_for_end(self, one: Driver) -> int:
        """The exit code."""
        self.wait_for(f"the end of {one.log_path.name}", lambda: one.ended)
        return one.process.returncode


@contextmanager
def drivers_of(site: Site) -> Iterator[Drivers]:
    """Drivers that are all ended at the end."""
    drivers = Drivers(site)
    try:
        yield drivers
    finally:
        for one in drivers.all:
            one.close()


def until(condition: Callable[[], object], *, poll_s: float = POLL_S) -> bool:
    """Wait until the condition holds; false when patience ended."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_s)
    return True


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (*GONE, OSError):
        return None


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except GONE:
        return []
