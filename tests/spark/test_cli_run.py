"""`penstock run` and `penstock guarantee` on a user's file."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli import main
from penstock.sources import PartitionedLog

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


def test_run_and_guarantee(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a function `job(spark)` runs to the end of its input, goes on in the next run until a signal, and states its guarantee."""
    log = PartitionedLog(tmp_path / "log", "app string", 2)
    file = tmp_path / "visits.py"
    file.write_text(JOB_FILE.format(root=tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))

    def penstock(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code
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
        assert f"run {run}, from" in said
        assert "finished: 1 batches" in said
        with sqlite3.connect(tmp_path / "out.db") as database:
            found = database.execute("SELECT app, n FROM visits ORDER BY app").fetchall()
        assert found == [("a", 2 * run), ("b", run)]

    log.append(0, [{"app": "a"}])
    signals = threading.Thread(target=stop_when_seen, args=(7,))
    signals.start()
    try:
        _, said = penstock("run", str(file))
    finally:
        ended.set()
        signals.join()
    assert "stopping with a last checkpoint; Ctrl-C or SIGTERM once more ends the job now, without it" in said
    assert "stopped: " in said
    assert seen() == 7

    out, _ = penstock("guarantee", str(file))
    assert (
        out
        == "exactly-once: sources replay, state is exactly once, and every sink commits with the checkpoint\n"
    )
