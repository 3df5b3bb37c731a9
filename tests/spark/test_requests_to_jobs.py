"""A job that runs in another process is asked for checkpoints, savepoints and its end, through its storage alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from child_driver import ChildDriver
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps
from builders.calling_penstock import caller
from builders.checkpoints import checkpoint_ids
from penstock.requests.request_client import ask, outcome
from penstock.requests.request_files import Kind
from penstock.savepoint.manifest import MANIFEST
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S, tries

pytestmark = pytest.mark.spark

PROGRAM = """
import threading
from pyspark.sql import functions as F
import penstock as ps
from penstock.savepoint import request

def job(spark, root, name):
    if name == "drained":
        return windows(spark, root, name)
    if (root / "to hang").exists():
        request.create_in_child_process = lambda *given, **named: hang(root)
    job = ps.Job(name, storage=root / "store", checkpoint=ps.Checkpointing(interval="1h", min_pause="1h"))
    rows = job.read(ps.sources.PartitionedLog(root / "log").read(spark), uid="log").key_by("app")
    table = ps.sinks.SQLite(root / "out.db", table=name, mode="upsert", key=["app"])
    rows.aggregate(n=F.count("*"), uid="counts").write_to(table, uid="out")
    return job

def windows(spark, root, name):
    job = ps.Job(name, storage=root / "store", checkpoint=ps.Checkpointing(interval="1h"))
    rows = job.read(ps.sources.PartitionedLog(root / "timed").read(spark), uid="log", event_time="at", idle_after=None)
    panes = rows.key_by("app").window(ps.windows.tumbling("1h")).aggregate(n=F.count("*"), uid="panes")
    panes.select("app", "n").write_to(ps.sinks.SQLite(root / "out.db", table=name, mode="append"), uid="out")
    return job

def hang(root):
    (root / "hangs").touch()
    threading.Event().wait()
