from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark import TaskContext, accumulators
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.clock import SYSTEM_CLOCK
from penstock.ownership.runs import list_runs
from penstock.spark.compiled import compile_job
from penstock.spark.tasks import AnswerList
from services.patience import PATIENCE_S

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def counting_job(spark: SparkSession, ledger: Ledger, rows_per_batch: int | None = 400, **settings) -> ps.Job:
    job = ledger.job(**settings)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=rows_per_batch), uid="clicks")
    clicks.key_by("app").aggregate(pv=F.count("*"), uid="views").write_to(ledger.sqlite(), uid="views-out")
    return job


def test_counts_are_right_over_several_batches_and_runs(spark, ledger):
    """Every record counts once, over batches, and again when the job is run for what came later."""
    ledger.fill(600)
    counting_job(spark, ledger).run(available_now=True)
    assert ledger.counts() == ledger.truth()
    ledger.fill(300)
    counting_job(spark, ledger).run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_operators_one_after_another_and_side_by_side(spark, ledger):
    """A second operator sees what the first emits, and a third beside them sees the source."""
    ledger.fill(500)
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    users = clicks.key_by("user").process(Count(), schema="user long, n long", uid="users")
    users.key_by("user").aggregate(last=F.max("n"), uid="last").write_to(
        ledger.sqlite("seen", "user"), uid="seen-out"
    )
    clicks.key_by("app").aggregate(pv=F.count("*"), total=F.sum("user"), uid="views").write_to(
        ledger.files(), uid="views-out"
    )
    job.run(available_now=True)
    last = {row["app"]: (row["pv"], row["total"]) for row in sorted(ledger.rows(), key=lambda row: row["pv"])}
    table = ledger.log.table().group_by("app").aggregate([("user", "count"), ("user", "sum")]).to_pylist()
    assert last == {row["app"]: (row["user_count"], row["user_sum"]) for row in table}
    assert ledger.counts("seen") == ledger.truth("user")


class Tagged(ps.KeyedProcess):
    """Emits something else every time it runs."""

    count = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.count.value += len(rows)
        yield key, self.count.value, random.random(), time.time_ns()


def test_an_operator_with_two_consumers_runs_once(spark, ledger):
    """Two sinks behind one operator get the same rows, also when its code answers differently every time it runs."""
    ledger.fill(200)
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark, rows_per_batch=200), uid="clicks")
    tagged = clicks.key_by("app").process(
        Tagged(), schema="app string, n long, r double, t long", uid="tagged"
    )
    tagged.write_to(ledger.files("left"), uid="left")
    tagged.transform(lambda df: df.union(df)).write_to(ledger.files("right"), uid="right")
    handle = job.start(available_now=True)
    handle.wait()
    left, right = (Counter(tuple(row.values()) for row in ledger.rows(name)) for name in ("left", "right"))
    assert len(left) > 0
    assert right == Counter({row: 2 * times for row, times in left.items()})
    assert max(row[1] for row in left if row[0] == "app0") == ledger.truth()["app0"]
    assert handle.progress.rows_in == sum(ledger.truth().values())
    assert handle.progress.rows_out == {"left": left.total(), "right": right.total()}


def test_short_forms_of_transform(spark, ledger):
    """`where`, `select` and `with_column` take what Spark's own take; a wrong column is told with the line that names it."""
    ledger.fill(20)
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    some = clicks.where("app = 'app0'").where(F.col("user") >= 0)
    twice = some.with_column("twice", F.col("user") * 2).select("app", F.col("user").alias("u"), "twice")
    twice.write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    rows = ledger.rows()
    assert len(rows) == ledger.truth()["app0"]
    assert all(row == {"app": "app0", "u": row["u"], "twice": 2 * row["u"]} for row in rows)
    with pytest.raises(ps.ConfigError, match=r"select\(\): name one or more columns"):
        clicks.select()
    clicks.where("usr > 1").write_to(ledger.files("never"), uid="never")
    with pytest.raises(ps.ConfigError, match=r"transform where: .*`usr`") as refused:
        job.run(available_now=True)
    assert 'clicks.where("usr > 1")' in refused.value.__notes__[0]


def with_an_action(df):
    return df.where(F.lit(df.count() > 0))


