"""Plans of batches: made once where they can be, and anew where they depend on rows or on the moment."""

from __future__ import annotations

import datetime as dt
import os
import random

import py4j.clientserver
import py4j.java_gateway
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ledger import Ledger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import penstock as ps
from penstock.spark.batch_plans import BatchPlans, BatchRun
from penstock.spark.plan_template import PlanTemplate, RowSlot, rows_of_frame

pytestmark = pytest.mark.spark

START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
WINDOW = ps.windows.tumbling("1h")


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


@pytest.fixture
def steady(spark, monkeypatch):
    """The calls into the JVM and the compiled classes of each batch, as far as its plan and its action go."""
    made: list[tuple[int, int]] = []
    calls = 0

    def counting(send):
        def counted(self, command, *rest, **named):
            nonlocal calls
            calls += not command.startswith("m")  # the garbage collector's
            return send(self, command, *rest, **named)

        return counted

    for connection in (py4j.java_gateway.GatewayConnection, py4j.clientserver.ClientServerConnection):
        monkeypatch.setattr(connection, "send_command", counting(connection.send_command))
    run, metrics = BatchPlans.run, spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics

    def measured(self: BatchPlans, batch: BatchRun):
        classes, before = metrics.METRIC_COMPILATION_TIME().getCount(), calls
        try:
            return run(self, batch)
        finally:
            made.append((calls - before, metrics.METRIC_COMPILATION_TIME().getCount() - classes))

    monkeypatch.setattr(BatchPlans, "run", measured)
    return made


def write_events(folder, batches: int, rows: int = 60) -> list[dict]:
    """Files of events, one for each batch, an hour after the other. Half of the columns are for no use."""
    folder.mkdir()
    written = []
    for batch in range(batches):
        events = [
            {
                "user": n % 7,
                "amount": n * 1.5,
                "at": START + dt.timedelta(hours=batch, seconds=n),
                "tags": [(f"k{n}", n)],
                "note": "x" * n,
            }
            for n in range(rows)
        ]
        kinds = {
            "user": pa.int64(),
            "amount": pa.float64(),
            "at": pa.timestamp("us", "UTC"),
            "tags": pa.map_(pa.string(), pa.int64()),
            "note": pa.string(),
        }
        file = folder / f"{batch:03}.parquet"
        pq.write_table(pa.Table.from_pylist(events, pa.schema(kinds)), file)
        os.utime(file, (1_700_000_000 + batch,) * 2)  # Spark orders files by milliseconds
        written += events
    return written


def read_events(spark: SparkSession, folder) -> DataFrame:
    kind = "user long, amount double, at timestamp, tags map<string, long>, note string"
    return spark.readStream.schema(kind).option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.parametrize("operators", [1, 4])
def test_a_steady_batch_plans_nothing(spark, ledger, tmp_path, steady, operators):
    """It needs at most 100 calls into the JVM, whatever the number of operators, and compiles no code. Every window is right."""
    events = write_events(tmp_path / "in", 8)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks", event_time=ps.EventTime("at"))
    for number in range(operators):
        counts = clicks.key_by("user").window(WINDOW).aggregate(total=F.sum("amount"), uid=f"totals-{number}")
        counts.select("user", "window_start", "total").write_to(
            ledger.files(f"out-{number}"), uid=f"out-{number}"
        )
    progress = job.run(available_now=True, drain=True).progress
    assert progress.planned_anew == ""
    assert len(progress.recent_batches) >= 7  # Spark may report on the last batch too late
    for batch in progress.recent_batches:
        measured = batch.phases_ms
        whole = measured["plan"] + measured["tasks"] + measured["barrier"]
        assert 0 < measured["state"] < measured["tasks"] < whole <= measured["addBatch"] + 1
        assert sum(batch.phases.values()) == pytest.approx(batch.seconds * 1000, abs=1)
    expected: dict[tuple[int, dt.datetime], float] = {}
    for event in events:
        key = event["user"], event["at"].replace(minute=0, second=0)
        expected[key] = expected.get(key, 0) + event["amount"]
    for number in range(operators):
        rows = ledger.rows(f"out-{number}")
        assert {(row["user"], row["window_start"]): row["total"] for row in rows} == expected
        assert len(rows) == len(expected)
    for calls, classes in steady[4:8]:
        assert calls <= 100
        assert classes == 0


