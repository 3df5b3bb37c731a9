"""State of every kind, read back as DataFrames: of a savepoint, and of the newest checkpoint of a job."""

from __future__ import annotations

import gc
import json
import operator
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ledger import Ledger
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.checkpoint.model import Barrier, Completed, OperatorState
from penstock.checkpoint.state_columns import columns_of
from penstock.ids import SubtaskId
from penstock.ownership.claim import read_descents
from penstock.ownership.holds import find_holds
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.recovery.history import read_history
from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import read_manifest
from penstock.spark import saved_state
from penstock.spark.key_columns import sort_key
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateLayout, Workplace
from penstock.state.ddl import arrow_schema
from penstock.state.keys import KeyBatch
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "shop string, at timestamp, amount long, price decimal(8,2)"
SHOPS = "abcdef"
ROWS: list[dict[str, Any]] = [
    {"shop": SHOPS[n % 6], "at": BEGIN + timedelta(minutes=n), "amount": n % 7, "price": Decimal(n) / 4}
    for n in range(48)
]


class Mean(ps.AggregateFunction):
    def create(self) -> Any:
        return {"sum": 0, "n": 0}

    def add(self, accumulator: Any, value: Any) -> Any:
        return {"sum": accumulator["sum"] + value, "n": accumulator["n"] + 1}

    def merge(self, accumulator: Any, other: Any) -> Any:
        return {name: accumulator[name] + other[name] for name in accumulator}

    def result(self, accumulator: Any) -> Any:
        return accumulator["sum"] / accumulator["n"]


class Kinds(ps.KeyedProcess):
    rows = ps.ValueState("long", default=0, ttl="1000h")
    first = ps.ValueState("string")
    total = ps.ReducingState("long", operator.add)
    mean = ps.AggregatingState("struct<sum:long,n:long>", Mean)
    raw = ps.RawState(encode=lambda one: json.dumps(one).encode(), decode=json.loads)
    by_amount = ps.MapState("long", "long", ttl="1000h")
    recent = ps.ListState("long")
    rules = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows: Any, ctx: ps.types.Context) -> None:
        for row in rows:
            self.rules[row.rule] = row.limit

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.rows.value += 1
            self.total.add(row.amount)
            self.mean.add(row.amount)
            self.by_amount[row.amount] = self.by_amount.get(row.amount, 0) + 1
            self.recent.append(row.amount)
            if len(self.recent) > 3:
                del self.recent[0]
        if key == "a":
            self.first.value = "only a"
        self.raw.value = [key]
        ctx.set_timer(datetime(2027, 1, 1, tzinfo=UTC))
        ctx.set_timer(datetime(2999, 1, 1, tzinfo=UTC), by="clock")
        yield key, self.rows.value

    def on_timer(self, key: str, timer: ps.types.Timer, ctx: ps.types.Context) -> None:
        return None


class Waiting(ps.Process):
    waiting = ps.OperatorListState("string")

    def process(self, rows: Any, ctx: ps.types.Context) -> Any:
        for row in rows:
            self.waiting.append(row.shop)
        yield (len(self.waiting),)


class Listed(ps.WindowProcess):
    def process(self, key: Any, window: Any, rows: Any, ctx: ps.types.Context) -> Any:
        yield key, len(rows)


