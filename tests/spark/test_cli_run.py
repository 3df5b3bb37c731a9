"""`penstock run` and `penstock guarantee` on a user's file."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli import main
from penstock.sources import PartitionedLog
from services.terminals import no_log, real_terminal, screen

pytestmark = pytest.mark.spark

JOB_FILE = """
import penstock as ps

class Visits(ps.KeyedProcess):
    n = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.n.value += len(rows)
        yield key, self.n.value

def job(spark):
    job = ps.Job("visits", storage="{root}/store")
    log = ps.sources.PartitionedLog("{root}/log")
    visits = job.read(log.read(spark), uid="log").key_by("app").process(Visits(), schema="app string, n long", uid="visits")
    visits.write_to(ps.sinks.SQLite("{root}/out.db", table="visits", mode="upsert", key=["app"]), uid="out")
    return job
"""


def without_readers(lines: list[str]) -> list[str]:
    """The lines, without warnings of readers that other tests of this process have left open."""
    return [line for line in lines if "a hold on checkpoints" not in line]


def check_log(said: str, run: int) -> None:
    """A line for the begin, one for the checkpoint, one for the end."""
    begin, checkpoint, end = without_readers(said.splitlines())
    origin = "begins from nothing" if run == 1 else "goes on from checkpoint 0 of run 1"
    assert f"job visits, run {run}, {origin}" in begin
    assert "exactly-once" in begin
    assert f"checkpoint {run - 1} of job visits completed in" in checkpoint
    assert f"job visits finished: run {run}, 1 batch, " in end
    assert end.endswith(f", last checkpoint {run - 1}")


def check_screen(came: str) -> None:
    """The begin and the end stay on the screen, and what lies between was in one line."""
    lines = without_readers(screen(came))
    assert len(lines) == 4, "\n".join(lines)
    begin, stopping, end, prompt = lines
    assert "job visits, run 3, goes on from checkpoint 1 of run 2" in begin
    assert stopping.endswith(
        "WARNING stopping with a last checkpoint; Ctrl-C or SIGTERM once more ends the job now, without it"
    )
    assert "job visits stopped: run 3, 1 batch, " in end
    assert prompt == ""
    shown = (
        r"starting\x1b\[K\r.*(running|stopping), run 3, \d batch.* rows/s, last checkpoint \d, .*\x1b\[K\r"
    )
    assert re.search(shown, came, re.DOTALL)


def check_refusals(penstock: Callable[..., tuple[str, str]], root: Path, file: Path) -> None:
    """What to do is said in options of the command line; a file that starts its job itself is refused. No run has begun."""
    folder = root / "store" / "visits" / "runs"
    before = sorted(folder.glob("*.json"))
    _, said = penstock("run", str(file), "--restore", "9", code=2)
    assert "checkpoint 9 cannot be restored: there are 2; nothing was changed" in said
    file.write_text(JOB_FILE.format(root=root).replace('uid="visits"', 'uid="views"'))
    _, said = penstock("run", str(file), code=3)
    assert "holds state of the operator visits, which" in said
    assert "allow the loss with --drop-state visits; nothing was changed\n" in said
    file.write_text(JOB_FILE.format(root=root) + "\njob(ps.local_session('mine')).run()\n")
    for command in ("run", "guarantee"):
        _, said = penstock(command, str(file), code=2)
        assert said.startswith("penstock: visits.py:18: run() starts the job while")
    assert sorted(folder.glob("*.json")) == before


def test_run_and_guarantee(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a function `job(spark)` runs to the end of its input, goes on in the next run until a signal, and states its guarantee.

    It says from where it goes on, how it goes and how it ended: on a terminal in a line that is gone at the end, elsewhere in the log.
    """
    log = PartitionedLog(tmp_path / "log", "app string", 2)
    file = tmp_path / "visits.py"
    file.write_text(JOB_FILE.format(root=tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))

    def penstock(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as exit_, no_log():
            main()
        assert (exit_.value.code or 0) == code
        said = capsys.readouterr()
        return said.out, said.err

    ended = threading.Event()

    def stop_when_seen(count: int) -> None:
        while seen() != count:
            if ended.wait(0.1):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    def seen() -> int:
        with sqlite3.connect(tmp_path / "out.db") as database:
            return database.execute("SELECT sum(n) FROM visits").fetchone()[0]

    for run in (1, 2):
        log.append(0, [{"app": "a"}, {"app": "b"}])
        log.append(1, [{"app": "a"}])
        _, said = penstock("run", str(file), "--available-now")
        check_log(said, run)
        with sqlite3.connect(tmp_path / "out.db") as database:
            found = database.execute("SELECT app, n FROM visits ORDER BY app").fetchall()
        assert found == [("a", 2 * run), ("b", run)]

    log.append(0, [{"app": "a"}])
    signals = threading.Thread(target=stop_when_seen, args=(7,))
    signals.start()
    try:
        with real_terminal(columns=200) as (stream, written), monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            penstock("run", str(file))
            came = written()
    finally:
        ended.set()
        signals.join()
    check_screen(came)
    assert seen() == 7

    out, _ = penstock("guarantee", str(file))
    assert (
        out
        == "exactly-once: sources replay, state is exactly once, and every sink commits with the checkpoint\n"
    )
    check_refusals(penstock, tmp_path, file)
