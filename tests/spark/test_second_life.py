"""A job whose storage was deleted, and which starts again under the same path with working files of its old life still on the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps

pytestmark = pytest.mark.spark


class Number(ps.KeyedProcess):
    """Numbers the rows of a key."""

    seen = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        for _ in rows:
            self.seen.value += 1
        yield key, self.seen.value


def run(spark, root: Path, log: ps.sources.PartitionedLog, life: str) -> dict[str, int]:
    """One run over what is in the log; the counts that this life has written so far."""
    job = ps.Job("lives", storage=root / "storage", local_dir=root / "local", parallelism=1)
    counted = (
        job.read(log.read(spark), uid="rows")
        .key_by("user")
        .process(Number(), schema="user string, n long", uid="n")
    )
    counted.write_to(ps.sinks.Files(root / life), uid="out")
    job.run(available_now=True)
    rows = pq.read_table(root / life).to_pylist()
    return {row["user"]: max(one["n"] for one in rows if one["user"] == row["user"]) for row in rows}


def test_working_files_of_an_earlier_life_are_not_state(spark, tmp_path: Path) -> None:
    """Run 2 of the second life restores what run 1 of the second life counted, though files of the same names were left by the first."""
    first = ps.sources.PartitionedLog(tmp_path / "first", "user string", 1)
    for _ in range(2):
        first.append(0, pa.table({"user": ["ann"] * 100}))
        run(spark, tmp_path, first, "one")
    (left,) = (tmp_path / "local").glob("*/run-2*")
    stale = next(left.rglob("*.arrow")).read_bytes()
    shutil.rmtree(tmp_path / "storage")
    second = ps.sources.PartitionedLog(tmp_path / "second", "user string", 1)
    for counted in (1, 2):
        second.append(0, pa.table({"user": ["ann"]}))
        assert run(spark, tmp_path, second, "two") == {"ann": counted}
        # A session of its own would have given its files the names that the first life gave; this one counts attempts on.
        for file in (tmp_path / "storage").rglob("*.arrow"):
            (left / "state" / "n" / file.name).write_bytes(stale)