class Shop:
    """A job with every kind of state, run once, and a savepoint of it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.ledger = Ledger(root)
        self.log = ps.sources.PartitionedLog(root / "payments", COLUMNS, partitions=1)
        self.rules = ps.sources.PartitionedLog(root / "rules", "rule string, limit long", partitions=1)
        self.rules.append(0, [{"rule": "most", "limit": 5}, {"rule": "least", "limit": 1}])
        self.log.append(0, ROWS)
        self.job().run(available_now=True)
        self.storage = LocalStorage(root / "store" / "pv")
        self.folder = root / "saved"
        completed = read_history(self.storage, read_descents(self.storage)).whole[-1]
        create_savepoint(self.storage, completed, LocalStorage(self.folder), token="5a")

    def job(self) -> ps.Job:
        job = self.ledger.job(parallelism=2)
        rows = self.log.read(self.spark, rows_per_batch=24).select("shop", "at", "amount", "price")
        read = job.read(rows, uid="payments", event_time="at", out_of_order="100h", max_ahead=None)
        rules = job.read(self.rules.read(self.spark), uid="rules")
        right = read.transform(lambda frame: frame.select("shop", F.col("at").alias("paid_at"), "price"))
        keyed = read.key_by("shop")
        results = {
            "views": keyed.aggregate(
                uid="views",
                pv=F.count("*"),
                amounts=F.count_distinct("amount"),
                mean=F.avg("amount"),
                most=F.max("at"),
                total=F.sum("price"),
                price=F.avg("price"),
            ),
            "kinds": keyed.connect(rules.broadcast()).process(
                Kinds(), uid="kinds", schema="shop string, n long", order_by="at"
            ),
            "waiting": read.process(Waiting(), uid="waiting", schema="n long"),
            "hourly": keyed.window(ps.windows.sliding("1h", "30min")).aggregate(
                uid="hourly", n=F.count("*"), price=F.avg("price")
            ),
            "straight": keyed.window(ps.windows.tumbling("20min")).aggregate(uid="straight", n=F.count("*")),
            "visits": keyed.window(ps.windows.session("10min")).aggregate(
                uid="visits", n=F.count("*"), prices=F.count_distinct("price")
            ),
            "lists": keyed.window(ps.windows.tumbling("1h")).process(
                Listed(), uid="lists", schema="shop string, n long"
            ),
            "stretches": keyed.window(ps.windows.session("10min")).process(
                Listed(), uid="stretches", schema="shop string, n long"
            ),
            "fives": keyed.window(ps.windows.count(5)).aggregate(uid="fives", n=F.sum("amount")),
            "paid": read.transform(lambda frame: frame.drop("price")).join(
                right, on="shop", within=("0s", "1min"), how="left", event_time=("at", "paid_at"), uid="paid"
            ),
            "once": read.dedupe(on="amount", within="100h", uid="once"),
            "best": keyed.top(2, by="price desc", uid="best"),
            "known": read.select("shop", "amount").lookup(right, on="shop", uid="known", order_by="paid_at"),
        }
        for uid, result in results.items():
            result.write_to(self.ledger.files(uid), uid=f"{uid}-out")
        return job


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(spark, tmp_path_factory.mktemp("read"))


@pytest.fixture(params=["savepoint", "checkpoint"])
def saved(request: pytest.FixtureRequest, spark: SparkSession, shop: Shop) -> Any:
    """Both ways must show the same."""
    is_savepoint = request.param == "savepoint"
    store = shop.root / "store"
    found = ps.read_savepoint(spark, shop.folder) if is_savepoint else ps.read_state(spark, store, "pv")
    with found:
        yield found


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def of(shop: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if row["shop"] == shop]


def naive(at: datetime) -> datetime:
    return at.astimezone().replace(tzinfo=None)


def test_what_it_is(saved: ps.types.SavedState) -> None:
    """Everything is known without reading a row: the job, positions, event time, operators with their keys and states."""
    assert (saved.job, saved.mode, saved.parallelism) == ("pv", "exactly-once", 2)
    assert saved.checkpoint > 0
    assert saved.positions["payments"] == {"0": 48}
    reached = ROWS[-1]["at"] - timedelta(hours=100, microseconds=1)
    assert saved.watermarks["payments"] == reached
    assert saved.operators["kinds"].key == {"shop": "string"}
    assert saved.operators["kinds"].states == {
        "first": "value",
        "mean": "value",
        "raw": "value",
        "rows": "value",
        "total": "value",
        "by_amount": "map",
        "recent": "list",
        "rules": "broadcast",
        "timers": "timers",
        "clock_timers": "timers",
    }
    assert saved.operators["views"].states["amounts"] == "aggregate"
    said = repr(saved)
    assert "operator kinds by (shop string)" in said
    assert "source payments: {'0': 48}" in said


def test_counts_and_origin_of_a_savepoint(spark: SparkSession, shop: Shop) -> None:
    """A savepoint knows how many rows each table has, and who made it."""
    saved = ps.read_savepoint(spark, shop.folder)
    assert saved.made_by == ps.__version__
    assert saved.made_at.tzinfo is UTC
    assert saved.operators["views"].tables["__values"].rows == 6
    assert saved.operators["kinds"].tables["by_amount"].rows == len({(r["shop"], r["amount"]) for r in ROWS})
    assert saved.size == sum(one.size for one in saved.operators.values()) > 0


def test_aggregates(saved: ps.types.SavedState, shop: Shop) -> None:
    """The row of every key has the results that Spark's own groupBy gives, with its types."""
    frame = saved.state("views")
    judge = (
        shop.spark.createDataFrame(ROWS, COLUMNS)
        .groupBy("shop")
        .agg(
            F.count("*").alias("pv"),
            F.count_distinct("amount").alias("amounts"),
            F.avg("amount").alias("mean"),
            F.max("at").alias("most"),
            F.sum("price").alias("total"),
            F.avg("price").alias("price"),
        )
    )
    assert dict(frame.dtypes) == dict(judge.dtypes)
    assert rows(frame.select(judge.columns)) == rows(judge)
    assert saved.state("views", "pv").columns == ["shop", "pv"]
    assert rows(saved.state("views", "pv")) == [(one, 8) for one in SHOPS]
    distinct = saved.state("views", "amounts_values")
    assert rows(distinct) == sorted({(row["shop"], row["amount"]) for row in ROWS})