def test_the_progress_log_is_written_without_hadoop(spark, ledger, tmp_path):
    """The entries of Spark and of its sources have no files of checksums beside them, for which Hadoop starts processes in every batch.

    Two jobs and a query of the user's that start at the same time do not disturb each other.
    """
    write_events(tmp_path / "in", 2)
    jobs = [ledger.job(name) for name in ("one", "two")]
    for job in jobs:
        clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
        clicks.write_to(ledger.files(job.name), uid="out")
    handles = [job.start(available_now=True) for job in jobs]
    own = read_events(spark, tmp_path / "in").select("user").writeStream.format("parquet")
    own = own.option("checkpointLocation", str(tmp_path / "own-log")).trigger(availableNow=True)
    own.start(str(tmp_path / "own")).awaitTermination()
    for job, handle in zip(jobs, handles, strict=True):
        handle.wait()
        log = tmp_path / "store" / job.name / "spark" / "1"
        written = {path.relative_to(log).as_posix() for path in log.rglob("*") if path.is_file()}
        assert {"offsets/1", "commits/1", "sources/0/1", "metadata"} <= written
        assert [name for name in written if name.endswith(".crc")] == []
        assert len(ledger.rows(job.name)) == 120
    assert spark.read.parquet(str(tmp_path / "own")).count() == 120


def test_a_function_of_a_transform_is_called_when_the_run_starts(spark, ledger, tmp_path):
    """It sees all columns of the source, and is not called for every batch."""
    write_events(tmp_path / "in", 5)
    seen: list[list[str]] = []

    def noted(frame: DataFrame) -> DataFrame:
        seen.append(frame.columns)
        return frame.withColumn("longer", F.length("note") + 1).select("user", "amount")

    job = ledger.job()
    job.read(read_events(spark, tmp_path / "in"), uid="clicks").transform(noted).write_to(
        ledger.files(), uid="out"
    )
    job.run(available_now=True)
    assert len(ledger.rows()) == 300
    assert set(map(tuple, seen)) == {("user", "amount", "at", "tags", "note")}
    assert len(seen) == 2  # when the job is checked, and when it is planned


def test_a_transform_that_fails_when_it_is_called_again(spark, ledger, tmp_path):
    """The run fails as it does for any failure in a batch, with the line of the user's code."""
    write_events(tmp_path / "in", 1)
    called = []

    def failing(frame: DataFrame) -> DataFrame:
        called.append(frame)
        if len(called) > 1:
            raise RuntimeError("the table is gone")
        return frame

    job = ledger.job()
    job.read(read_events(spark, tmp_path / "in"), uid="clicks").transform(failing).write_to(
        ledger.files(), uid="out"
    )
    with pytest.raises(ps.errors.JobFailedError, match="the table is gone"):
        job.run(available_now=True)


OF_THE_MOMENT = {
    "timestamp": lambda frame: frame.select(F.current_timestamp().alias("it")),
    "now": lambda frame: frame.select(F.expr("now()").alias("it")),
    "cast": lambda frame: frame.select(F.expr("cast('now' as timestamp)").alias("it")),
    "rand": lambda frame: frame.select(F.rand().alias("it")),
    "function": lambda frame: frame.select(F.expr("to_timestamp('now')").alias("it")),
    "try": lambda frame: frame.select(F.expr("try_to_timestamp('now')").alias("it")),
    "uuid": lambda frame: frame.select(F.expr("uuid()").alias("it")),
    "wide": lambda frame: frame.select(
        *(F.lit(n).alias(f"c{n}") for n in range(40)), F.current_timestamp().alias("it")
    ),
}