def test_an_operator_runs_once_whatever_looks_at_its_rows(spark, ledger):
    """What makes Spark run a part of the batch beforehand, for a sample or an action, finds the operator's results ready."""
    ledger.fill(200)
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark, rows_per_batch=200), uid="clicks")
    behind = {
        "ordered": lambda df: df.orderBy("n"),
        "ranges": lambda df: df.repartitionByRange(3, F.col("n").desc()),
        "pivoted": lambda df: df.groupBy("app").pivot("n", [40, 80]).count().orderBy("app"),
        "counted": with_an_action,
        "plain": lambda df: df.sortWithinPartitions("n").repartition(3, "app"),
    }
    for uid, function in behind.items():
        counts = clicks.key_by("app").process(Count(), schema="app string, n long", uid=uid)
        counts.transform(function).write_to(ledger.files(f"{uid}-files"), uid=f"{uid}-out")
    assert compile_job(job.graph).shared == {"clicks", "ordered", "ranges", "pivoted", "counted"}
    job.run(available_now=True)
    truth = ledger.truth()
    for uid in ("ordered", "ranges", "counted", "plain"):
        rows = ledger.rows(f"{uid}-files")
        assert {app: max(row["n"] for row in rows if row["app"] == app) for app in truth} == truth
        assert len({(row["app"], row["n"]) for row in rows}) == len(rows)


def test_columns_that_come_from_the_rows(spark, ledger):
    """A pivot without values is refused before the job starts; columns that change with the rows end it with their names."""
    ledger.fill(10)

    def job(function) -> ps.Job:
        job = ledger.job(restart=ps.exponential_delay(initial="1ms"))
        clicks = job.read(ledger.log.read(spark), uid="clicks")
        counts = clicks.key_by("app").process(Count(), schema="app string, n long", uid="counts")
        counts.transform(function).write_to(ledger.files(), uid="out")
        return job

    def one_a_row(df):
        return df.select("app", *(F.lit(row.n).alias(row.app) for row in df.collect()))

    with pytest.raises(ps.ConfigError, match=r"'out' has a pivot without values"):
        job(lambda df: df.groupBy("app").pivot("n").count()).start()
    with pytest.raises(ps.ConfigError, match=r"one_a_row had the columns \('app',\).*and has \('app', 'app"):
        job(one_a_row).run(available_now=True)


def test_state_sees_rows_whose_results_nobody_wants(spark, ledger):
    """An operator's state is updated although everything after it is filtered away and optimised out."""
    ledger.fill(200)

    def job(keep: bool) -> ps.Job:
        job = ledger.job()
        clicks = job.read(ledger.log.read(spark), uid="clicks")
        counted = clicks.key_by("app").process(Count(), schema="app string, n long", uid="counted")
        counted.transform(lambda df: df.where(F.lit(keep))).write_to(ledger.sqlite(), uid="out")
        return job

    job(keep=False).run(available_now=True)
    ledger.fill(100)
    job(keep=True).run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_user_code_that_fails_is_restarted_from_the_checkpoint(spark, ledger, tmp_path):
    """An exception in user code brings the job back to its checkpoint, and no count is off; its record says what happened."""
    ledger.fill(600)
    marker = tmp_path / "failed"

    class FailsOnce(Count):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    job = ledger.job(restart=ps.fixed_delay(attempts=2, delay="10ms"))
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    clicks.key_by("app").process(FailsOnce(), schema="app string, n long", uid="c").write_to(
        ledger.sqlite(), uid="o"
    )
    handle = job.start(available_now=True)
    handle.wait()
    assert handle.progress.restarts == 1
    assert ledger.counts() == ledger.truth()
    first, second = list_runs(job.storage, SYSTEM_CLOCK.wall())
    assert (first.how, second.how, second.why) == ("restarted", "finished", "")
    assert "the disk of the user is on fire" in first.why
    assert second.newest_checkpoint == handle.progress.checkpoint


def test_restart_strategy_gives_up_with_the_reason(spark, ledger, caplog):
    """A number of attempts is kept; without one, the same mistake at the same batch ends the job. A task that fails twice is given up."""
    ledger.fill(10)

    attempts = ledger.root / "attempts"

    class Fails(Count):
        def process(self, key, rows, ctx):
            task = TaskContext.get()
            assert task is not None
            with attempts.open("a") as file:
                file.write(str(task.attemptNumber()))
            raise RuntimeError(f"cannot digest {key}")

    job = ledger.job(restart=ps.fixed_delay(attempts=1, delay="1ms"))
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    clicks.key_by("app").process(Fails(), schema="app string, n long", uid="c").write_to(
        ledger.sqlite(), uid="o"
    )
    with pytest.raises(
        ps.JobFailedError,
        match=r"(?s)failed for good: c-\d: RuntimeError: cannot digest app.*After 2 failures",
    ):
        job.run(available_now=True)
    job.restart = ps.exponential_delay(initial="1ms")
    with pytest.raises(
        ps.JobFailedError,
        match=r"(?s): c-\d: RuntimeError: cannot digest app.*2 times in a row at the same place, in batch 0",
    ):
        job.run(available_now=True)
    assert max(attempts.read_text()) in ("1", "2"), "Spark made all its attempts"
    assert "Traceback" not in caplog.text
    assert "\tat org.apache" not in caplog.text