def test_state_of_own_code(saved: ps.types.SavedState) -> None:
    """Each state by its name: values, accumulators, bytes as they are, entries, elements with their places from 0 on, timers."""
    frame = saved.state("kinds")
    assert frame.dtypes == [
        ("shop", "string"),
        ("first", "string"),
        ("mean", "struct<sum:bigint,n:bigint>"),
        ("raw", "binary"),
        ("rows", "bigint"),
        ("total", "bigint"),
    ]
    assert frame.count() == 6
    assert rows(saved.state("kinds", "first")) == [("a", "only a")]
    totals = {one: sum(row["amount"] for row in of(one)) for one in SHOPS}
    assert rows(saved.state("kinds", "total")) == sorted(totals.items())
    assert [tuple(row[1]) for row in rows(saved.state("kinds", "mean"))] == [
        (totals[one], 8) for one in SHOPS
    ]
    assert [(k, bytes(v)) for k, v in rows(saved.state("kinds", "raw"))] == [
        (one, json.dumps([one]).encode()) for one in SHOPS
    ]
    entries = Counter((row["shop"], row["amount"]) for row in ROWS)
    found = saved.state("kinds", "by_amount")
    assert found.columns == ["shop", "by_amount_key", "by_amount"]
    assert rows(found) == sorted((*entry, n) for entry, n in entries.items())
    found = saved.state("kinds", "recent")
    assert found.columns == ["shop", "recent_position", "recent"]
    last = {one: [row["amount"] for row in of(one)][-3:] for one in SHOPS}
    assert rows(found) == [(one, at, amount) for one in SHOPS for at, amount in enumerate(last[one])]
    assert rows(saved.state("kinds", "rules")) == [("least", 1), ("most", 5)]
    at = naive(datetime(2027, 1, 1, tzinfo=UTC))
    assert rows(saved.state("kinds", "timers")) == [(one, at) for one in SHOPS]
    assert saved.state("kinds", "clock_timers").columns == ["shop", "at"]
    assert rows(saved.state("kinds", "clock_timers")) == [
        (one, naive(datetime(2999, 1, 1, tzinfo=UTC))) for one in SHOPS
    ]


def test_lists_of_subtasks(saved: ps.types.SavedState) -> None:
    """The list of each subtask, in its order."""
    found = saved.state("waiting")
    assert found.columns == ["subtask", "waiting_position", "waiting"]
    by_subtask: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for subtask, at, element in rows(found):
        by_subtask[subtask].append((at, element))
    assert all([at for at, _ in one] == list(range(len(one))) for one in by_subtask.values())
    assert sorted(element for one in by_subtask.values() for _, element in one) == sorted(
        row["shop"] for row in ROWS
    )


