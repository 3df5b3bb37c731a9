"""The worked example of the guarantees: two partitions, two counting subtasks, keys app0 and app1."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ledger import Count, Ledger
from pyspark.sql import functions as F

import penstock as ps
from penstock.ids import SubtaskId
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark


class LateUploads(LocalStorage):
    """Storage in which one subtask's uploads have to wait until the file `gate` exists."""

    def __init__(self, root: Path, late: int, gate: Path) -> None:
        super().__init__(root)
        self.late = late
        self.gate = gate

    def wait_for_turn(self, subtask: SubtaskId) -> None:
        while subtask.index == self.late and not self.gate.exists():
            time.sleep(0.02)


def subtasks_of(spark, max_parallelism: int, parallelism: int) -> dict[str, int]:
    rows = spark.createDataFrame([("app0",), ("app1",)], "app string").select(
        "app", (F.pmod(F.hash("app"), F.lit(max_parallelism)) % parallelism).alias("subtask")
    )
    return {row["app"]: row["subtask"] for row in rows.collect()}


def run_example(spark, root: Path, mode: ps.Mode, *, partitions: int, parallelism: int) -> dict[str, int]:
    """Kill the job after a checkpoint at (0, 10000), (1, 10005) and records 10005..10200; return the counts after the restore."""
    ledger = Ledger(root, partitions=partitions)
    last = partitions - 1
    ledger.append(0, "app0", 10_000)
    ledger.append(last, "app1", 10_005)
    places = (
        groups
        for groups in range(parallelism, 200)
        if len(set(subtasks_of(spark, groups, parallelism).values())) == parallelism
    )
    max_parallelism = next(places)
    gate = root / "gate"
    storage = LateUploads(root / "store", subtasks_of(spark, max_parallelism, parallelism)["app1"], gate)

    def job(checkpoint: ps.Checkpointing) -> ps.Job:
        job = ps.Job(
            "example",
            storage=storage,
            local_dir=root / "local",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            checkpoint=checkpoint,
            restart=ps.no_restart(),
        )
        clicks = job.read(ledger.log.read(spark), uid="clicks")
        clicks.key_by("app").process(Count(), schema="app string, n long", uid="count").write_to(
            ledger.sqlite(), uid="out"
        )
        return job

    once = ps.Checkpointing(interval="1ms", min_pause="1h", mode=mode)
    handle = job(once).start()
    wait_until(handle, lambda: handle.progress.batches == 1)
    ledger.append(last, "app1", 196)  # records 10005..10200 of the last partition, behind the barrier
    wait_until(handle, lambda: handle.progress.batches == 2)
    assert handle.progress.checkpoints_completed == 0  # the subtask of app1 has not stored its state yet
    gate.touch()
    wait_until(handle, lambda: handle.progress.checkpoints_completed == 1)
    handle.cancel()

    restored = job(once).start(available_now=True)
    restored.wait()
    return ledger.counts()


def wait_until(handle, reached) -> None:
    while not reached():
        assert not handle.wait(0.02), "the job ended early"


def test_exactly_once(spark, tmp_path):
    """Checkpoint at (0, 10000), (1, 10005): killed later and restored, no count is off by one."""
    counts = run_example(spark, tmp_path, ps.EXACTLY_ONCE, partitions=2, parallelism=2)
    assert counts == {"app0": 10_000, "app1": 10_201}


def test_at_least_once_counts_twice_what_the_late_subtask_held(spark, tmp_path):
    """Records 10005..10200 were already in the late snapshot of app1: they are counted twice, and only those."""
    counts = run_example(spark, tmp_path, ps.AT_LEAST_ONCE, partitions=2, parallelism=2)
    assert counts == {"app0": 10_000, "app1": 10_201 + 196}


@pytest.mark.parametrize("mode", [ps.EXACTLY_ONCE, ps.AT_LEAST_ONCE])
def test_one_partition_one_subtask_is_the_same_in_both_modes(spark, tmp_path, mode):
    """With a single partition and a single subtask at least once counts nothing twice either."""
    counts = run_example(spark, tmp_path, mode, partitions=1, parallelism=1)
    assert counts == {"app0": 10_000, "app1": 10_201}


def test_a_checkpoint_that_is_late_is_given_up_and_the_job_goes_on(spark, tmp_path, caplog):
    """Slow storage holds up neither batches nor the job: late checkpoints expire by name, and a later one completes."""
    ledger = Ledger(tmp_path)
    ledger.fill(100, apps=2)
    gate = tmp_path / "gate"
    job = ps.Job(
        "late",
        storage=LateUploads(tmp_path / "store", 0, gate),
        local_dir=tmp_path / "local",
        checkpoint=ps.Checkpointing(interval="1ms", timeout="500ms", tolerable_failures=1000),
        restart=ps.no_restart(),
    )
    clicks = job.read(ledger.log.read(spark, rows_per_batch=20), uid="clicks")
    clicks.key_by("user").process(Count(), schema="user long, n long", uid="count").write_to(
        ledger.sqlite("views", "user"), uid="out"
    )
    with caplog.at_level("WARNING", "penstock"):
        handle = job.start(available_now=True)
        wait_until(handle, lambda: "did not acknowledge (count-0)" in caplog.text)
        wait_until(handle, lambda: handle.progress.rows_in == 200)
    assert handle.progress.checkpoints_completed == 0
    gate.touch()
    handle.wait()
    assert ledger.counts() == ledger.truth("user")
    handle = job.start(available_now=True)  # deletes what an upload stored after the end of the first run
    handle.wait()
    named = {name for one in handle.checkpoints() for name in one.files}
    assert set(job.storage.names("state")) == named
