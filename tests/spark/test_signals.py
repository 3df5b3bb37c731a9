"""Ctrl-C and SIGTERM, on real processes: sent to the driver and to everything it has started in its group, as a terminal does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from child_driver import ChildDriver
from ledger import Ledger

from penstock.ids import NO_CHECKPOINT
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S

pytestmark = pytest.mark.spark


PROGRAM = """
import time
import penstock as ps

def job(spark, root, name):
    class Held(ps.KeyedProcess):
        n = ps.ValueState("long", default=0)

        def process(self, key, rows, ctx):
            while key == "held":
                (root / f"{name}-holds").touch()
                time.sleep(0.1)
            self.n.value += len(rows)
            yield key, self.n.value

    job = ps.Job(name, storage=root / "store", checkpoint=ps.Checkpointing(interval="1h"))
    rows = job.read(ps.sources.PartitionedLog(root / "log").read(spark), uid="log").key_by("app")
    counts = rows.process(Held(), schema="app string, n long", uid="counts")
    counts.write_to(ps.sinks.SQLite(root / "out.db", table=name.replace("-", "_"), mode="upsert", key=["app"]), uid="out")
    return job
"""
STAYING = "import signal; signal.pause()\n"
"""Until the signal: whoever looks late, on a slow machine, finds its Java all the same."""
STARTING = f"from penstock.spark.local_session import local_session\nlocal_session('signals')\n{STAYING}"
STARTING_JOB = f"from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()\n{STAYING}"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_S} s"
        time.sleep(0.1)


@contextmanager
def program(*arguments: object, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own."""
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def javas(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [one for one in psutil.Process(process.pid).children(recursive=True) if is_java(one)]
    return []


def is_java(process: psutil.Process) -> bool:
    """Beside it there may be a zombie for good: `spark-class` can become Java before its subshell has ended, and Java reaps no stranger."""
    with suppress(psutil.NoSuchProcess):  # a zombie has no command line
        return "pyspark-shell" in " ".join(process.cmdline())
    return False


def last_checkpoint(storage: LocalStorage) -> int:
    """The newest one that the first run has had, by what it said last."""
    return int(json.loads(storage.get("runs/1.alive"))["completed"])


def test_signals_stop_a_job(tmp_path: Path, child_driver: ChildDriver) -> None:
    """The first signal stops with a last checkpoint, which the run's record names; the second ends it now; Java stays quiet."""
    ledger, until, said = Ledger(tmp_path), child_driver.until, child_driver.said
    ledger.append(0, "a", 3)

    def storage(name: str) -> LocalStorage:
        return LocalStorage(tmp_path / "store" / name)

    child_driver.run(tmp_path, PROGRAM, "int-once", "term-once", "int-twice", "term-twice")
    for name, number in (("int-once", signal.SIGINT), ("term-once", signal.SIGTERM)):
        until(lambda name=name: storage(name).names("spark/1/commits"), f"the first batch of {name}")
        child_driver.signal(number)
        until(lambda name=name: f"{name} stopped" in said(), f"the end of {name}")
        assert last_checkpoint(storage(name)) != NO_CHECKPOINT
        assert ledger.counts(name.replace("-", "_")) == {"a": 3}
    ledger.append(1, "held", 1)
    for name, number in (("int-twice", signal.SIGINT), ("term-twice", signal.SIGTERM)):
        until((tmp_path / f"{name}-holds").exists, f"the first batch of {name}")
        child_driver.signal(number)
        until(lambda: "stopping with a last checkpoint" in said()[-1], "what the first signal does")
        child_driver.signal(number)
        if number == signal.SIGINT:
            until(lambda: "int-twice interrupted" in said(), "the end of int-twice")
    java = javas(child_driver.process)
    assert child_driver.process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert last_checkpoint(storage("int-twice")) == NO_CHECKPOINT
    assert last_checkpoint(storage("term-twice")) == NO_CHECKPOINT
    until(lambda: not any(one.is_running() for one in java), "the end of Java")
    assert [line for line in said() if line.startswith(("\tat ", "Caused by", "Traceback"))] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts(tmp_path: Path, number: signal.Signals) -> None:
    """It ends the process at once, in a script and in `penstock run`, and Java with it."""
    script, job_file = tmp_path / "script.py", tmp_path / "job_file.py"
    script.write_text(STARTING)
    job_file.write_text(STARTING_JOB)
    command = ("-c", "from penstock.cli import main; main()", "run", job_file)
    with (
        program(script, output=tmp_path / "script.out") as first,
        program(*command, output=tmp_path / "command.out") as second,
    ):
        found = []
        for process in (first, second):
            until(lambda process=process: javas(process) or process.poll() is not None, "Java")
            assert process.poll() is None, [path.read_text() for path in tmp_path.glob("*.out")]
            found += javas(process)
            os.killpg(process.pid, number)
        for process in (first, second):
            assert process.wait(PATIENCE_S) in (-number, 1)
        until(lambda: not any(one.is_running() for one in found), "the end of Java")