"""


def in_a_process(*arguments: object) -> subprocess.Popen[str]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command prints; for one that fails, what it says about it. The job that it asks is in another process."""
    penstock = caller(monkeypatch, capsys)

    def ask_for(*arguments: object, code: int = 0) -> str:
        result = penstock(*arguments)
        assert result.code == code, result.err
        return result.out.strip() if code == 0 else result.err

    return ask_for


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that a job in this process brings about."""
    for _ in tries(0.05):
        if condition():
            return
    raise AssertionError(f"{what} did not come")


def batches(root: Path, job: str, run: int = 1) -> int:
    names = LocalStorage(root / "store" / job).names(f"spark/{run}/commits")
    return sum(name.rpartition("/")[2].isdigit() for name in names)


def manifest(folder: str | Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(folder) / "savepoint.json").read_text())
    inner = found.get("savepoint", found)
    assert isinstance(inner, dict)
    return inner


def test_a_running_job_does_what_it_is_asked_for(
    tmp_path: Path, child_driver: ChildDriver, asked: Callable[..., str]
) -> None:
    """Checkpoint, savepoint, stop with a savepoint, with a drain, cancel: each from another process, and each answered when it is done."""
    store, ledger = tmp_path / "store", Ledger(tmp_path)
    ledger.append(0, "a", 3)
    timed = ps.sources.PartitionedLog(tmp_path / "timed", "app string, at timestamp", 1)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    timed.append(0, [{"app": "a", "at": noon + timedelta(hours=hour)} for hour in range(3)])

    until = child_driver.until
    child_driver.run(tmp_path, PROGRAM, "counted", "drained", "cancelled")
    until(lambda: batches(tmp_path, "counted"), "the first batch")
    storage = LocalStorage(store / "counted")
    assert checkpoint_ids(storage) == []
    assert asked("trigger", store, "counted") == "0"
    until(lambda: ledger.counts("counted") == {"a": 3}, "the commit")
    assert asked("trigger", store, "counted") == "0"

    beside = Path(asked("savepoint", store, "counted"))
    assert (beside.parent, beside.name[:2]) == (store / "counted-savepoints", "0-")
    assert manifest(beside)["checkpoint"] == 0
    ledger.append(1, "b", 2)
    until(lambda: batches(tmp_path, "counted") == 2, "the second batch")
    chosen = tmp_path / "here"
    assert asked("savepoint", store, "counted", "--to", chosen) == str(chosen)
    assert manifest(chosen)["checkpoint"] == 1
    assert ledger.counts("counted") == {"a": 3, "b": 2}  # all it promised is visible before it is made
    assert "choose a" in asked("savepoint", store, "counted", "--to", chosen, code=2)  # it holds one
    refused = asked("stop", store, "counted", "--savepoint", chosen, code=2)
    assert "holds a savepoint; choose an empty folder; the job was not stopped, and goes on" in refused

    ledger.append(1, "b", 1)
    until(lambda: batches(tmp_path, "counted") == 3, "the third batch")
    last = tmp_path / "last"
    assert asked("stop", store, "counted", "--savepoint", last) == str(last)
    assert manifest(last)["checkpoint"] == 2
    assert ledger.counts("counted") == {"a": 3, "b": 3}

    until(lambda: batches(tmp_path, "drained"), "the batch of windows")
    assert asked("stop", store, "drained", "--drain") == ""
    assert ledger.rows_of("drained") == [("a", 1)] * 3

    until(lambda: batches(tmp_path, "cancelled"), "the batch of the job that is cancelled")
    assert asked("cancel", store, "cancelled") == ""
    until(lambda: "cancelled cancelled" in child_driver.said(), "the end of the job that is cancelled")
    assert {"counted stopped", "drained stopped"} <= set(child_driver.said())
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


def test_the_next_run_goes_on_with_what_a_dead_one_was_asked_for(
    tmp_path: Path, child_driver: ChildDriver, asked: Callable[..., str]
) -> None:
    """A driver that is killed while it makes a savepoint leaves the request to the next one, and whoever asked gets its answer."""
    store, ledger = tmp_path / "store", Ledger(tmp_path)
    ledger.append(0, "a", 3)
    (tmp_path / "to hang").touch()
    child_driver.run(tmp_path, PROGRAM, "killed")
    child_driver.until(lambda: batches(tmp_path, "killed"), "the first batch")
    asking = in_a_process("savepoint", store, "killed", "--to", tmp_path / "made")
    child_driver.until((tmp_path / "hangs").exists, "the savepoint under way")
    child_driver.kill()
    assert not (tmp_path / "made").exists()
    (tmp_path / "to hang").unlink()
    child_driver.run(tmp_path, PROGRAM, "killed")
    printed, said = asking.communicate(timeout=PATIENCE_S)
    assert (asking.returncode, printed.strip()) == (0, str(tmp_path / "made")), said
    assert manifest(tmp_path / "made")["checkpoint"] == 0
    asked("stop", store, "killed")
    child_driver.until(lambda: "killed stopped" in child_driver.said(), "the end")
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
        until(heard.exists, "the cancel")

    counts = rows.key_by("app").aggregate(n=F.count("*"), uid="counts")
    counts.write_to(ps.sinks.WriteAheadLog(hand_over, staging=tmp_path / "staging"), uid="out")
    handle = job.start()
    folder = str(tmp_path / "none")
    stop = ask(job.storage, Kind.STOP, by="a test", now=time.time(), savepoint=True, to=folder)
    until(lambda: outcome(job.storage, stop).state == "under way", "the stop")
    cancel = ask(job.storage, Kind.CANCEL, by="a test", now=time.time())
    until(lambda: outcome(job.storage, cancel).state != "waiting", "the cancel")
    heard.touch()
    handle.wait()
    stopped = outcome(job.storage, stop)
    assert stopped.state == "failed"
    assert "the job was cancelled" in stopped.error
    assert outcome(job.storage, cancel).facts["status"] == "cancelled"
    assert not (tmp_path / "none" / MANIFEST).exists()
