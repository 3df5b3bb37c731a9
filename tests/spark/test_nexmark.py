"""Every query of Nexmark as a job: DuckDB over the same files is the judge."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps

pytestmark = pytest.mark.spark

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module", name="nexmark")
def nexmark_modules() -> Iterator[dict[str, Any]]:
    """The modules of benchmarks/nexmark, by name; workers do not have them."""
    sys.path.insert(0, BENCHMARKS)
    try:
        names = ("events", "penstock_jobs", "spark_queries", "duckdb_answers")
        modules = {name: importlib.import_module(f"nexmark.{name}") for name in names}
        cloudpickle.register_pickle_by_value(modules["penstock_jobs"])
        yield modules
        cloudpickle.unregister_pickle_by_value(modules["penstock_jobs"])
    finally:
        sys.path.remove(BENCHMARKS)


TIMED = ("q4", "q5", "q7", "q8", "q9", "q11", "q20_bounded")
"""The queries that need event time."""
UNTIMED = ("q0", "q1", "q2", "q3", "q15", "q16", "q17", "q18", "q19", "q20")


@pytest.mark.parametrize("queries", [TIMED, UNTIMED], ids=["timed", "untimed"])
def test_results_are_those_of_duckdb(
    spark: SparkSession, nexmark: dict[str, Any], tmp_path: Path, queries: tuple[str, ...]
) -> None:
    """A job of many queries gives DuckDB's rows for each, over two batches in which a day, windows and auctions end."""
    events = nexmark["events"].Events(tmp_path / "events", a_second=60)
    events.write(1_500, 2)
    judge = nexmark["duckdb_answers"].Judge(events)
    job = ps.Job("nexmark", storage=tmp_path / "store", checkpoint=ps.Checkpointing(interval="1ms"))
    read = nexmark["penstock_jobs"].Inputs(job, events.read(spark))
    for query in queries:
        results = nexmark["penstock_jobs"].QUERIES[query](read)
        results.write_to(ps.sinks.Files(tmp_path / query), uid=query)
    job.run(available_now=True)
    for query in queries:
        assert judge.check(query, tmp_path / query) > 0, query


def test_every_query_has_an_answer(nexmark: dict[str, Any]) -> None:
    """Every query is run here, has its answer in SQL, and has a peer in Spark and a figure."""
    names = {*TIMED, *UNTIMED}
    assert nexmark["penstock_jobs"].QUERIES.keys() == nexmark["spark_queries"].QUERIES.keys() == names
    assert (
        nexmark["duckdb_answers"].ANSWERS.keys() == importlib.import_module("goals").NEXMARK.keys() == names
    )


def test_a_wrong_result_is_shown(nexmark: dict[str, Any], tmp_path: Path) -> None:
    """A result that misses rows fails the comparison with some of them."""
    events = nexmark["events"].Events(tmp_path / "events", a_second=60)
    events.write(500, 1)
    judge = nexmark["duckdb_answers"].Judge(events)
    with pytest.raises(
        nexmark["duckdb_answers"].WrongResultError,
        match=r"(?s)q0 of Penstock: 460 rows of DuckDB's are missing.*auction",
    ):
        judge.check("q0", tmp_path)
