"""Rows with maps, in structs and arrays too, wherever they enter Python: Spark gives the columns that it groups by other names on the way."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger import Ledger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps

pytestmark = pytest.mark.spark

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DEEP = (
    "cast(named_struct('maps', array(map(user, 'x'), map(1L, shop, 2L, 'y')), 'plain', map('k', user)) as "
    "struct<maps: array<map<bigint, string>>, plain: map<string, bigint>>) as deep"
)
TAGS = "map('z', user, 'a', -user) as tags"


def with_maps(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("shop", "at", "user", TAGS, DEEP)


def by_map(rows: DataFrame) -> DataFrame:
    """A user's own aggregate, whose groups have maps."""
    return rows.where("shop is not null").groupBy("tags", "deep", "shop").count()


class Passing(ps.KeyedProcess):
    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[Any]:
        for row in rows:
            yield key, json.dumps(sorted(dict(row.tags).items())), row.deep["plain"]["k"], row["count"]


def test_maps_keep_their_names_on_the_way_to_python(spark: SparkSession, tmp_path: Path) -> None:
    """Dead letters, late rows and what a user has grouped by a map are complete, under the names that the plan promises."""
    ledger = Ledger(tmp_path)
    log = ps.sources.PartitionedLog(tmp_path / "payments", "shop string, at timestamp, user long", 1)
    at = [START, START, None, START, None]
    rows = {"shop": ["a", None, "a", None, "b"], "at": pa.array(at, pa.timestamp("us", "UTC"))}
    log.append(0, pa.table({**rows, "user": pa.array(range(5), pa.int64())}))

    job = ledger.job(on_bad_record="skip")
    read = job.read(log.read(spark), uid="payments", event_time="at").transform(with_maps)
    by_shop = read.key_by("shop")
    operators = {
        "views": by_shop.aggregate(n=F.count("*"), uid="views"),
        "distinct": by_shop.aggregate(n=F.count_distinct("user"), uid="distinct"),
        "tumbling": by_shop.window(ps.windows.tumbling("1h")).aggregate(n=F.count("*"), uid="tumbling"),
        "session": by_shop.window(ps.windows.session("1h")).aggregate(n=F.count("*"), uid="session"),
    }
    for uid, operator in operators.items():
        operator.write_to(ledger.files(uid), uid=f"{uid}-out")
        operator.bad_records().write_to(ledger.files(f"{uid}-bad"), uid=f"{uid}-bad-out")
    for uid in ("tumbling", "session"):
        late = operators[uid].late()
        late.write_to(ledger.files(f"{uid}-late"), uid=f"{uid}-late-out")
    grouped = read.transform(by_map)
    grouped.write_to(ledger.files("grouped"), uid="grouped-out")
    passed = grouped.key_by("shop").process(
        Passing(), schema="shop string, tags string, k long, n long", uid="passing"
    )
    passed.write_to(ledger.files("passed"), uid="passed-out")
    handle = job.start(available_now=True)
    handle.wait()

    for uid in operators:
        letters = [json.loads(one["row"]) for one in ledger.rows(f"{uid}-bad")]
        assert Counter(one["user"] for one in letters) == {1: 1, 3: 1}, uid
        deep = {"maps": [[[1, "x"]], [[1, None], [2, "y"]]], "plain": [["k", 1]]}
        first = next(one for one in letters if one["user"] == 1)
        assert (first["tags"], first["deep"]) == ([["a", -1], ["z", 1]], deep), uid
    assert handle.progress.bad_records == dict.fromkeys(operators, 2)
    for uid in ("tumbling", "session"):
        came_late = [(one["shop"], one["user"], dict(one["tags"])) for one in ledger.rows(f"{uid}-late")]
        assert sorted(came_late) == [("a", 2, {"a": -2, "z": 2}), ("b", 4, {"a": -4, "z": 4})], uid
    named = ledger.rows("grouped")
    assert {tuple(row) for row in named} == {("tags", "deep", "shop", "count")}
    assert Counter((row["shop"], dict(row["tags"])["z"], row["count"]) for row in named) == {
        ("a", 0, 1): 1,
        ("a", 2, 1): 1,
        ("b", 4, 1): 1,
    }
    assert sorted((row["shop"], row["k"], row["n"]) for row in ledger.rows("passed")) == [
        ("a", 0, 1),
        ("a", 2, 1),
        ("b", 4, 1),
    ]