@pytest.mark.parametrize("function", OF_THE_MOMENT)
def test_a_function_of_the_moment_is_computed_in_every_batch(spark, ledger, tmp_path, function):
    """The time, and random numbers, of one batch are not those of another."""
    write_events(tmp_path / "in", 3, rows=1)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
    clicks.transform(OF_THE_MOMENT[function]).write_to(ledger.files(), uid="out")
    progress = job.run(available_now=True).progress
    assert len({row["it"] for row in ledger.rows()}) == 3
    assert progress.planned_anew.startswith(("it uses the current time", "it is random"))
    assert all(batch.phases["plan"] > 0 < batch.phases["tasks"] for batch in progress.recent_batches)


def test_the_moment_in_an_aggregate(spark, ledger, tmp_path):
    """An aggregate of the current time has that of its batch."""
    write_events(tmp_path / "in", 3, rows=1)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks").key_by("user")
    clicks.aggregate(it=F.max(F.current_timestamp()), uid="newest").write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    assert len({row["it"] for row in ledger.rows()}) == 3


def _through_an_rdd(frame: DataFrame) -> DataFrame:
    rows = frame.rdd.map(lambda row: (row.user, row.note))
    return frame.sparkSession.createDataFrame(rows, "user long, note string")


LEAVING = {
    "rdd": _through_an_rdd,
    "checkpoint": lambda frame: frame.localCheckpoint(eager=False),
    "its own rows": lambda frame: frame.cache(),
    "persist": lambda frame: frame.persist().select("*", F.lit(1).alias("more")),
    "cache": lambda frame: frame.withColumn("more", F.col("user") + 1).cache(),
    "observe": lambda frame: frame.observe("own", F.avg("amount"), F.max("note")),
    "action": lambda frame: frame.withColumn("rows", F.lit(frame.count())),
    "sort": lambda frame: frame.orderBy("note"),
}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("function", LEAVING)
def test_a_transform_that_leaves_the_plan(spark, ledger, tmp_path, function, twice):
    """It sees the rows of each batch, also where another branch of the same source is planned as usual."""
    events = write_events(tmp_path / "in", 3, rows=6)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
    clicks.transform(LEAVING[function]).select("note").write_to(ledger.files(), uid="out")
    if twice:
        clicks.select("note").write_to(ledger.files("other"), uid="other")
    anew = job.run(available_now=True).progress.planned_anew
    assert function != "action" or anew == "a transform runs an action"
    expected = sorted(event["note"] for event in events)
    assert sorted(row["note"] for row in ledger.rows()) == expected
    assert not twice or sorted(row["note"] for row in ledger.rows("other")) == expected
    spark.catalog.clearCache()


def test_a_constant_event_time_in_one_branch_of_a_union(spark, ledger, tmp_path):
    """Its rows are judged by the clock of each batch, as those of the other branch: none is lost."""
    write_events(tmp_path / "in", 4, rows=7)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks", event_time=ps.EventTime("at"))
    then = F.lit(START + dt.timedelta(hours=3, seconds=30))
    fixed = clicks.where("user = 0").transform(lambda frame: frame.withColumn("at", then))
    both = clicks.where("user != 0").union(fixed)
    counts = both.key_by("user").window(WINDOW).aggregate(n=F.count("*"), uid="counts")
    counts.write_to(ledger.files(), uid="out")
    assert job.run(available_now=True, drain=True).progress.planned_anew == ""
    assert sum(row["n"] for row in ledger.rows()) == 28


def test_a_subquery_among_many_columns(spark, ledger, tmp_path):
    """A scalar subquery over the rows of a batch has the value of that batch, also where Spark shortens the text of the plan."""
    write_events(tmp_path / "in", 3, rows=2)

    def with_first_note(frame: DataFrame) -> DataFrame:
        first = frame.where("user = 0").agg(F.max("at")).scalar()
        return frame.select(*(F.lit(n).alias(f"c{n}") for n in range(40)), first.alias("first"), "at")

    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
    clicks.transform(with_first_note).write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    assert len(ledger.rows()) == 6
    assert all(row["first"] == row["at"].replace(second=0) for row in ledger.rows())


