"""A job whose log is JSON lines, as a program of its own: nothing else is on its standard error, and every line says job and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.sources import PartitionedLog

pytestmark = pytest.mark.spark

JOB_FILE = """
import logging
import warnings
from pathlib import Path

import penstock as ps

class Visits(ps.KeyedProcess):
    n = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        if not Path("{root}/store/visits/runs/2.json").exists():
            raise RuntimeError("broken in run 1\\nin two lines")
        self.n.value += len(rows)
        yield key, self.n.value

def job(spark):
    job = ps.Job("visits", storage="{root}/store", restart=ps.fixed_delay(attempts=3, delay="100ms"))
    log = ps.sources.PartitionedLog("{root}/log")
    visits = job.read(log.read(spark), uid="log").key_by("app").process(Visits(), schema="app string, n long", uid="visits")
    visits.write_to(ps.sinks.SQLite("{root}/out.db", table="visits", mode="upsert", key=["app"]), uid="out")
    logging.getLogger("my.own").info("a line of my own")
    warnings.warn("a warning of Python's", stacklevel=1)
    return job
"""
OF_JAVA = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d |WARNING: |Picked up |:: |\t|Setting default log level|To adjust logging"
)
"""How lines of Spark's JVM begin: it writes its own log, which is set up by Spark's means."""
PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def run(root: Path, *arguments: str, **environment: str) -> tuple[int, list[dict[str, object]]]:
    command = [*PENSTOCK, *arguments, str(root / "visits.py"), "--available-now"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if line and not OF_JAVA.match(line)]
    return done.returncode, [json.loads(line) for line in ours]


def test_every_line_is_json_with_job_and_run(tmp_path: Path) -> None:
    """So are the story of the job, a restart with its error, warnings of Python and lines of others; what failed is a line too."""
    with PartitionedLog(tmp_path / "log", "app string", 1) as log:
        log.append(0, [{"app": "a"}, {"app": "b"}])
    (tmp_path / "visits.py").write_text(JOB_FILE.format(root=tmp_path))
    code, lines = run(tmp_path, "run", PENSTOCK_LOG="json")
    assert code == 0
    penstocks = [line for line in lines if str(line["logger"]).startswith("penstock")]
    assert {line["logger"] for line in lines} >= {"penstock.job", "my.own", "py.warnings"}
    assert all(line["job"] == "visits" and line["run"] in (1, 2) for line in penstocks)
    (restart,) = (line for line in penstocks if line["level"] == "WARNING")
    assert (restart["run"], restart["error"]) == (1, "UserCodeError")
    assert "broken in run 1" in str(restart["message"])
    (completed,) = (line for line in penstocks if line["logger"] == "penstock.checkpoint.coordinator")
    assert (completed["run"], completed["checkpoint"]) == (2, 0)
    (tmp_path / "visits.py").write_text("job = 7\n")
    code, (failed,) = run(tmp_path, "--log", "json", "run")
    assert (code, failed["level"], failed["error"]) == (2, "ERROR", "JobFileError")


DYING_FILE = """
import os
import penstock as ps

def job(spark):
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    job = ps.Job("visits", storage="{root}/store")
    rows = job.read(ps.sources.PartitionedLog("{root}/log").read(spark), uid="log")
    rows.write_to(ps.sinks.Foreach(lambda batch, context: os.kill(jvm, 9)), uid="out")
    return job
"""


def test_the_death_of_the_jvm_is_told_in_json(tmp_path: Path) -> None:
    """PySpark's own servers print no stack beside the lines of the log."""
    with PartitionedLog(tmp_path / "log", "app string", 1) as log:
        log.append(0, [{"app": "a"}])
    (tmp_path / "visits.py").write_text(DYING_FILE.format(root=tmp_path))
    code, lines = run(tmp_path, "run", PENSTOCK_LOG="json")
    assert code == 1
    assert "Spark is gone" in str(lines[-1]["message"])
