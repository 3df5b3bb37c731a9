"""A job that runs in another process is asked for checkpoints, savepoints and its end, through its storage alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps
from penstock.checkpoint.metadata import checkpoint_ids
from penstock.requests.request_client import ask, outcome
from penstock.requests.request_files import Kind
from penstock.savepoint.manifest import MANIFEST
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S, tries

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, threading
from pathlib import Path
from pyspark.sql import functions as F
import penstock as ps
from penstock.savepoint import make
from penstock.spark.local_session import local_session

root, hangs, *names = Path(sys.argv[1]), sys.argv[2] == "hangs", *sys.argv[3:]

def job(name):
    job = ps.Job(name, storage=root / "store", checkpoint=ps.Checkpointing(interval="1h", min_pause="1h"))
    rows = job.read(ps.sources.PartitionedLog(root / "log").read(spark), uid="log").key_by("app")
    table = ps.sinks.SQLite(root / "out.db", table=name, mode="upsert", key=["app"])
    rows.aggregate(n=F.count("*"), uid="counts").write_to(table, uid="out")
    return job

def windows(name):
    job = ps.Job(name, storage=root / "store", checkpoint=ps.Checkpointing(interval="1h"))
    rows = job.read(ps.sources.PartitionedLog(root / "timed").read(spark), uid="log", event_time="at", idle_after=None)
    panes = rows.key_by("app").window(ps.windows.tumbling("1h")).aggregate(n=F.count("*"), uid="panes")
    panes.select("app", "n").write_to(ps.sinks.SQLite(root / "out.db", table=name, mode="append"), uid="out")
    return job

if hangs:
    def create(*given, **named):
        (root / "hangs").touch()
        threading.Event().wait()
    make.create_beside = create

spark = local_session("asked")
for name in names:
    made = windows(name) if name == "drained" else job(name)
    print(name, made.run().status, flush=True)
"""