@pytest.mark.parametrize("sinks", [1, 2])
def test_a_failure_that_is_no_utf_8_is_told(spark, ledger, sinks):
    """Half characters in the words of user code keep nobody from hearing of it, in an operator alone or with a sink: Spark would wait."""
    ledger.fill(10)

    class Fails(Count):
        def process(self, key, rows, ctx):
            raise ValueError("no such name: caf\udce9")

    job = ledger.job(restart=ps.no_restart())
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    counted = clicks.key_by("app").process(Fails(), schema="app string, n long", uid="c")
    for number in range(sinks):
        counted.write_to(ledger.sqlite(), uid=f"o{number}")
    handle = job.start(available_now=True)
    with pytest.raises(ps.JobFailedError, match=r"c-\d: ValueError: no such name: caf\\udce9"):
        handle.wait(PATIENCE_S)
    (run,) = list_runs(job.storage, SYSTEM_CLOCK.wall())
    assert r"ValueError: no such name: caf\udce9" in run.why


def test_two_sources_one_slow_one_empty(spark, ledger, tmp_path):
    """A job over several sources counts all of them, though one gets its rows late and one has none."""
    slow = Ledger(tmp_path / "slow")
    empty = Ledger(tmp_path / "empty")
    ledger.fill(100)

    def build() -> ps.Job:
        job = ledger.job()
        streams = [
            job.read(one.log.read(spark), uid=uid)
            for uid, one in (("fast", ledger), ("slow", slow), ("empty", empty))
        ]
        both = streams[0].union(streams[1]).union(streams[2])
        both.key_by("app").aggregate(pv=F.count("*"), uid="views").write_to(ledger.sqlite(), uid="out")
        return job

    build().run(available_now=True)
    assert ledger.counts() == ledger.truth()
    slow.fill(50)
    ledger.fill(30)
    handle = build().start(available_now=True)
    handle.wait()
    assert ledger.counts() == dict(Counter(ledger.truth()) + Counter(slow.truth()))
    positions = handle.checkpoints()[-1].barrier.positions
    assert positions == {"fast": {"0": 130, "1": 130}, "slow": {"0": 50, "1": 50}, "empty": {"0": 0, "1": 0}}


@pytest.mark.parametrize("backend", ["memory", "filesystem"])
def test_backends_give_the_same_result(spark, ledger, backend):
    """The same program runs on each backend by one setting."""
    ledger.fill(300)
    counting_job(spark, ledger, backend=backend).run(available_now=True)
    ledger.fill(100)
    counting_job(spark, ledger, backend=backend).run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_the_driver_keeps_no_answer_of_a_batch_that_is_done(spark, ledger):
    """With state in the answers themselves a job of many batches would fill its memory."""
    ledger.fill(600)
    counting_job(spark, ledger, rows_per_batch=200, backend="memory").run(available_now=True)
    kept = [
        accumulator.value
        for accumulator in accumulators._accumulatorRegistry.values()
        if isinstance(accumulator.accum_param, AnswerList)
    ]
    assert len(kept) >= 3
    assert not any(kept)


def test_memory_backend_refuses_what_is_too_large(spark, ledger):
    """State beyond the memory backend's limit is a clear error that names the way out."""
    from penstock.state.backends import MemoryBackend

    ledger.append(0, "a", 5000)
    job = ledger.job(backend=MemoryBackend(limit_bytes=10_000))
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    clicks.key_by("user").aggregate(n=F.count("*"), uid="users").write_to(ledger.files(), uid="out")
    with pytest.raises(ps.ConfigError, match=r"users.*filesystem"):
        job.run(available_now=True)


