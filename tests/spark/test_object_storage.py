"""Jobs whose storage is an object store: nothing that matters is on the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ledger import Ledger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.main import app
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.storage import open_job_storage
from services.s3_server import BUCKET, KEY, SECRET, S3Server

pytestmark = pytest.mark.spark


def job(spark: SparkSession, root: Path, storage: str) -> ps.Job:
    job = ps.Job(
        "clicks",
        storage=storage,
        local_dir=root / "local",
        checkpoint=ps.Checkpointing(interval="1ms"),
        restart=ps.no_restart(),
    )
    frame = (
        spark.readStream.schema("app string").option("maxFilesPerTrigger", 1).json((root / "input").as_uri())
    )
    counted = job.read(frame, uid="clicks").key_by("app").aggregate(n=F.count("*"), uid="count")
    counted.write_to(Ledger(root).sqlite(), uid="out")
    return job


def add(root: Path, number: int) -> None:
    folder = root / "input"
    folder.mkdir(exist_ok=True)
    rows = [{"app": "all"}, {"app": f"app{number}"}]
    (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))


def told(*command: str) -> str:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_job_goes_on_after_the_loss_of_its_machine(
    spark: SparkSession, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every local folder deleted between two runs, each row counts once; the commands read it, and no key is in storage."""
    for name, value in s3.environment().items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    storage = f"s3://{BUCKET}/{SYSTEM_RANDOMNESS.token()}"
    for number in range(2):
        add(tmp_path, number)
    job(spark, tmp_path, storage).run(available_now=True)
    shutil.rmtree(tmp_path / "local")
    for number in range(2, 4):
        add(tmp_path, number)
    handle = job(spark, tmp_path, storage).start(available_now=True)
    handle.wait()
    assert Ledger(tmp_path).counts() == {"all": 4} | {f"app{number}": 1 for number in range(4)}
    assert handle.progress.batches == 2
    kept = open_job_storage(storage, "clicks")
    assert [name for name in kept.names() if name.startswith(("spark/", "_probe"))] == []
    assert not any(secret.encode() in kept.get(name) for name in kept.names() for secret in (SECRET, KEY))
    newest = handle.checkpoints()[-1].checkpoint
    assert f"checkpoint    {newest}, " in told("status", storage, "clicks")
    assert str(newest) in told("checkpoints", storage, "clicks")
    told("savepoint", storage, "clicks", "--to", f"{storage}/saved")
    assert "savepoint.json" in open_job_storage(storage, "saved").names()
