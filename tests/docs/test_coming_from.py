"""The code on the pages for those who come from elsewhere is code that a job takes, and Spark plans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import penstock as ps
from penstock.spark.compiled import compile_job

DOCS = Path(__file__).parents[2] / "docs"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.spark


def blocks(page: str) -> list[str]:
    return PYTHON_BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def names_for_code(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """What the code on the pages takes for granted."""
    schemas = {
        "payments": "card string, shop string, cents long",
        "rules": "shop string, most long",
        "clicks": "user string, page string",
    }
    frames = {
        name: ps.sources.PartitionedLog(folder / name, schema, partitions=1).read(spark)
        for name, schema in schemas.items()
    }
    job = ps.Job("coming-from", storage=folder / "storage")
    streams = {name: job.read(frames[name], uid=name) for name in ("payments", "rules")}
    others = {"LIMIT": 1000, "Row": Row, "StatefulProcessor": StatefulProcessor}
    return {"ps": ps, "job": job, "clicks": frames["clicks"], **streams, **others}


@pytest.mark.parametrize("page", ["from-flink.md", "from-transform-with-state.md"])
def test_what_stands_there_can_be_run(spark: SparkSession, tmp_path: Path, page: str) -> None:
    """Every stream that the code makes is one that could be written: its states, its columns and Spark's plan fit together."""
    given = names_for_code(spark, tmp_path)
    job: ps.Job = given["job"]
    made: list[ps.types.Stream] = []
    for block in blocks(page):
        before = set(map(id, given.values()))
        exec(block, given)
        made += [one for one in given.values() if isinstance(one, ps.types.Stream) and id(one) not in before]
    assert made
    for number, stream in enumerate(made):
        sink = ps.sinks.Files(tmp_path / str(number), format="parquet")
        stream.write_to(sink, uid=f"out-{number}")
    compiled = compile_job(job.graph)
    assert len(compiled.operators) == len(job.graph.operators) > 0
