"""State that grows: files merged in the background, and files of the machine used again after a restart."""

from __future__ import annotations

import logging
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps
from penstock.checkpoint.model import Completed
from penstock.storage import LocalStorage
from penstock.testing.faulty_storage import FaultPlan, FaultyStorage, PlannedFailure

pytestmark = pytest.mark.spark

ROWS = 30_000
USERS = 60_000


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def fill(ledger: Ledger, batches: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        for partition in range(2):
            users = rng.integers(0, USERS, ROWS // 2)
            ledger.log.append(partition, pa.table({"app": ["x"] * len(users), "user": users}), sync=False)


def job_over(spark, ledger: Ledger, **settings) -> ps.Job:
    job = ledger.job(**settings)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=ROWS), uid="clicks")
    clicks.key_by("user").aggregate(n=F.count("*"), uid="counts").write_to(ledger.files(), uid="out")
    return job


def newest_counts(ledger: Ledger) -> dict[object, int]:
    """Counts only grow, so that the largest of a key is its newest."""
    import pyarrow.dataset as ds

    rows = ds.dataset(ledger.root / "files", format="parquet").to_table()
    best = rows.group_by("user").aggregate([("n", "max")])
    return dict(zip(best["user"].to_pylist(), best["n_max"].to_pylist(), strict=True))


def newest(handle) -> Completed:
    return handle.checkpoints()[-1]


def test_files_are_merged_while_batches_go_on(spark, ledger):
    """Over many batches the files of a subtask stay few and small, and every count is right."""
    fill(ledger, 14, seed=1)
    handle = job_over(spark, ledger).start(available_now=True)
    handle.wait()
    assert handle.progress.merges > 0
    state = newest(handle).operators["counts"].handles
    assert all(len(one.refs) <= 8 for one in state)
    rows = sum(ref.rows for one in state for ref in one.refs)
    assert rows <= 3 * USERS, "what was overwritten in older files is merged away"
    assert newest_counts(ledger) == dict(Counter(ledger.log.table()["user"].to_pylist()))
    job_over(spark, ledger).run(available_now=True)
    storage = LocalStorage(ledger.root / "store" / "pv")
    assert set(storage.names("state")) == set(newest(handle).files)


def test_a_merge_that_fails_is_no_harm(spark, ledger, caplog):
    """With no space for merged files the job goes on with the files it has, says so, and every count is right."""
    fill(ledger, 8, seed=2)
    full = PlannedFailure(pattern="*-merged*", operation="upload", times=10_000)
    storage = FaultyStorage(LocalStorage(ledger.root / "store" / "pv"), FaultPlan(failures=(full,)))
    job = ps.Job(
        "pv",
        storage=storage,
        local_dir=ledger.root / "local",
        checkpoint=ps.Checkpointing(interval="1ms"),
        restart=ps.no_restart(),
    )
    clicks = job.read(ledger.log.read(spark, rows_per_batch=ROWS), uid="clicks")
    clicks.key_by("user").aggregate(n=F.count("*"), uid="counts").write_to(ledger.files(), uid="out")
    with caplog.at_level(logging.WARNING):
        job.run(available_now=True)
    assert "files of state could not be merged in the background" in caplog.text
    assert newest_counts(ledger) == dict(Counter(ledger.log.table()["user"].to_pylist()))
    assert not [name for name in storage.names("state") if "merged" in name]


def origins(handle, batch: int) -> tuple[int, int]:
    """Files used again and files fetched, as the checkpoint of that batch reports them."""
    (found,) = [one for one in handle.checkpoints() if one.checkpoint == batch]
    reports = found.subtasks
    return sum(one.reused_files for one in reports), sum(one.fetched_files for one in reports)


@pytest.mark.parametrize("lost", ["nothing", "the local folder", "a bit"])
def test_local_recovery(spark, ledger, lost, caplog):
    """After a restart files of the machine are used again where they are right, and storage is asked for the rest; both are told."""
    fill(ledger, 2, seed=3)
    settings = ps.Checkpointing(interval="1ms", retained=10)
    job_over(spark, ledger, checkpoint=settings).run(available_now=True)
    left = sorted((ledger.root / "local").rglob("state/*/*.arrow"))
    assert left, "working files stay after a run"
    if lost == "the local folder":
        shutil.rmtree(ledger.root / "local")
    elif lost == "a bit":
        damaged = bytearray(left[0].read_bytes())
        damaged[len(damaged) // 2] ^= 1
        left[0].unlink()
        left[0].write_bytes(damaged)
    fill(ledger, 2, seed=4)
    with caplog.at_level(logging.INFO, logger="penstock"):
        handle = job_over(spark, ledger, checkpoint=settings).start(available_now=True)
        handle.wait()
    first = handle.progress.restored_from + 1
    reused, fetched = origins(handle, first)
    assert (reused > 0, fetched > 0) == (lost != "the local folder", lost != "nothing")
    assert origins(handle, first + 1) == (0, 0), "from then on the files are here"
    assert "used again" in caplog.text
    total = pc.sum(pa.array(newest_counts(ledger).values())).as_py()
    assert total == 4 * ROWS
    runs = [path.name.split("-")[1] for path in (ledger.root / "local").glob("*/run-*")]
    assert runs == [str(handle.progress.run)], (
        "folders of earlier runs are gone once a checkpoint is complete"
    )


def test_local_recovery_can_be_left_out(spark, ledger):
    """With local_recovery=False no working file stays after a run."""
    fill(ledger, 1, seed=5)
    job_over(spark, ledger, local_recovery=False).run(available_now=True)
    assert not list((ledger.root / "local").rglob("*.arrow"))
