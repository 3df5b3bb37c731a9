"""What Penstock's tasks leave in a Python worker of Spark."""

from __future__ import annotations

import subprocess
import sys

WORKER = """
import gc
from penstock.spark.tasks import WorkerTask

def after_a_task():
    assert list(WorkerTask(iter)([])) == []
    return gc.get_freeze_count(), len(gc.get_objects())

assert gc.get_freeze_count() == 0
frozen, rest = after_a_task()
assert frozen > 10_000 > rest, (frozen, rest)
cycle = []
cycle.append(cycle)
assert after_a_task()[0] <= frozen, "what a task leaves is not frozen"
import wave
assert after_a_task()[0] <= frozen, "nor for one more module: what is alive then would stay forever"
import pandas
assert after_a_task()[0] > frozen, "a library that is imported later is frozen, too"
"""


def test_garbage_collections_leave_out_the_modules() -> None:
    """PySpark collects garbage after each task: it does not look at the modules again, and at everything else."""
    ended = subprocess.run(
        [sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