def test_corrupt_records_do_not_depend_on_the_columns_that_are_used(spark, ledger, tmp_path):
    """A record with a broken value in a column that the job does not use is still corrupt."""
    (tmp_path / "in").mkdir()
    records = ['{"a": 1, "b": 2}', '{"a": "x", "b": 3}', "no json"]
    (tmp_path / "in" / "records.json").write_text("\n".join(records))
    source = spark.readStream.schema("a long, b long, _corrupt_record string").json(str(tmp_path / "in"))
    job = ledger.job()
    read = job.read(source, uid="records")
    read.select("_corrupt_record").write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    assert [row["_corrupt_record"] for row in ledger.rows()] == [None, *records[1:]]


def test_a_plan_is_filled_in_a_thread_without_a_session(spark):
    """Where PySpark does not keep its threads apart, the thread that fills a plan may have no active session."""
    slot = RowSlot.of(spark, StructType([StructField("n", LongType())]), cached=False)
    template = PlanTemplate(slot.frame.where("n > 1"), [slot])
    given = rows_of_frame(spark.createDataFrame([(1,), (2,), (2,)], "n long"))
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.clearActiveSession()
    try:
        assert template.fill({slot.number: given}, {}, "").count() == 2
        assert sessions.getActiveSession().isEmpty()
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


def test_samples_of_two_batches_differ(spark, ledger, tmp_path):
    """A sample without a seed draws anew in every batch: of 24 batches with a row each, not all or none are drawn."""
    write_events(tmp_path / "in", 24, rows=1)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
    clicks.transform(lambda frame: frame.sample(0.5)).write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    assert 0 < len(ledger.rows()) < 24


def test_an_operator_whose_results_are_not_read(spark, ledger, tmp_path):
    """Its columns are read, and its state sees every row."""
    write_events(tmp_path / "in", 3)
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
    clicks.key_by("user").aggregate(total=F.sum("amount"), uid="dangling")
    clicks.select("note").write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    assert len(ledger.rows()) == 180
    with ps.read_state(
        spark, ledger.root / "store", "pv"
    ) as state:  # else its hold outlives the folder, and warns in other tests
        totals = state.state("dangling").collect()
    assert sum(row.total for row in totals) == 3 * sum(n * 1.5 for n in range(60))


def test_the_settings_of_the_session_do_not_change(spark, ledger, tmp_path):
    """A job plans in a session of its own: nothing else sees its settings, at any moment."""
    write_events(tmp_path / "in", 3)
    names = (
        "spark.sql.adaptive.enabled",
        "spark.sql.shuffle.partitions",
        "spark.sql.optimizer.excludedRules",
    )
    before = [spark.conf.get(name, None) for name in names]
    seen = []

    def looked(frame: DataFrame) -> DataFrame:
        seen.append([spark.conf.get(name, None) for name in names])
        return frame

    job = ledger.job(parallelism=3)
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks").transform(looked)
    clicks.key_by("user").aggregate(n=F.count("*"), uid="counts").write_to(
        ledger.sqlite("counts", "user"), uid="out"
    )
    job.run(available_now=True)
    assert seen == [before] * len(seen)
    assert seen


def test_a_source_that_is_a_union_beside_one_that_ends(spark, ledger, tmp_path):
    """Spark leaves a source without rows out of its plan, and takes a union apart: each row still reaches its own sink."""
    short = write_events(tmp_path / "a", 2, rows=5)
    long = write_events(tmp_path / "b", 4, rows=6) + write_events(tmp_path / "c", 4, rows=7)
    job = ledger.job()
    both = read_events(spark, tmp_path / "b").union(read_events(spark, tmp_path / "c"))
    job.read(read_events(spark, tmp_path / "a"), uid="a").write_to(ledger.files("short"), uid="short")
    job.read(both, uid="bc").write_to(ledger.files("long"), uid="long")
    job.run(available_now=True)
    assert sorted(row["note"] for row in ledger.rows("short")) == sorted(event["note"] for event in short)
    assert sorted(row["note"] for row in ledger.rows("long")) == sorted(event["note"] for event in long)


