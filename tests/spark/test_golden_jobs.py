"""What earlier versions left of a job with every operator is restored for ever: `tests/golden/job-<n>` has their checkpoints and savepoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden_job import HALF, Golden

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).parents[1] / "golden" / "job-1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def rows_after(spark: Any, golden: Golden, backend: str, **start: Any) -> dict[str, list[str]]:
    """What the job gives for the second half of its input, going on from what was restored."""
    golden.fill(0, 2 * HALF)
    golden.job(spark, backend).run(available_now=True, drain=True, **start)
    return golden.rows()


@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
def test_a_checkpoint_of_an_earlier_version(spark: Any, tmp_path: Path, backend: str) -> None:
    """The job goes on from it as the version that made it did: each operator gives the same rows."""
    golden = Golden(tmp_path)
    shutil.unpack_archive(FOLDER / f"{backend}.tar.gz", tmp_path, filter="data")
    (tmp_path / backend).rename(tmp_path / "store")
    assert rows_after(spark, golden, backend) == EXPECTED


def test_a_savepoint_of_an_earlier_version(spark: Any, tmp_path: Path) -> None:
    """A job that starts from it, with another backend and parallelism, gives the same rows."""
    golden = Golden(tmp_path)
    shutil.unpack_archive(FOLDER / "savepoint.tar.gz", tmp_path, filter="data")
    found = rows_after(spark, golden, "memory", savepoint=tmp_path / "savepoint")
    assert found == EXPECTED
