"""The oldest Spark, with the oldest of everything else that is allowed: `make test-spark-versions` runs all tests there, this is one job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import oldest_spark_job
import pyspark
import pytest

from penstock.spark.versions import TESTED
from services.patience import PATIENCE_S
from services.spark_versions import OLDEST, PackagesMissingError, clean_environment, python_with


@pytest.mark.skipif(pyspark.__version__.startswith(f"{TESTED[0]}."), reason="all tests run on it now")
def test_a_job_on_the_oldest_spark(tmp_path: Path) -> None:
    """Batches keep their limit, keys find their state, and a second run goes on, on a Spark that lacks what newer ones have for it."""
    try:
        python = python_with(OLDEST, tools=False)
    except PackagesMissingError as missing:
        pytest.skip(f"Spark {OLDEST}: its packages cannot be fetched: {missing}")
    environment = {
        **clean_environment(),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # see services.quick_spark
    }
    done = subprocess.run(
        [str(python), oldest_spark_job.__file__, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["spark"].startswith(f"{OLDEST}.")
    assert found["batches"] == [3, 3], "60 rows each, 25 at a time"
    assert found["by_app"] == found["true_by_app"]
    assert found["by_day"] == found["true_by_day"]
