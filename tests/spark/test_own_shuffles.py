"""A user's own joins and SQL keep the session's settings, and keyed operators have exactly their subtasks all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.spark.compiled import ADAPTIVE, PARTITIONS, batch_settings, with_settings
from penstock.spark.versions import repartitioned

pytestmark = pytest.mark.spark

PARALLELISM = 3
MINE = "org.apache.spark.sql.catalyst.optimizer.CombineFilters"


class Noting(ps.KeyedProcess):
    """Counts the rows of a key, and leaves a file for each call."""

    n = ps.ValueState("long", default=0)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[Any, int]]:
        self.n.value += len(rows)
        with (self.folder / f"{key}-{ctx.checkpoint}").open("a") as file:
            file.write(f"{ctx.subtask}\n")
        yield key, self.n.value


class Seen:
    """What a transform was planned with, batch by batch."""

    def __init__(self, names: DataFrame) -> None:
        self.names = names
        self.plans: list[str] = []

    def named(self, views: DataFrame) -> DataFrame:
        """A join that shuffles."""
        joined = views.join(self.names.hint("merge"), "app")
        self.plans.append(joined._jdf.queryExecution().executedPlan().toString())
        return joined


def test_own_joins_keep_the_settings_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    """A join in `transform` is adaptive, with the session's partitions; operators before and behind it have their subtasks, in every batch.

    In the second batch the other side of the join is empty: the rows before it are seen all the same, and once.
    """
    calls = tmp_path / "calls"
    calls.mkdir()
    apps = [f"app{number}" for number in range(12)]
    names = spark.createDataFrame([(app, app.upper()) for app in apps], "app string, name string")
    seen = Seen(names)
    log = ps.sources.PartitionedLog(tmp_path / "log", ["app string", ("n", "long")], partitions=2)
    log.append(0, [{"app": app, "n": number} for number, app in enumerate(apps)])
    job = ps.Job(
        "shuffles", storage=tmp_path / "store", parallelism=PARALLELISM, max_parallelism=PARALLELISM * 8
    )
    noted = (
        job.read(log.read(spark), uid="log")
        .key_by("app")
        .process(Noting(calls), schema="app string, seen long", uid="noted")
    )
    named = noted.transform(seen.named)
    totals = named.key_by("name").aggregate(
        F.count("*").alias("page views"), F.max("seen").alias("uid"), schema=F.min("seen"), uid="totals"
    )
    totals.write_to(ps.sinks.Files(tmp_path / "out"), uid="out")

    def run_once() -> list[ps.types.Completed]:
        handle = job.start(available_now=True)
        handle.wait("120s")
        return handle.checkpoints()

    run_once()
    seen.names = spark.createDataFrame(spark.sparkContext.parallelize([], 1), names.schema)
    log.append(0, [{"app": "nameless", "n": 1}])
    checkpoints = run_once()

    assert [str(report.subtask) for report in checkpoints[-1].subtasks] == [
        f"{uid}-{number}" for uid in ("noted", "totals") for number in range(PARALLELISM)
    ]
    rows = pq.read_table(tmp_path / "out").sort_by("name").to_pylist()
    names_in_order = sorted(map(str.upper, apps))
    assert rows == [{"name": name, "page views": 1, "uid": 1, "schema": 1} for name in names_in_order]
    assert all(len(path.read_text().splitlines()) == 1 for path in calls.iterdir())
    assert sorted(path.name.split("-")[0] for path in calls.iterdir()) == sorted([*apps, "nameless"])
    partitions = spark.conf.get(PARTITIONS)
    assert partitions != str(PARALLELISM)
    assert all(plan.startswith("AdaptiveSparkPlan") and f", {partitions})" in plan for plan in seen.plans)


@pytest.mark.parametrize("own_shuffles", [True, False])
def test_settings_hold_for_one_batch(spark: SparkSession, *, own_shuffles: bool) -> None:
    """Rows have all their partitions where Spark knows that there are none; the session is left as it was, also by a batch that fails."""
    session = spark.newSession()
    rules = "spark.sql.optimizer.excludedRules"
    session.conf.set(rules, MINE)
    before = {name: session.conf.get(name) for name in (ADAPTIVE, PARTITIONS, rules)}
    settings = batch_settings(session, own_shuffles=own_shuffles, parallelism=PARALLELISM)

    def fail() -> None:
        with with_settings(session, settings):
            nothing = repartitioned(session.range(3).where("1 = 0"), PARALLELISM, F.col("id").cast("int"))
            assert nothing._jdf.queryExecution().toRdd().getNumPartitions() == PARALLELISM
            assert str(session.conf.get(rules)).startswith(f"{MINE},")
            assert (session.conf.get(ADAPTIVE), session.conf.get(PARTITIONS)) == (
                (before[ADAPTIVE], before[PARTITIONS]) if own_shuffles else ("false", str(PARALLELISM))
            )
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {name: session.conf.get(name) for name in before} == before