def test_another_parallelism_goes_on_with_the_same_state(spark, ledger):
    """State made by two subtasks is found by three, then by one, then by four."""
    for parallelism in (2, 3, 1, 4):
        ledger.fill(100, apps=20)
        counting_job(spark, ledger, parallelism=parallelism).run(available_now=True)
        assert ledger.counts() == ledger.truth(), f"parallelism {parallelism}"


def test_checkpoints_are_retained_and_can_be_chosen(spark, ledger):
    """The configured number of checkpoints is kept with its measurements, and a run can start from an older one."""
    ledger.fill(900)
    checkpointing = ps.Checkpointing(interval="1ms", retained=3)
    handle = counting_job(spark, ledger, checkpoint=checkpointing).start(available_now=True)
    handle.wait()
    kept = handle.checkpoints()
    assert len(kept) == 3
    assert kept[-1].barrier.positions == {"clicks": {"0": 900, "1": 900}}
    assert all(report.sync_ms > 0 and report.host for one in kept for report in one.subtasks if report.rows)
    older = kept[0]
    again = counting_job(spark, ledger, checkpoint=checkpointing).start(
        available_now=True, restore=older.checkpoint
    )
    again.wait()
    assert again.progress.restored_from == older.checkpoint
    assert (
        ledger.counts() == ledger.truth()
    )  # upsert: the results of the later checkpoints were written again


@pytest.mark.parametrize("policy", list(ps.OnCancel))
def test_cancel_keeps_or_deletes_checkpoints(spark, ledger, policy):
    """After a cancel the checkpoints stay or go as configured; from kept ones a new run goes on."""
    ledger.fill(400)
    settings = ps.Checkpointing(interval="1ms", on_cancel=policy)
    handle = counting_job(spark, ledger, checkpoint=settings).start()
    while handle.progress.checkpoints_completed < 2:
        assert not handle.wait(0.1)
    handle.cancel()
    assert handle.status.value == "cancelled"
    kept = policy is ps.RETAIN_ON_CANCELLATION
    assert bool(handle.checkpoints()) == kept
    assert bool(handle._runner.job.storage.names("state")) == kept
    again = counting_job(spark, ledger).start(available_now=True)
    again.wait()
    assert (again.progress.restored_from >= 0) == kept
    assert ledger.counts() == ledger.truth()


def test_stop_completes_what_was_begun(spark, ledger):
    """Stop ends with a checkpoint of everything processed, committed, whatever the interval."""
    ledger.fill(100)
    handle = counting_job(spark, ledger, checkpoint=ps.Checkpointing(interval="1h")).start()
    while handle.progress.rows_in == 0:
        assert not handle.wait(0.1)
    assert handle.checkpoints() == []
    handle.stop()
    assert handle.status.value == "stopped"
    assert handle.progress.rows_in == sum(ledger.truth().values())
    assert len(handle.checkpoints()) == 1
    ledger.fill(10)
    counting_job(spark, ledger).run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_idle_job_completes_its_last_batch(spark, ledger):
    """A checkpoint completes within the interval although no further batch comes."""
    ledger.fill(50)
    handle = counting_job(spark, ledger, checkpoint=ps.Checkpointing(interval="3s")).start()
    while handle.progress.checkpoints_completed == 0:
        assert not handle.wait(0.1)
    assert ledger.log.end_offsets() == {0: 50, 1: 50}
    assert handle.checkpoints()[-1].barrier.positions == {"clicks": {"0": 50, "1": 50}}
    handle.cancel()


def test_rows_reach_user_code_in_order(spark, ledger):
    """With order_by the rows of a key come in that order within a batch, also where names hold dots and spaces."""

    class InOrder(ps.KeyedProcess):
        def process(self, key, rows, ctx):
            users = [row["user id"] for row in rows]
            yield key, users == sorted(users, reverse=True), len(rows)

    for partition in (0, 1):
        ledger.append(partition, "a", 500)
    job = ledger.job()
    named = ledger.log.read(spark).withColumnsRenamed({"app": "the.app", "user": "user id"})
    clicks = job.read(named, uid="clicks").transform(lambda df: df.orderBy(F.rand(3)))
    clicks.key_by("the.app").process(
        InOrder(), schema="app string, ok boolean, n long", uid="ordered", order_by=["`user id` desc"]
    ).write_to(ledger.files(), uid="out")
    job.run(available_now=True)
    assert ledger.rows() == [{"app": "a", "ok": True, "n": 1000}]


