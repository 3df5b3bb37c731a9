"""Joins, lookups, dedupe and own code over two streams in a running job: Spark's own joins of the whole input are the judge."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.state.ddl import arrow_schema

pytestmark = pytest.mark.spark

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
ORDERS = "order_id string, item long, ordered_at timestamp"
PAYMENTS = "paid_at timestamp, id string, amount double"
WITHIN = "p.paid_at between o.ordered_at - interval 5 minutes and o.ordered_at + interval 10 minutes"
SAME_WINDOW = "floor(unix_seconds(o.ordered_at) / 1200) = floor(unix_seconds(p.paid_at) / 1200)"
JUDGE = """
select coalesce(o.order_id, p.id) as order_id, o.item, o.ordered_at, p.paid_at, p.amount
from orders o {how} join payments p on o.order_id = p.id and {condition}
"""
DEDUPE_WITHIN = timedelta(minutes=20)


class Shop:
    """Two logs, with keys that come again and some that are null, and a job over them."""

    def __init__(self, root):
        self.root = root
        self.logs = {
            "orders": ps.sources.PartitionedLog(root / "orders", ORDERS, 2),
            "payments": ps.sources.PartitionedLog(root / "payments", PAYMENTS, 2),
        }
        self._random = random.Random(7)
        self._minute = 0

    def fill(self, rows, minutes=30):
        """Rows of the next minutes, in any order."""
        for partition in range(2):
            self.append("orders", partition, [self._row() for _ in range(rows)])
            self.append("payments", partition, [self._row() for _ in range(rows)])
        self._minute += minutes

    def append(self, name, partition, rows):
        """Each has a key, a number and a time."""
        columns = {
            "orders": ([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]),
            "payments": ([row[2] for row in rows], [row[0] for row in rows], [row[1] / 4 for row in rows]),
        }[name]
        schema = arrow_schema(ORDERS if name == "orders" else PAYMENTS)
        self.logs[name].append(
            partition,
            pa.table([pa.array(one, f.type) for one, f in zip(columns, schema, strict=True)], schema=schema),
        )

    def _row(self):
        key = self._random.choice([f"k{n}" for n in range(12)] + [None])
        minute = self._minute + self._random.uniform(0, 30)
        return key, self._random.randrange(1000), BEGIN + timedelta(minutes=minute)

    def job(self, **settings):
        return ps.Job(
            "shop",
            storage=self.root / "store",
            local_dir=self.root / "local",
            restart=ps.no_restart(),
            checkpoint=ps.Checkpointing(interval="1ms"),
            **settings,
        )

    def streams(self, spark, job):
        return (
            job.read(
                log.read(spark, rows_per_batch=80).select(*arrow_schema(ddl).names),
                uid=name,
                event_time=time,
                out_of_order="35min",
            )
            for (name, log), ddl, time in zip(
                self.logs.items(), (ORDERS, PAYMENTS), ("ordered_at", "paid_at"), strict=True
            )
        )

    def write(self, stream, name):
        stream.write_to(ps.sinks.Files(self.root / "out" / name, format="parquet"), uid=f"{name}-out")

    def rows(self, name):
        if not any((self.root / "out" / name).glob("*.parquet")):
            return []
        return ds.dataset(self.root / "out" / name, format="parquet").to_table().to_pylist()

    def views(self, spark):
        """The rows that are not late, for Spark."""
        for name, log in self.logs.items():
            time = "ordered_at" if name == "orders" else "paid_at"
            table = log.table().select(arrow_schema(ORDERS if name == "orders" else PAYMENTS).names)
            spark.createDataFrame(table).where(
                f"{time} >= timestamp'{BEGIN.isoformat()}'"
            ).createOrReplaceTempView(name)


def plain(rows):
    """In an order, and without zones."""
    return sorted(
        (
            tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)
            for row in rows
        ),
        key=repr,
    )


def judged(spark, how, condition):
    rows = spark.sql(JUDGE.format(how=how, condition=condition)).toArrow().to_pylist()
    return plain(tuple(row.values()) for row in rows)


class Counts(ps.KeyedCoProcess):
    """How many rows a key has had on either side."""

    counts = ps.MapState("string", "long")

    def process_left(self, key, rows, ctx):
        self.counts["left"] = self.counts.get("left", 0) + len(rows)
        assert rows.column("ordered_at") == sorted(rows.column("ordered_at"))

    def process_right(self, key, rows, ctx):
        self.counts["right"] = self.counts.get("right", 0) + len(rows)
        amounts = rows.column("amount")
        assert amounts == sorted(amounts, reverse=True)
        yield key, self.counts.get("left", 0), self.counts["right"]


def test_two_streams_over_several_batches_runs_and_parallelisms(spark, tmp_path):
    """What comes out over two runs is what Spark says about the whole input; late rows are in streams of their own."""
    shop = Shop(tmp_path)
    late = {"orders": ("k1", 1, BEGIN - timedelta(days=1)), "payments": ("k2", 2, BEGIN - timedelta(days=2))}
    for parallelism in (2, 3):
        shop.fill(60)
        if parallelism == 3:
            for name, row in late.items():
                shop.append(name, 0, [row])
        job = shop.job(parallelism=parallelism)
        orders, payments = shop.streams(spark, job)
        for how in ("inner", "full"):
            joined = orders.join(
                payments, on=[("order_id", "id")], within=("-5min", "10min"), how=how, uid=how
            )
            shop.write(joined, how)
        shop.write(joined.late("left"), "late-orders")
        shop.write(joined.late("right"), "late-payments")
        windows = ps.windows.tumbling("20min")
        shop.write(
            orders.join(payments, on=[("order_id", "id")], window=windows, how="left", uid="window"), "window"
        )
        once = payments.dedupe(on="id", within="20min", uid="once", on_bad_record="skip")
        shop.write(once, "once")
        counts = orders.key_by("order_id").connect(payments.key_by("id"))
        counted = counts.process(
            Counts(),
            schema="k string, lefts long, rights long",
            uid="counts",
            order_by="ordered_at",
            right_order_by="amount desc",
            on_bad_record="skip",
        )
        shop.write(counted, "counts")
        job.run(available_now=True, drain=parallelism == 3)
    shop.views(spark)
    for how in ("inner", "full"):
        assert plain(tuple(row.values()) for row in shop.rows(how)) == judged(spark, how, WITHIN)
    in_windows = [tuple(row.values()) for row in shop.rows("window")]
    assert plain(row[:5] for row in in_windows) == judged(spark, "left", SAME_WINDOW)
    assert all(row[5] <= row[2] < row[6] == row[5] + timedelta(minutes=20) for row in in_windows)
    assert [row["order_id"] for row in shop.rows("late-orders")] == ["k1"]
    assert [row["id"] for row in shop.rows("late-payments")] == ["k2"]
    check_once(shop)
    check_counts(spark, shop)


def check_once(shop):
    """Those that passed are apart, and all others are near to one of them."""
    passed = defaultdict(list)
    for row in shop.rows("once"):
        passed[row["id"]].append(row["paid_at"])
    for moments in passed.values():
        moments.sort()
        assert all(b - a >= DEDUPE_WITHIN for a, b in pairwise(moments))
    every = [
        row for row in shop.logs["payments"].table().to_pylist() if row["id"] and row["paid_at"] >= BEGIN
    ]
    assert all(any(abs(row["paid_at"] - one) < DEDUPE_WITHIN for one in passed[row["id"]]) for row in every)


def check_counts(spark, shop):
    last = {
        row["k"]: (row["lefts"], row["rights"])
        for row in sorted(shop.rows("counts"), key=lambda row: row["rights"])
    }
    rows = {
        name: [row for row in log.table().column(key).to_pylist() if row]
        for (name, log), key in zip(shop.logs.items(), ("order_id", "id"), strict=True)
    }
    assert {key: rights for key, (_, rights) in last.items()} == {
        key: rows["payments"].count(key) for key in set(rows["payments"])
    }


def test_wrong_use_is_refused_before_anything_runs(spark, tmp_path):
    """Keys of different types, columns of one name, no time: each is said before the query starts."""
    from pyspark.sql import functions as F

    shop = Shop(tmp_path)

    def refused(build, match):
        job = shop.job()
        orders, payments = shop.streams(spark, job)
        build(orders, payments).write_to(ps.sinks.Files(tmp_path / "none", format="parquet"), uid="out")
        with pytest.raises(ps.ConfigError, match=match):
            job.run(available_now=True)

    within = {"within": ("-5min", "10min"), "uid": "join"}
    refused(
        lambda o, p: o.join(p, on=[("item", "id")], **within),
        "'item' of the left stream is bigint, 'id' of the right one string",
    )
    refused(lambda o, p: o.join(o, on="order_id", **within), "two columns called item, ordered_at")
    refused(lambda o, p: o.join(p, on="order_id", **within), "key column 'order_id' does not exist")
    refused(
        lambda o, p: o.join(p, on=[("order_id", "id")], **within).dedupe(
            on="order_id", within="1h", uid="once"
        ),
        "join 'join': its results have the times of two rows",
    )
    refused(
        lambda o, p: o.transform(lambda f: f.drop("ordered_at")).dedupe(
            on="order_id", within="1h", uid="once"
        ),
        "'ordered_at', and there is no such column",
    )
    windows = ps.windows.tumbling("20min")

    def most(payments):
        return payments.key_by("id").window(windows).aggregate(most=F.max("amount"), uid="most")

    in_windows = {"on": [("order_id", "id")], "window": windows, "uid": "join"}
    refused(
        lambda o, p: o.join(most(p), **in_windows),
        "two columns called window_end, window_start; rename .* A window_end that is renamed is still the time of its result",
    )
    refused(
        lambda o, p: o.join(
            most(p).transform(lambda f: f.selectExpr("id", "most", "window_end + interval 1 day as to")),
            **in_windows,
        ),
        "Keep the end of the window, under any name",
    )
    refused(
        lambda o, p: o.lookup(p.select("id"), on=[("order_id", "id")], uid="l"),
        "nothing to look up",
    )


def test_the_time_of_a_result_moves_what_is_behind(spark, tmp_path):
    """Windows behind an outer join by `at` lose none of its results; a join by windows finds those of a window whose end was renamed."""
    shop = Shop(tmp_path)
    shop.fill(60)
    shop.fill(60)
    job = shop.job()
    orders, payments = shop.streams(spark, job)
    joined = orders.join(
        payments, on=[("order_id", "id")], within=("-5min", "10min"), how="full", uid="full", at="joined_at"
    )
    shop.write(joined, "full")
    keyed = joined.where("order_id is not null").key_by("order_id")
    from pyspark.sql import functions as F

    counted = keyed.window(ps.windows.tumbling("10min")).aggregate(n=F.count("*"), uid="windows")
    shop.write(counted, "windows")
    shop.write(counted.late(), "late")
    looked_up = orders.lookup(payments, on=[("order_id", "id")], how="inner", uid="lookup")
    shop.write(looked_up, "lookup")
    write_best(shop, payments)
    job.run(available_now=True, drain=True)
    shop.views(spark)
    expected = judged(spark, "full", WITHIN)
    assert plain(tuple(row.values())[:5] for row in shop.rows("full")) == expected
    assert sum(row["n"] for row in shop.rows("windows")) == sum(row[0] is not None for row in expected)
    assert shop.rows("late") == []
    check_best(shop)
    paid = {(row["id"], row["amount"]) for row in shop.logs["payments"].table().to_pylist()}
    found = shop.rows("lookup")
    assert found
    assert all((row["order_id"], row["amount"]) in paid for row in found)


def write_best(shop, payments):
    """The highest payments of each key and window, beside what the window gives; once with the renamed end named as event time."""
    from pyspark.sql import functions as F

    known = payments.where("id is not null")
    windows = ps.windows.tumbling("20min")
    most = known.key_by("id").window(windows).aggregate(most=F.max("amount"), uid="most")
    renamed = most.transform(
        lambda frame: frame.withColumnsRenamed({"window_start": "since", "window_end": "until"})
    )
    on = ["id", ("amount", "most")]
    shop.write(known.join(renamed, on=on, window=windows, uid="best"), "best")
    named = renamed.transform(lambda frame: frame.select("id", "most", "since", frame.until.alias("to")))
    times = ("paid_at", "to")
    shop.write(known.join(named, on=on, window=windows, event_time=times, uid="named"), "named")


def check_best(shop):
    by_window = defaultdict(list)
    for row in shop.logs["payments"].table().to_pylist():
        if row["id"]:
            by_window[row["id"], int(row["paid_at"].timestamp()) // 1200].append(row)
    best = [
        row
        for rows in by_window.values()
        for row in rows
        if row["amount"] == max(other["amount"] for other in rows)
    ]
    expected = plain((row["id"], row["paid_at"]) for row in best)
    assert len(expected) > 20
    for name in ("best", "named"):
        assert plain((row["id"], row["paid_at"]) for row in shop.rows(name)) == expected
