"""How far a start is that deals state out anew, as Spark's tasks tell it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.checkpoint.model import SubtaskReport
from penstock.ids import SubtaskId
from penstock.long_work import open_works, working
from penstock.recovery.state_migration import RestoredSubtask, RestoreTask
from penstock.spark.tasks import run_restore_tasks
from penstock.state.handle import StateHandle
from services.patience import tries

pytestmark = pytest.mark.spark


def waits_for_one(folder: Path) -> RestoreTask:
    """Work of which all but the first subtask is done at once; that one waits until it is let go. Made here: workers have no such module."""

    @dataclass(frozen=True)
    class WaitsForOne:
        local_dir: Path

        def at(self, local_dir: Path) -> WaitsForOne:
            del local_dir
            return self

        def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
            del attempt
            while not handle.subtask.index and not (self.local_dir / "go").exists():
                time.sleep(0.05)
            return RestoredSubtask(handle, SubtaskReport(handle.subtask))

    return WaitsForOne(folder)


def test_subtasks_are_counted_as_they_are_done(spark: SparkSession, tmp_path: Path) -> None:
    """While one subtask is at work, the others count as done; nothing is under way behind the end."""
    handles = [StateHandle(SubtaskId("counts", index), "memory", 1) for index in range(3)]
    taken: list[RestoredSubtask] = []

    def take() -> None:
        with working("dealing out", unit="subtask", job="views"):
            taken.extend(run_restore_tasks(spark, waits_for_one(tmp_path), handles))

    thread = threading.Thread(target=take)
    thread.start()
    for _ in tries(0.05):
        if [(work.done, work.total) for work in open_works("views")] == [(2, 3)] or not thread.is_alive():
            break
    (tmp_path / "go").touch()
    thread.join()
    assert [one.handle.subtask.index for one in taken] == [0, 1, 2]
    assert open_works("views") == []