def test_windows(saved: ps.types.SavedState, shop: Shop) -> None:
    """Open windows have their bounds and the aggregates so far, as Spark's own windows have over the same rows."""
    every = shop.spark.createDataFrame(ROWS, COLUMNS)
    bounds = (F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"))
    judge = every.groupBy("shop", F.window("at", "1 hour", "30 minutes").alias("window")).agg(
        F.count("*").alias("n"), F.avg("price").alias("price")
    )
    assert saved.state("hourly").columns == ["shop", "window_start", "window_end", "n", "price"]
    assert rows(saved.state("hourly", "windows")) == rows(judge.select("shop", *bounds, "n", "price"))
    judge = every.groupBy("shop", F.session_window("at", "10 minutes").alias("window")).agg(
        F.count("*").alias("n"), F.size(F.collect_set("price")).alias("prices")
    )
    assert rows(saved.state("visits")) == rows(judge.select("shop", *bounds, "n", "prices"))
    lists = every.select("shop", F.window("at", "1 hour").alias("window"), "at", "amount", "price")
    assert rows(saved.state("lists")) == rows(lists.select("shop", *bounds, "at", "amount", "price"))
    stretches = saved.state("stretches", "rows")
    assert stretches.columns == ["shop", "at", "amount", "price"]
    assert rows(stretches) == rows(every)
    assert saved.state("stretches", "windows").columns == ["shop", "window_start", "window_end", "rows"]
    assert rows(saved.state("fives")) == [
        (one, 3, sum(row["amount"] for row in of(one)[5:])) for one in SHOPS
    ]
    assert saved.state("fives").columns == ["shop", "rows", "n"]


def test_rows_of_the_stream(saved: ps.types.SavedState, shop: Shop) -> None:
    """Joins, top, dedupe and lookup show the rows they keep, without anything that only Penstock knows."""
    every = shop.spark.createDataFrame(ROWS, COLUMNS)
    left, right = saved.state("paid", "left"), saved.state("paid", "right")
    assert left.columns == ["shop", "at", "amount", "matched"]
    assert rows(left.drop("matched")) == rows(every.select("shop", "at", "amount"))
    assert rows(right) == rows(every.select("shop", "at", "price"))
    assert right.columns == ["shop", "paid_at", "price"]
    best = saved.state("best")
    assert best.columns == ["shop", "at", "amount", "price"]
    assert rows(best.select("shop", "price")) == sorted(
        (one, row["price"]) for one in SHOPS for row in of(one)[-2:]
    )
    once = saved.state("once")
    assert rows(once) == [(n, naive(BEGIN + timedelta(minutes=n))) for n in range(7)]
    assert rows(saved.state("known")) == [
        (one, naive(of(one)[-1]["at"]), of(one)[-1]["price"]) for one in SHOPS
    ]


def test_internal_columns(saved: ps.types.SavedState) -> None:
    """`internal=True` shows the table as it is stored."""
    assert not [name for name in saved.state("kinds").columns if name.startswith("__")]
    stored = saved.state("kinds", internal=True)
    assert stored.columns[:2] == ["__sort_key", "shop"]
    assert "__touched_rows" in stored.columns
    parts = saved.state("views", internal=True)
    assert {"__mean_sum", "__mean_count", "__pv_count"} <= set(parts.columns)
    assert saved.state("kinds", "recent", internal=True).columns[:2] == ["__sort_key", "__order"]
    assert saved.state("visits", "ends of sessions", internal=True).count() > 0


def test_names_that_are_not_there(saved: ps.types.SavedState) -> None:
    """A wrong name says which there are."""
    with pytest.raises(ps.ConfigError, match=r"no operator 'view' has state.*did you mean 'views'"):
        saved.state("view")
    with pytest.raises(
        ps.ConfigError, match=r"no state of 'views' is called 'amount'.*did you mean 'amounts'"
    ):
        saved.state("views", "amount")
    with pytest.raises(ps.ConfigError, match="say which state: there are 'left', 'right'"):
        saved.state("paid")
    with pytest.raises(ps.ConfigError, match="belongs to subtasks"):
        saved.state("waiting", keys=["a"])


def test_only_some_keys(saved: ps.types.SavedState) -> None:
    """`keys` gives the rows of these keys and no others, whatever form the keys have."""
    assert rows(saved.state("views", "pv", keys=["a", "d", "never"])) == [("a", 8), ("d", 8)]
    assert rows(saved.state("views", "pv", keys=[("b",), {"shop": "c"}, "b"])) == [("b", 8), ("c", 8)]
    assert saved.state("kinds", "recent", keys=["f"]).count() == 3
    assert saved.state("hourly", keys=["f"]).select("shop").distinct().collect() == [("f",)]
    assert saved.state("views", "pv", keys=[]).count() == 0
    with pytest.raises(ps.ConfigError, match="is no key: give a value for each of shop"):
        saved.state("views", keys=[("a", "b")])
    with pytest.raises(ps.ConfigError, match=r"keys=\[17\] do not fit the key \(shop string\)"):
        saved.state("views", keys=[17])


def test_keys_read_only_their_files(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Of two files only the one that owns the key is read: the other may be ruined."""
    copy = tmp_path / "copy"
    shutil.copytree(shop.folder, copy)
    files = read_manifest(LocalStorage(copy)).operators["views"].files["__values"]
    owners = {
        key: part
        for part, file in enumerate(files)
        for key in pq.read_table(copy / file.path)["shop"].to_pylist()
    }
    assert set(owners.values()) == {0, 1}
    for part, file in enumerate(files):
        path = copy / file.path
        data = path.read_bytes()
        path.write_bytes(data[:40] + bytes([data[40] ^ 255]) + data[41:])
        fine = [key for key, owner in owners.items() if owner != part]
        saved = ps.read_savepoint(spark, copy)
        assert rows(saved.state("views", "pv", keys=fine)) == sorted((key, 8) for key in fine)
        with pytest.raises(
            PythonException, match=rf"{file.path} of the savepoint .* is corrupt: its checksum is"
        ):
            saved.state("views", "pv").collect()
        path.write_bytes(data)


def test_a_file_that_is_missing(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """What is missing or too short is said before Spark reads anything."""
    copy = tmp_path / "copy"
    shutil.copytree(shop.folder, copy)
    path = copy / read_manifest(LocalStorage(copy)).operators["views"].files["__values"][0].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ps.errors.CorruptStateError, match=r"views/values.*bytes, expected"):
        ps.read_savepoint(spark, copy)


def test_checkpoints_are_held_until_it_is_closed(spark: SparkSession, shop: Shop) -> None:
    """A hold lies in the job's storage while its state is being read, and nothing is left of it."""
    with ps.read_state(spark, shop.root / "store", "pv") as state:
        (hold,) = find_holds(shop.storage, time.time()).good
        assert hold.why
        assert state.state("views").count() == 6
    assert shop.storage.names("holds") == []
    with pytest.raises(ps.ConfigError, match="was closed"):
        state.state("views")


def test_a_frame_outlives_the_object_it_was_made_of(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever forgets to close holds on until the process ends: a DataFrame can be read as long."""
    at_the_end: list[Callable[[], None]] = []
    monkeypatch.setattr(saved_state.atexit, "register", at_the_end.append)
    frame = ps.read_state(spark, shop.root / "store", "pv").state("views")
    gc.collect()
    assert find_holds(shop.storage, time.time()).good
    assert frame.count() == 6
    at_the_end.pop()()
    assert shop.storage.names("holds") == []


@pytest.mark.parametrize("uid", ["straight", "lists"])
def test_keys_of_windows(saved: ps.types.SavedState, uid: str) -> None:
    """All windows of a key are found, also where each window is a key of its own and lies with another subtask."""
    (name,) = saved.operators[uid].states
    every = rows(saved.state(uid))
    for keys in ("b", SHOPS):
        wanted = [row for row in every if row[0] in keys]
        assert rows(saved.state(uid, keys=keys)) == wanted
        assert saved.state(uid, name, keys=keys, internal=True).count() == len(wanted) > 0


def saved_keys(
    spark: SparkSession, root: Path, columns: str, keys: list[tuple[Any, ...]]
) -> ps.types.SavedState:
    """A savepoint of an operator `op` that has a number for each of these keys."""
    frame = spark.createDataFrame(keys, columns)
    names = tuple(frame.columns)
    table = frame.select(*names, sort_key(names, 8)).toArrow()
    table = table.take(pa.array(np.argsort(table["__sort_key"].to_numpy())))
    layout = StateLayout(arrow_schema(columns), arrow_schema("n long"))
    storage = LocalStorage(root / "job")
    record = check_job_record(storage, JobRecord("job", 8))
    place = Workplace(storage, root / "local", SubtaskId("op", 0), 1, 8, version=1, stem="1-1-0-0")
    with closing(backend_named("memory").open(place, layout, None)) as state:
        (batch,) = table.select(list(names)).cast(layout.key).combine_chunks().to_batches()
        values = pa.record_batch([pa.array(range(len(keys)), pa.int64())], schema=layout.value)
        state.write(KeyBatch(table["__sort_key"].to_numpy(), batch), values)
        handle = state.freeze()
    told = columns_of(layout)
    completed = Completed(
        job=record.job, checkpoint=1, run=1, mode="exactly-once", max_parallelism=8, parallelism=1, barrier=Barrier(),
        operators={"op": OperatorState(told.key, told.value, (handle,), schema=told.schema)},
    )  # fmt: skip
    create_savepoint(storage, completed, LocalStorage(root / "saved"), token="5a")
    return ps.read_savepoint(spark, root / "saved")


def test_keys_of_any_type(spark: SparkSession, tmp_path: Path) -> None:
    """Keys are found by Spark's own hash, also those with several columns, with NaN, with both zeros and with nulls inside."""
    keys = [("a", float("nan")), ("a", 0.0), ("b", 1.5), (None, 2.0)]
    saved = saved_keys(spark, tmp_path, "card string, x double", keys)
    assert saved.state("op").count() == 4
    for wanted, found in [
        (("a", float("nan")), ("a", float("nan"))),
        (("a", -0.0), ("a", 0.0)),
        ({"x": 1.5, "card": "b"}, ("b", 1.5)),
        ((None, 2), (None, 2.0)),
    ]:
        ((card, x, _),) = saved.state("op", keys=[wanted]).collect()
        assert repr((card, x)) == repr(found)


@pytest.fixture
def far_from_utc(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine and the session are in two time zones, and neither is UTC."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.usefixtures("far_from_utc")
def test_keys_in_other_time_zones(spark: SparkSession, tmp_path: Path) -> None:
    """Moments are found as `collect` shows them, and as moments in UTC."""
    moments = [
        datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in range(8)
    ]  # two are at 01:30 in New York
    saved = saved_keys(spark, tmp_path, "at timestamp", [(at,) for at in moments])
    shown = [row.at for row in saved.state("op").collect()]
    assert sorted(at.astimezone(UTC) for at in shown) == moments
    assert rows(saved.state("op", keys=shown)) == rows(saved.state("op"))
    assert [row.at.astimezone(UTC) for row in saved.state("op", keys=moments[5:6]).collect()] == moments[5:6]


@pytest.mark.usefixtures("far_from_utc")
def test_keys_without_a_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    """A time of the day is the same in every zone, also inside a struct."""
    days = [datetime(2026, 12, 1, hour, 30) for hour in range(4)]  # noqa: DTZ001 - these have none
    saved = saved_keys(spark, tmp_path / "plain", "at timestamp_ntz", [(at,) for at in days])
    assert sorted(row.at for row in saved.state("op", keys=days[1:]).collect()) == days[1:]
    columns = "at struct<day:timestamp_ntz,at:timestamp>"
    saved = saved_keys(spark, tmp_path / "nested", columns, [((at, at),) for at in days])
    every = saved.state("op").collect()
    assert saved.state("op", keys=[(row.at,) for row in every[:3]]).count() == 3


def test_a_job_without_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """There is nothing to read, and no hold is left."""
    LocalStorage(tmp_path / "new").put("job.json", b"{}")
    with pytest.raises(ps.ConfigError, match="has no completed checkpoint"):
        ps.read_state(spark, tmp_path, "new")
    assert LocalStorage(tmp_path / "new").names("holds") == []
