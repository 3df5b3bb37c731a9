"""Spark's file source, which lists what it has read in Spark's progress log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from ledger import Ledger
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark


class Clicks:
    """Files of clicks, one more app in each, and a job that counts them: one file a batch."""

    def __init__(self, root: Path) -> None:
        self.ledger = Ledger(root)
        self.input = root / "input"
        self.input.mkdir()
        self.folder = root / "its storage, 50%20 #1"
        self.storage = self.folder / "clicks"
        self.truth: Counter[str] = Counter()

    def add(self, files: int) -> None:
        for _ in range(files):
            apps = ["all", f"app{len(list(self.input.iterdir()))}"]
            (self.input / f"{apps[1]}.json").write_text("\n".join(json.dumps({"app": app}) for app in apps))
            self.truth.update(apps)

    def job(self, spark) -> ps.Job:
        job = ps.Job(
            "clicks",
            storage=self.folder,
            local_dir=self.ledger.root / "local",
            checkpoint=ps.Checkpointing(interval="1ms"),
            restart=ps.no_restart(),
        )
        frame = (
            spark.readStream.schema("app string").option("maxFilesPerTrigger", 1).json(self.input.as_uri())
        )
        counted = job.read(frame, uid="clicks").key_by("app").aggregate(n=F.count("*"), uid="count")
        counted.write_to(self.ledger.sqlite(), uid="out")
        return job


def test_sparks_log_is_lost(spark, tmp_path):
    """After a power cut that leaves nothing of Spark's log the source reads no file again and leaves none out; wherever Spark's default is."""
    clicks = Clicks(tmp_path)
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")
    spark.conf.set("fs.defaultFS", "nowhere://cluster")
    try:
        clicks.add(4)
        clicks.job(spark).run(available_now=True)
        shutil.rmtree(clicks.storage / "spark")
        clicks.add(2)
        handle = clicks.job(spark).start(available_now=True)
        handle.wait()
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
        spark.conf.unset("fs.defaultFS")
    assert clicks.ledger.counts() == clicks.truth
    assert handle.progress.batches == 2
    noted = handle.checkpoints()[-1].barrier.source_log
    assert [file.path for file in noted] == ["0/5.compact"]
    assert [path.name for path in (clicks.storage / "state" / "_sources").iterdir()] == ["2-0-5.compact"]
