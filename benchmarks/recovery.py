"""From `kill -9` of a driver to the next committed row, beside the cold start of a Spark that does next to nothing. Driver.

The job is kept alive by `penstock run --keep-alive`, and has state. The other side is a new process each time: plain PySpark, a session and
the first batch of a `foreachBatch` that writes the same rows. The archive of Spark's classes is there, as it is a minute after the first
start of a job that is kept alive; a third side goes without it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import kept_job
import psutil
from bench import Bench
from data import Clicks
from measure import Found

from penstock.spark import java
from penstock.spark.java import find_java

ROUNDS = 3
ROWS, KEYS = 1_000, 200_000
LOOK_EVERY_S = 0.005
PATIENCE_S = 600.0


def measure(bench: Bench) -> Found:
    """Median seconds; the sides take turns."""
    _make_archive(bench)
    seconds: dict[str, list[float]] = {"empty_spark": [], "without_archive": [], "penstock": []}
    with ExitStack() as stack:
        kept = {
            side: stack.enter_context(_kept(bench, stack.enter_context(bench.scratch()), archive=archive))
            for side, archive in (("without_archive", False), ("penstock", True))
        }
        for _ in range(bench.size(ROUNDS, 1)):
            seconds["empty_spark"].append(_empty_spark_s(bench))
            for side, one in kept.items():
                seconds[side].append(one.recovery_s())
            latest = ", ".join(f"{side} {times[-1]:.2f} s" for side, times in seconds.items())
            bench.console.print(f"  {latest}, load {os.getloadavg()[0]:.1f}")
    found = {f"{side}_s": statistics.median(times) for side, times in seconds.items()}
    return {**found, "keys": bench.size(KEYS, 1_000), "ratio": found["penstock_s"] / found["empty_spark_s"]}


def _make_archive(bench: Bench) -> None:
    java.archive_options(find_java(), "")
    making = java.make_if_missing()
    if making is not None:
        bench.console.print("  making the archive of Spark's classes, once")
        making.wait()


class _Kept:
    """A job that is kept alive."""

    def __init__(self, root: Path, clicks: Clicks, supervisor: subprocess.Popen[bytes]) -> None:
        self._root, self._clicks, self._supervisor = root, clicks, supervisor

    def recovery_s(self) -> float:
        """Kill the driver, give it a batch to do, and wait for its rows."""
        driver = max(psutil.Process(self._supervisor.pid).children(), key=lambda one: one.create_time())
        driver.send_signal(signal.SIGKILL)
        began = time.monotonic()
        driver.wait(PATIENCE_S)
        before = _committed(self._root)
        self._clicks.uniform(ROWS, KEYS)
        _wait_for_more(self._root, before)
        return time.monotonic() - began


@contextmanager
def _kept(bench: Bench, root: Path, *, archive: bool) -> Iterator[_Kept]:
    clicks = Clicks(root)
    clicks.new_keys(bench.size(KEYS, 1_000), bench.size(KEYS, 1_000))
    environment = _environment(root) | ({} if archive else {java.SWITCH: "off"})
    command = [sys.executable, "-m", "penstock", "run", "--keep-alive", kept_job.__file__]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as supervisor:
        try:
            _wait_for_more(root, 0)
            yield _Kept(root, clicks, supervisor)
        finally:
            supervisor.terminate()


def _empty_spark_s(bench: Bench) -> float:
    with bench.scratch() as root:
        Clicks(root).uniform(ROWS, KEYS)
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, kept_job.__file__],
            env=_environment(root),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as program:
            try:
                _wait_for_more(root, 0)
                return time.monotonic() - began
            finally:
                program.kill()


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, kept_job.ROOT: str(root), "SPARK_LOCAL_IP": "127.0.0.1"}


def _committed(root: Path) -> int:
    return len(list((root / "out").glob("*.parquet")))


def _wait_for_more(root: Path, before: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while _committed(root) <= before:
        if time.monotonic() > until:
            raise RuntimeError(f"no row was committed within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
