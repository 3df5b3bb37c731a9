"""The driver of the demonstration, in a process of its own: `python -m penstock.demo.worker SETTINGS`. Driver.

`build_job` is the job as a user would write it. Two outputs show two things. SQLite has a row per app that is replaced by the newest count:
it shows the state. Parquet gets the counts of each batch appended: it shows what was delivered, and its sum reveals a batch that was
delivered twice or not at all. A storage around the job's storage kills the process at the planned moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock import sinks
from penstock.child_process import report
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Checkpointing, Mode
from penstock.demo.settings import (
    JOB,
    TABLE,
    DemoSettings,
    DriverFailed,
    Finished,
    Killed,
    Moved,
    Started,
)
from penstock.errors import EXIT_FAILED_FOR_GOOD
from penstock.graph import Output
from penstock.ids import RunId, SparkBatch
from penstock.job import Job
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.recovery.restart import fixed_delay
from penstock.sources import PartitionedLog
from penstock.storage import LocalStorage, Storage
from penstock.testing.faulty_storage import KillingStorage, KillPoint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


SOURCE = "clicks"


def build_job(settings: DemoSettings, spark: SparkSession, storage: Storage) -> Job:
    """Count page views by app, end to end."""
    job = Job(
        JOB,
        storage=storage,
        local_dir=settings.root / "local",
        checkpoint=Checkpointing(interval="50ms", mode=settings.mode, retained=2),
        restart=fixed_delay(attempts=3),
    )
    log = PartitionedLog(settings.log_path)
    clicks = job.read(log.read(spark, rows_per_batch=settings.rows_per_batch), uid=SOURCE)

    views = clicks.key_by("app").aggregate(uid="views", on_bad_record="fail", ttl=None, **_counts())
    views.write_to(sinks.SQLite(settings.database_path, TABLE, mode="upsert", key=["app"]), uid="views-out")

    delivered = clicks.transform(_counts_of_a_batch)
    delivered.write_to(sinks.Files(settings.files_path, format="parquet"), uid="delivered-out")
    return job


def _counts_of_a_batch(batch: DataFrame) -> DataFrame:
    return batch.groupBy("app").agg(*(column.alias(name) for name, column in _counts().items()))


def _counts() -> dict[str, Column]:
    """How many, and two checksums over which ones."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

    return {"pv": F.count("*"), "event_sum": F.sum("event"), "event_xor": F.bit_xor("event")}


POLL_S = 0.1
LONGEST_WAIT_S = 60.0
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""This JVM lives for seconds: what a better compiler and collector would gain does not pay for them."""


def main() -> None:
    """Run the job to its end, or to the planned kill."""
    settings = msgspec.json.decode(sys.argv[1], type=DemoSettings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    threading.Thread(target=_die_with_command, daemon=True).start()
    try:
        _work(settings)
    except Exception as error:
        logging.getLogger(__name__).exception("the job failed")
        report(DriverFailed(f"{type(error).__name__}: {error}"))
        sys.exit(EXIT_FAILED_FOR_GOOD)
    report(Finished())


def _work(settings: DemoSettings) -> None:
    from penstock.spark.local_session import local_session

    inner = LocalStorage(settings.storage_path / JOB)
    point = settings.kill_point(settings.kills_so_far)
    last_words = _LastWords(settings, point)
    storage: Storage = KillingStorage(inner, point, last_words=last_words) if point else inner
    spark = local_session("penstock-demo", cores=2, config=QUICK_JVM)
    job = build_job(settings, spark, storage)
    last_words.outputs = job.graph.outputs
    last_words.owner = check_job_record(inner, JobRecord(JOB, job.max_parallelism)).owner
    handle = job.start(available_now=True)
    report(
        Started(
            handle.progress.run, handle.progress.restored_from, _read_up_to(inner, handle.progress.run, None)
        )
    )
    told: Moved | None = None
    done = False
    while not done:
        done = handle.wait(POLL_S)
        progress = handle.progress
        if progress.batch >= 0:
            told = _report_if_new(
                Moved(progress.batch, progress.checkpoint, _read_up_to(inner, progress.run, progress.batch)),
                told,
            )
    spark.stop()


@dataclass
class _LastWords:
    """What happens right before the kill."""

    settings: DemoSettings
    point: KillPoint | None
    outputs: Iterable[Output] = ()
    owner: str = ""

    def __call__(self, checkpoint: int) -> None:
        if self.settings.mode is Mode.AT_LEAST_ONCE:
            self._wait_until_written(checkpoint)
        if self.point is not None:
            self.settings.note_kill()
            report(Killed(self.point.moment, checkpoint))

    def _wait_until_written(self, checkpoint: int) -> None:
        """At least once writes results without waiting for the checkpoint: die when they are out, so that the effect shows."""
        deadline = SYSTEM_CLOCK.monotonic() + LONGEST_WAIT_S
        while self._unwritten(checkpoint) and SYSTEM_CLOCK.monotonic() < deadline:
            SYSTEM_CLOCK.sleep(POLL_S)

    def _unwritten(self, checkpoint: int) -> bool:
        return any(
            transaction["checkpoint"] <= checkpoint
            for output in self.outputs
            for transaction in output.sink.find_transactions(self.owner, output.uid)
        )


def _read_up_to(storage: Storage, run: int, batch: int | None) -> int:
    """How many events lie before the end of a batch; None means the newest that Spark knows of in this run."""
    from penstock.recovery import progress_log

    log = progress_log.ProgressLog(storage, RunId(run))
    if batch is None:
        entries = [name.rpartition("/")[2] for name in storage.names(f"{log.folder}/offsets")]
        batch = max((int(name) for name in entries if name.isdigit()), default=-1)
    with contextlib.suppress(FileNotFoundError):
        positions = progress_log.positions(log.entry(SparkBatch(batch)))
        return sum(sum(position.values()) for position in positions if isinstance(position, dict))
    return 0


def _report_if_new(message: Moved, told: Moved | None) -> Moved:
    if message != told:
        report(message)
    return message


def _die_with_command() -> None:
    """Standard input ends when `penstock demo` does, however it dies. Then end this process, its JVM and its supervisor."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