def test_keys_of_several_types(spark, ledger):
    """Keys of several columns and of any type that Spark can hash keep their own state."""
    ledger.fill(300)
    columns = {
        "d": F.to_date(F.lit("2024-01-01")) + (F.col("user") % 3).cast("int"),
        "x": F.when(F.col("user") % 4 == 0, F.lit(float("nan")))
        .when(F.col("user") % 4 == 1, F.lit(-0.0))
        .otherwise(0.0),
        "b": F.encode("app", "utf-8"),
        "m": (F.col("user") % 5).cast("decimal(10,2)"),
        "s": F.struct("app", (F.col("user") % 2).alias("parity")),
        "t": F.timestamp_seconds(F.col("user") % 3),
        "with.dot": F.col("user") % 3,
    }
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark, rows_per_batch=200).withColumns(columns), uid="clicks")
    for name in columns:
        uid = name.replace(".", "-")
        clicks.key_by(name, "app").aggregate(n=F.count("*"), uid=f"by-{uid}").write_to(
            ledger.files(f"by-{name}"), uid=f"out-{uid}"
        )
    job.run(available_now=True)
    whole = spark.createDataFrame(ledger.log.table().to_pandas()).withColumns(columns)
    for name in columns:
        wanted = sorted(row["count"] for row in whole.groupBy(f"`{name}`", "app").count().collect())
        newest: dict[str, int] = {}
        for row in ledger.rows(f"by-{name}"):
            key = repr((row[name], row["app"]))
            newest[key] = max(newest.get(key, 0), row["n"])
        assert sorted(newest.values()) == wanted, name


@pytest.mark.parametrize(
    "shuffled",
    [
        lambda df: df.coalesce(1),
        lambda df: df.repartition(3, "app"),
        lambda df: df.repartition(2, "app"),
        lambda df: df.limit(100_000),
    ],
    ids=["coalesce", "repartition to another number", "repartition to the same number", "limit"],
)
def test_aggregate_behind_a_transform_that_moves_rows(spark, ledger, shuffled):
    """Where Spark leaves out its own shuffle, keys are still brought to the subtask that owns them."""
    ledger.fill(200)
    job = ledger.job()
    clicks = job.read(ledger.log.read(spark, rows_per_batch=200), uid="clicks").transform(shuffled)
    clicks.key_by("app").aggregate(pv=F.count("*"), uid="views").write_to(ledger.sqlite(), uid="out")
    job.run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_a_source_with_one_partition(spark, tmp_path):
    """A single input partition feeds two subtasks."""
    ledger = Ledger(tmp_path, partitions=1)
    ledger.fill(200)
    counting_job(spark, ledger, rows_per_batch=100).run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_timestamp_keys_in_another_time_zone(spark, ledger):
    """The session's time zone changes neither keys nor results, also when it changes between runs."""
    seconds = (F.col("user") % 3) * 3600 + 1_700_000_000
    for zone in ("America/New_York", "UTC"):
        ledger.fill(90)
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            job = ledger.job()
            rows = ledger.log.read(spark).withColumn("t", F.timestamp_seconds(seconds))
            aggregated = (
                job.read(rows, uid="clicks").key_by("t").aggregate(n=F.count("*"), last=F.max("t"), uid="c")
            )
            aggregated.transform(lambda df: df.select(F.unix_seconds("t").alias("t"), "n")).write_to(
                ledger.sqlite("views", "t"), uid="out"
            )
            job.run(available_now=True)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    truth = Counter(user % 3 * 3600 + 1_700_000_000 for user in ledger.log.table()["user"].to_pylist())
    assert ledger.counts() == truth


def test_a_checkpoint_older_than_what_spark_remembers(spark, ledger):
    """The job goes back to its checkpoint although Spark has purged that batch from its own log long since."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1")
    try:
        ledger.fill(600)
        counting_job(spark, ledger).run(available_now=True)
        handle = counting_job(spark, ledger, checkpoint=ps.Checkpointing(interval="1h")).start()
        for batches in range(1, 5):
            ledger.fill(20)
            while handle.progress.batches < batches:
                assert not handle.wait(0.05)
        handle.cancel()
        restored = handle.progress.restored_from
        log = f"spark/{handle.progress.run}/offsets"
        assert f"{log}/{restored}" not in handle._runner.job.storage.names(log)
        again = counting_job(spark, ledger).start(available_now=True)
        again.wait()
        assert again.progress.restored_from == restored
        assert ledger.counts() == ledger.truth()
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
