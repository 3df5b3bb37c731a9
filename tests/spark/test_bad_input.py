"""Whatever cannot work is refused with a clear error before the query starts, and nothing is lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from ledger import Count, Ledger, fail_for_good
from pyspark.sql import functions as F

import penstock as ps
from penstock.checkpoint.metadata import CheckpointName, found_checkpoints
from penstock.spark.compiled import compile_job
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.fill(100)
    return ledger


def job_over(frame, ledger: Ledger, key: str = "app", **settings) -> ps.Job:
    job = ledger.job(**settings)
    rows = job.read(frame, uid="clicks")
    rows.key_by(key).aggregate(pv=F.count("*"), uid="views").write_to(ledger.sqlite(), uid="out")
    return job


def test_a_job_without_source_or_sink_is_refused(spark, ledger):
    """A job needs both ends."""
    with pytest.raises(ps.ConfigError, match="no source"):
        ledger.job().start()
    job = ledger.job()
    job.read(ledger.log.read(spark), uid="clicks")
    with pytest.raises(ps.ConfigError, match="no sink"):
        job.start()


def test_an_unknown_key_column_is_named(spark, ledger):
    """The error names the column and those that exist."""
    with pytest.raises(
        ps.ConfigError, match="'nobody' does not exist; there are partition, offset, app, user"
    ):
        job_over(ledger.log.read(spark), ledger, key="nobody").start()


def test_a_key_that_cannot_be_hashed_is_refused(spark, ledger):
    """A map cannot be a key."""
    frame = ledger.log.read(spark).withColumn("m", F.create_map("app", "user"))
    with pytest.raises(ps.ConfigError, match="cannot hash the key"):
        job_over(frame, ledger, key="m").start()


def test_two_operators_with_one_uid_are_refused(spark, ledger):
    """State is found by uid, so no two parts may share one."""
    job = ledger.job()
    rows = job.read(ledger.log.read(spark), uid="clicks")
    rows.key_by("app").aggregate(pv=F.count("*"), uid="views")
    with pytest.raises(ps.ConfigError, match="uid 'views' is used twice"):
        rows.key_by("user").aggregate(pv=F.count("*"), uid="views")


def test_an_aggregate_that_cannot_be_merged_is_refused_by_name(spark, ledger):
    """A median cannot be merged from batches."""
    job = ledger.job()
    rows = job.read(ledger.log.read(spark), uid="clicks")
    rows.key_by("app").aggregate(n=F.median("user"), uid="views").write_to(ledger.sqlite(), uid="out")
    with pytest.raises(ps.ConfigError, match="median"):
        job.start()


@pytest.mark.parametrize(
    ("stateful", "named"),
    [
        (lambda df: df.dropDuplicates(["user"]), r"dropDuplicates.* use dedupe\(on="),
        (lambda df: df.groupBy("app").count(), "groupBy.* use key_by"),
        (lambda df: df.limit(5), "limit"),
        (lambda df: df.join(df.select("app"), "app"), r"join of two streams.* use left.join\(right"),
    ],
)
def test_state_of_spark_upstream_of_read_is_refused(spark, ledger, stateful, named):
    """State that Spark would keep outside of the checkpoint is never silently wrong: it is refused."""
    with pytest.raises(ps.ConfigError, match=named):
        job_over(stateful(ledger.log.read(spark)), ledger).start()


def test_a_join_with_a_static_table_is_allowed(spark, ledger):
    """Stateless SQL in front of `read` is welcome."""
    names = spark.createDataFrame([("app0", "zero"), ("app1", "one")], "app string, name string")
    frame = ledger.log.read(spark).join(names, "app").drop("app").withColumnRenamed("name", "app")
    job_over(frame, ledger).run(available_now=True)
    truth = ledger.truth()
    assert ledger.counts() == {"zero": truth["app0"], "one": truth["app1"]}


@pytest.mark.parametrize(("option", "value"), [("cleanSource", "delete"), ("CLEANSOURCE", "Archive")])
def test_a_source_that_removes_what_it_has_read_is_refused(spark, ledger, option, value):
    """Spark would remove files that going back needs; without the option, or with 'off', nothing is refused."""

    def read(**options: str):
        return spark.readStream.schema("app string").options(**options).json(str(ledger.root))

    with pytest.raises(ps.ConfigError, match=f"'clicks' has the option cleanSource={value}: Spark removes"):
        job_over(read(**{option: value}), ledger).start()
    with pytest.raises(ps.ConfigError, match="cleanSource"):
        job_over(read(**{option: value}), ledger).guarantee()
    compile_job(job_over(read(**{option: "OFF"}), ledger).graph)


def test_a_socket_cannot_be_exactly_once(spark, ledger):
    """The mode that a source cannot keep is refused with the reason; at most once is what it can have."""
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", "9").load()
    for mode in (ps.EXACTLY_ONCE, ps.AT_LEAST_ONCE):
        job = job_over(socket, ledger, key="value", checkpoint=ps.Checkpointing(mode=mode))
        with pytest.raises(ps.ConfigError, match=r"'clicks' \(.*socket.*\) cannot go back"):
            job.start()
    job = job_over(socket, ledger, key="value", checkpoint=ps.Checkpointing(mode=ps.AT_MOST_ONCE))
    assert job.guarantee().level is ps.AT_MOST_ONCE


def test_a_storage_that_cannot_be_written_is_refused(spark, ledger):
    """The place is looked at before anything starts."""
    job = ps.Job("pv", storage="/proc/nowhere")
    rows = job.read(ledger.log.read(spark), uid="clicks")
    rows.key_by("app").aggregate(pv=F.count("*"), uid="views").write_to(ledger.sqlite(), uid="out")
    with pytest.raises(ps.ConfigError, match="storage /proc/nowhere/pv is on proc"):
        job.start()


def test_max_parallelism_can_never_change(spark, ledger):
    """Key groups would no longer match; the old value is named."""
    job_over(ledger.log.read(spark), ledger).run(available_now=True)
    with pytest.raises(ps.ConfigError, match=r"max_parallelism=64 .* started with 128"):
        job_over(ledger.log.read(spark), ledger, max_parallelism=64).start()


def test_a_job_cannot_be_started_twice(spark, ledger):
    """The second start is refused while the first is alive, and the first is not disturbed."""
    first = job_over(ledger.log.read(spark), ledger).start()
    with pytest.raises(ps.ConfigError, match=r"running already: run 1, pid \d+"):
        job_over(ledger.log.read(spark), ledger).start()
    while first.progress.rows_in == 0:
        assert not first.wait(0.05)
    first.stop()
    assert ledger.counts() == ledger.truth()


def test_a_null_key_stops_the_job_and_names_the_column(spark, ledger):
    """Nothing of the batch is kept; the message says what to do."""
    frame = ledger.log.read(spark).withColumn("app", F.expr("nullif(app, 'app3')"))
    job = job_over(frame, ledger, restart=ps.fixed_delay(attempts=5, delay="1ms"))
    with pytest.raises(ps.BadRecordError, match=r"no value in the key column 'app'.*coalesce"):
        job.run(available_now=True)
    job_over(ledger.log.read(spark), ledger).run(available_now=True)
    assert ledger.counts() == ledger.truth()


def test_bytes_that_are_no_text_stop_the_job_and_name_the_column(spark, ledger):
    """What Spark calls a string need not be one: the task refuses it, before a checkpoint promises it to a sink."""
    job = ledger.job(restart=ps.fixed_delay(attempts=5, delay="1ms"))
    rows = job.read(ledger.log.read(spark).withColumn("t", F.expr("CAST(X'C328' AS STRING)")), uid="clicks")
    rows.write_to(ledger.sqlite(), uid="out")
    with pytest.raises(ps.BadRecordError, match=r"column 't' holds, in row 0 .* no UTF-8: b'\\xc3\('"):
        job.run(available_now=True)


def checkpointed(spark, ledger: Ledger, retained: int) -> ps.Job:
    settings = ps.Checkpointing(interval="1ms", retained=retained)
    job = job_over(ledger.log.read(spark, rows_per_batch=50), ledger, checkpoint=settings)
    job.run(available_now=True)
    return job_over(ledger.log.read(spark, rows_per_batch=50), ledger, checkpoint=settings)


def newest(ledger: Ledger) -> CheckpointName:
    return found_checkpoints(LocalStorage(ledger.root / "store" / "pv"))[-1]


def test_a_corrupt_metadata_is_not_stepped_over(spark, ledger):
    """Exactly once, the job goes back to the checkpoint before only when it is told to: what the newest committed comes again."""
    job = checkpointed(spark, ledger, retained=2)
    name = newest(ledger)
    flip_a_bit(ledger.root / "store" / "pv" / name.metadata)
    before = name.checkpoint - 1
    with pytest.raises(
        ps.errors.CorruptStateError, match=f"{name.metadata} is corrupt.*start with restore={before}"
    ):
        job.start(available_now=True)
    handle = job.start(available_now=True, restore=before)
    handle.wait()
    assert handle.progress.restored_from == before
    assert ledger.counts() == ledger.truth()


def test_the_only_checkpoint_being_corrupt_is_an_error(spark, ledger):
    """A job never silently starts from nothing."""
    job = checkpointed(spark, ledger, retained=1)
    flip_a_bit(ledger.root / "store" / "pv" / newest(ledger).metadata)
    with pytest.raises(ps.errors.CorruptStateError, match="no checkpoint can be restored"):
        job.start()


def test_a_missing_state_file_is_an_error_that_names_it(spark, ledger):
    """A checkpoint that lacks a file is not restored."""
    job = checkpointed(spark, ledger, retained=1)
    gone = next((ledger.root / "store" / "pv" / "state" / "views").iterdir())
    gone.unlink()
    with pytest.raises(ps.errors.CorruptStateError, match=gone.name):
        job.start()


def test_a_state_file_with_flipped_bits_is_found(spark, ledger):
    """The checksum is checked before the state is used, and the message says what to do."""
    job = checkpointed(spark, ledger, retained=1)
    shutil.rmtree(ledger.root / "local")
    for path in (ledger.root / "store" / "pv" / "state" / "views").iterdir():
        flip_a_bit(path)
    ledger.fill(10)
    with pytest.raises(ps.errors.CorruptStateError, match="restore an older checkpoint"):
        job.run(available_now=True)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_changed_state_columns_are_refused(spark, ledger):
    """State that does not fit the operator is not read as something else; its loss can be allowed by name."""
    checkpointed(spark, ledger, retained=1)

    def changed() -> ps.Job:
        job = ledger.job()
        rows = job.read(ledger.log.read(spark), uid="clicks")
        rows.key_by("app").process(Count(), schema="app string, n long", uid="views").write_to(
            ledger.files(), uid="other-out"
        )
        return job

    with pytest.raises(ps.errors.IncompatibleStateError, match="views"):
        changed().start()
    changed().run(available_now=True, drop_state=("views",))


def test_a_removed_operator_needs_a_word(spark, ledger, caplog):
    """State of an operator that is gone is dropped only when its uid is named; a name that nothing has is told."""
    checkpointed(spark, ledger, retained=1)

    def other() -> ps.Job:
        job = ledger.job()
        rows = job.read(ledger.log.read(spark), uid="clicks")
        rows.key_by("app").aggregate(pv=F.count("*"), uid="other").write_to(ledger.sqlite(), uid="out")
        return job

    with pytest.raises(ps.errors.IncompatibleStateError, match="drop_state"):
        other().start()
    ledger.fill(20)
    handle = other().start(available_now=True, drop_state=("views", "nope"))
    handle.wait()
    assert handle.progress.restored_from >= 0
    assert "drop_state names 'nope', which neither the job nor checkpoint" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        other().run(available_now=True, drop_state=("views",))  # as a supervisor does
    told = [
        record
        for record in caplog.records
        if "drop_state names 'views', dropped before checkpoint" in record.getMessage()
    ]
    assert [record.levelname for record in told] == ["INFO"]
    assert "neither the job nor" not in caplog.text


def test_what_is_dropped_is_dropped_once(spark, ledger, tmp_path):
    """A job that was allowed to drop state, and fails later, goes on from the newer checkpoint with the state that it holds."""
    checkpointed(spark, ledger, retained=1)
    dropped_after = newest(ledger).checkpoint
    ledger.fill(200)
    marker = tmp_path / "failed"

    class FailsLater(Count):
        def process(self, key, rows, ctx):
            if ctx.checkpoint == dropped_after + 3 and not marker.exists():
                fail_for_good(marker)
            yield from super().process(key, rows, ctx)

    job = ledger.job(restart=ps.fixed_delay(attempts=1, delay="1ms"))
    clicks = job.read(ledger.log.read(spark, rows_per_batch=50), uid="clicks")
    clicks.key_by("app").process(FailsLater(), schema="app string, pv long", uid="views").write_to(
        ledger.sqlite("since"), uid="since-out"
    )
    handle = job.start(available_now=True, drop_state=("views",))
    handle.wait()
    assert handle.progress.restarts == 1
    assert sum(ledger.counts("since").values()) == 400