@contextmanager
def program(root: Path, *names: str, hangs: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Runs these jobs one after the other, in a process group of its own."""
    script = root / "program.py"
    script.write_text(PROGRAM)
    with (root / "output").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, str(script), str(root), "hangs" if hangs else "-", *names],
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


def penstock(*arguments: object) -> subprocess.Popen[str]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def asked(*arguments: object, code: int = 0) -> str:
    """What the command prints; for one that fails, what it says about it."""
    process = penstock(*arguments)
    printed, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return printed.strip() if code == 0 else said


def until(condition: object, what: str, root: Path) -> None:
    assert callable(condition)
    for _ in tries(0.1):
        if condition():
            return
    raise AssertionError(f"{what} did not come; the program said: {(root / 'output').read_text()}")


def batches(root: Path, job: str, run: int = 1) -> int:
    names = LocalStorage(root / "store" / job).names(f"spark/{run}/commits")
    return sum(name.rpartition("/")[2].isdigit() for name in names)


def manifest(folder: str | Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(folder) / "savepoint.json").read_text())
    inner = found.get("savepoint", found)
    assert isinstance(inner, dict)
    return inner


def test_a_running_job_does_what_it_is_asked_for(tmp_path: Path) -> None:
    """Checkpoint, savepoint, stop with a savepoint, with a drain, cancel: each from another process, and each answered when it is done."""
    store, ledger = tmp_path / "store", Ledger(tmp_path)
    ledger.append(0, "a", 3)
    timed = ps.sources.PartitionedLog(tmp_path / "timed", "app string, at timestamp", 1)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    timed.append(0, [{"app": "a", "at": noon + timedelta(hours=hour)} for hour in range(3)])

    with program(tmp_path, "counted", "drained", "cancelled") as process:
        until(lambda: batches(tmp_path, "counted"), "the first batch", tmp_path)
        storage = LocalStorage(store / "counted")
        assert checkpoint_ids(storage) == []
        assert asked("trigger", store, "counted") == "0"
        until(lambda: ledger.counts("counted") == {"a": 3}, "the commit", tmp_path)
        assert asked("trigger", store, "counted") == "0"

        beside = Path(asked("savepoint", store, "counted"))
        assert (beside.parent, beside.name[:2]) == (store / "counted-savepoints", "0-")
        assert manifest(beside)["checkpoint"] == 0
        ledger.append(1, "b", 2)
        until(lambda: batches(tmp_path, "counted") == 2, "the second batch", tmp_path)
        chosen = tmp_path / "here"
        assert asked("savepoint", store, "counted", "--to", chosen) == str(chosen)
        assert manifest(chosen)["checkpoint"] == 1
        assert ledger.counts("counted") == {"a": 3, "b": 2}  # all it promised is visible before it is made
        assert "choose a" in asked("savepoint", store, "counted", "--to", chosen, code=2)  # it holds one
        refused = asked("stop", store, "counted", "--savepoint", chosen, code=2)
        assert "holds a savepoint; choose an empty folder; the job was not stopped, and goes on" in refused

        ledger.append(1, "b", 1)
        until(lambda: batches(tmp_path, "counted") == 3, "the third batch", tmp_path)
        last = tmp_path / "last"
        assert asked("stop", store, "counted", "--savepoint", last) == str(last)
        assert manifest(last)["checkpoint"] == 2
        assert ledger.counts("counted") == {"a": 3, "b": 3}

        until(lambda: batches(tmp_path, "drained"), "the batch of windows", tmp_path)
        assert asked("stop", store, "drained", "--drain") == ""
        assert ledger.rows_of("drained") == [("a", 1)] * 3

        until(lambda: batches(tmp_path, "cancelled"), "the batch of what is cancelled", tmp_path)
        assert asked("cancel", store, "cancelled") == ""
        assert process.wait(PATIENCE_S) == 0
    said = (tmp_path / "output").read_text().splitlines()
    assert {"counted stopped", "drained stopped", "cancelled cancelled"} <= set(said)
    assert checkpoint_ids(LocalStorage(store / "cancelled")) == []
    assert storage.names("requests") == storage.names("holds") == []

    for command in ("stop", "cancel", "trigger"):
        assert "is not running: its last run, 1, is over: stopped" in asked(command, store, "counted", code=2)
    later = tmp_path / "later"
    assert asked("savepoint", store, "counted", "--to", later) == str(later)
    assert manifest(later)["checkpoint"] == 2
    assert "there are 2" in asked("savepoint", store, "counted", "--checkpoint", 1, code=2)
    storage.delete([name for name in storage.names() if name.endswith("_committed")])
    assert "promises to commit" in asked("savepoint", store, "counted", code=2)
    assert storage.names("holds") == []


def test_the_next_run_goes_on_with_what_a_dead_one_was_asked_for(tmp_path: Path) -> None:
    """A driver that is killed while it makes a savepoint leaves the request to the next one, and whoever asked gets its answer."""
    store, ledger = tmp_path / "store", Ledger(tmp_path)
    ledger.append(0, "a", 3)
    with program(tmp_path, "killed", hangs=True) as process:
        until(lambda: batches(tmp_path, "killed"), "the first batch", tmp_path)
        asking = penstock("savepoint", store, "killed", "--to", tmp_path / "made")
        until((tmp_path / "hangs").exists, "the savepoint under way", tmp_path)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "made").exists()
    with program(tmp_path, "killed") as process:
        printed, said = asking.communicate(timeout=PATIENCE_S)
        assert (asking.returncode, printed.strip()) == (0, str(tmp_path / "made")), said
        assert manifest(tmp_path / "made")["checkpoint"] == 0
        asked("stop", store, "killed")
        assert process.wait(PATIENCE_S) == 0
    assert ledger.counts("killed") == {"a": 3}


def test_a_program_asks_its_own_job(spark, tmp_path: Path) -> None:
    """The handle makes checkpoints and savepoints while the job runs, and stops it with one; an ended job makes none."""
    ledger = Ledger(tmp_path)
    ledger.append(0, "a", 3)
    job = ledger.job(checkpoint=ps.Checkpointing(interval="1h"))
    rows = job.read(ledger.log.read(spark), uid="log")
    rows.key_by("app").aggregate(n=F.count("*"), uid="counts").write_to(ledger.sqlite(), uid="out")
    handle = job.start()
    try:
        assert handle.trigger_checkpoint() == 0
        folder = handle.savepoint()
        assert manifest(folder)["checkpoint"] == 0
        with pytest.raises(ps.ConfigError, match="choose a"):
            handle.savepoint(folder)
        with pytest.raises(ps.ConfigError, match="the job was not stopped, and goes on"):
            handle.stop(savepoint=folder, drain=True)
        assert handle.trigger_checkpoint() == 0
        assert handle.status.value == "running"
        made = handle.stop(savepoint=tmp_path / "last")
        assert made == str(tmp_path / "last")
        assert manifest(made)["checkpoint"] == 0
        assert handle.status.value == "stopped"
        with pytest.raises(ps.ConfigError, match=r"has ended \(stopped\): it makes no savepoint"):
            handle.savepoint()
    finally:
        handle.cancel()


def test_a_stop_with_a_savepoint_of_a_job_that_is_cancelled_meanwhile_fails(spark, tmp_path: Path) -> None:
    """A script that goes on with the savepoint would lose the state. The cancel has not failed."""
    ledger = Ledger(tmp_path)
    ledger.append(0, "a", 3)
    job = ledger.job(checkpoint=ps.Checkpointing(interval="1h"))
    rows = job.read(ledger.log.read(spark), uid="log")
    heard = tmp_path / "the cancel is heard"

    def hand_over(table: pa.Table, checkpoint: int, transaction: str) -> None:
        until(heard.exists, "the cancel", tmp_path)

    counts = rows.key_by("app").aggregate(n=F.count("*"), uid="counts")
    counts.write_to(ps.sinks.WriteAheadLog(hand_over, staging=tmp_path / "staging"), uid="out")
    (tmp_path / "output").write_text("nothing: it runs in this process")
    handle = job.start()
    folder = str(tmp_path / "none")
    stop = ask(job.storage, Kind.STOP, by="a test", now=time.time(), savepoint=True, to=folder)
    until(lambda: outcome(job.storage, stop).state == "under way", "the stop", tmp_path)
    cancel = ask(job.storage, Kind.CANCEL, by="a test", now=time.time())
    until(lambda: outcome(job.storage, cancel).state != "waiting", "the cancel", tmp_path)
    heard.touch()
    handle.wait()
    stopped = outcome(job.storage, stop)
    assert stopped.state == "failed"
    assert "the job was cancelled" in stopped.error
    assert outcome(job.storage, cancel).facts["status"] == "cancelled"
    assert not (tmp_path / "none" / MANIFEST).exists()