def test_columns_that_are_not_used_are_not_read(spark, ledger, tmp_path):
    """A column that cannot be computed does no harm if nothing needs it; the sources of a job are pruned each by itself."""
    write_events(tmp_path / "in", 3)
    clicks = read_events(spark, tmp_path / "in").withColumn("poison", F.raise_error(F.lit("was read")))
    job = ledger.job()
    one = job.read(clicks, uid="one").select("user", "amount")
    other = (
        job.read(clicks, uid="other")
        .where("size(tags) = 1")
        .select("user", (-F.col("amount")).alias("amount"))
    )
    totals = one.union(other).key_by("user").aggregate(total=F.sum("amount"), n=F.count("*"), uid="totals")
    totals.write_to(ledger.sqlite("totals", "user"), uid="out")
    job.run(available_now=True)
    per_user = {user: sum(1 for n in range(60) if n % 7 == user) * 3 * 2 for user in range(7)}
    assert {(user, total, n) for user, total, n in ledger.rows_of("totals")} == {
        (user, 0.0, n) for user, n in per_user.items()
    }


def test_a_source_without_rows_in_a_batch(spark, ledger, tmp_path):
    """Two sources of which one ends earlier, or begins later: each row reaches its own operator, once."""
    write_events(tmp_path / "long", 6)
    write_events(tmp_path / "short", 2)
    job = ledger.job()
    long = job.read(read_events(spark, tmp_path / "long"), uid="long")
    short = job.read(read_events(spark, tmp_path / "short").withColumnRenamed("note", "text"), uid="short")
    long.key_by("user").aggregate(n=F.count("*"), uid="longs").write_to(
        ledger.sqlite("longs", "user"), uid="a"
    )
    short.key_by("user").aggregate(n=F.count("text"), uid="shorts").write_to(
        ledger.sqlite("shorts", "user"), uid="b"
    )
    job.run(available_now=True)
    per_user = {user: sum(1 for n in range(60) if n % 7 == user) for user in range(7)}
    assert ledger.counts("longs") == {user: 6 * n for user, n in per_user.items()}
    assert ledger.counts("shorts") == {user: 2 * n for user, n in per_user.items()}


def test_equal_inputs_of_one_plan(spark, ledger, tmp_path):
    """Spark shuffles equal inputs once for two uses. Both uses get the rows of the batch."""
    write_events(tmp_path / "in", 4)
    job = ledger.job()
    users = job.read(read_events(spark, tmp_path / "in"), uid="clicks").select("user", "amount")
    both = (
        users.key_by("user")
        .aggregate(n=F.count("*"), uid="first")
        .select("user", "n")
        .union(users.key_by("user").aggregate(n=F.count("*"), uid="second").select("user", "n"))
    )
    both.key_by("user").aggregate(newest=F.max("n"), results=F.count("*"), uid="sums").write_to(
        ledger.sqlite("sums", "user"), uid="out"
    )
    job.run(available_now=True)
    per_user = {user: sum(1 for n in range(60) if n % 7 == user) for user in range(7)}
    assert set(ledger.rows_of("sums")) == {(user, 4 * n, 8) for user, n in per_user.items()}


class Priced(ps.KeyedProcess):
    """Uses a broadcast variable of Spark's."""

    n = ps.ValueState("long", default=0)

    def __init__(self, prices, padding: bytes = b"") -> None:
        self.prices = prices
        self.padding = padding

    def process(self, key, rows, ctx):
        self.n.value += len(rows)
        yield key, self.n.value * self.prices.value[key]


@pytest.mark.parametrize("padding", [0, 3 << 20])
def test_own_code_with_a_broadcast_variable(spark, ledger, tmp_path, padding):
    """It is there in every batch, also where the code itself is so large that Spark broadcasts it."""
    write_events(tmp_path / "in", 4)
    prices = spark.sparkContext.broadcast({user: user + 1 for user in range(7)})
    code = Priced(prices, random.Random(1).randbytes(padding))
    job = ledger.job()
    clicks = job.read(read_events(spark, tmp_path / "in"), uid="clicks")
    clicks.key_by("user").process(code, schema="user long, price long", uid="priced").write_to(
        ledger.sqlite("prices", "user"), uid="out"
    )
    job.run(available_now=True)
    per_user = {user: sum(1 for n in range(60) if n % 7 == user) for user in range(7)}
    assert ledger.counts("prices") == {user: 4 * n * (user + 1) for user, n in per_user.items()}
