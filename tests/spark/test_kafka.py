"""From Kafka to Kafka on Spark: positions, a kill -9 in between, a partition that is added, a topic that is deleted, event time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kafka_job
import msgspec
import pytest
from confluent_kafka.admin import NewPartitions, NewTopic

from penstock.run.reading import partition_name
from services import quick_spark
from services.kafka_broker import KafkaBroker
from services.maven import JarsMissingError
from services.patience import PATIENCE_S
from services.spark_kafka_connector import Connector, connector

pytestmark = pytest.mark.spark


class Jobs:
    """A process that runs `kafka_job` as it is told; a new one when it was killed."""

    def __init__(self, connector: Connector, errors: Path, environment: Mapping[str, str]) -> None:
        self.connector, self.errors, self.environment = connector, errors, environment
        self._process: subprocess.Popen[str] | None = None

    def begin(self, order: kafka_job.Order) -> None:
        if self._process is None:
            self._process = self._new_process()
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line of JSON; Spark may have printed something of its own."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        pytest.fail(f"the jobs' process ended: {self.said()}")

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait for what the running job brings about."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        return self.errors.read_text()

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _new_process(self) -> subprocess.Popen[str]:
        with self.errors.open("w") as errors:
            return subprocess.Popen(
                [sys.executable, kafka_job.__file__, json.dumps(self.connector.settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment,
            )


class Pipeline:
    """The job of `kafka_job` between two topics."""

    def __init__(self, kafka: KafkaBroker, folder: Path, jobs: Jobs) -> None:
        self.kafka, self.folder, self.jobs = kafka, folder, jobs
        self.source, self.target = kafka.new_topic(2), kafka.new_topic(3)
        self.sent: Counter[str] = Counter()

    def send(self, users: list[str], partition: int) -> None:
        """Write ten clicks of each user into one partition of the source."""
        clicks = [
            {"value": b"page", "key": user, "partition": partition} for user in users for _ in range(10)
        ]
        self.kafka.produce_each(self.source, clicks)
        self.sent.update(dict.fromkeys(users, 10))

    def order(self, mode: str, **options: Any) -> kafka_job.Order:
        return kafka_job.Order(
            mode, self.kafka.address, self.source, self.target, str(self.folder), **options
        )

    def run(self, mode: str = "available_now", **options: Any) -> dict[str, Any]:
        """Run the job to the end of the input known now."""
        self.jobs.begin(self.order(mode, **options))
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What the job says that was begun last."""
        answer = self.jobs.answer()
        assert "error" not in answer, answer
        return answer

    def failure(self) -> str:
        """Run the job, which fails; the error as the last line of its traceback says it."""
        self.jobs.begin(self.order("available_now"))
        return str(self.jobs.answer()["error"])

    def has_begun(self) -> bool:
        """Whether it is recorded where the source begins."""
        return any("0/0" in path.read_text() for path in self.folder.glob("storage/*/begun/1.json"))

    def values(self) -> list[dict[str, Any]]:
        """What a reader with read_committed sees."""
        return [json.loads(message.value()) for message in self.kafka.read(self.target)]

    def results(self) -> Counter[tuple[str, int]]:
        return Counter((value["user"], value["n"]) for value in self.values())

    def expected(self) -> Counter[tuple[str, int]]:
        return Counter((user, n) for user, clicks in self.sent.items() for n in range(1, clicks + 1))


class Windows:
    """Clicks with times of their own, which a `Pipeline` counts in windows of a minute. All times are tenths of minutes."""

    START_S = 1_767_225_600
    UNIT_S = 6

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.truth: Counter[int] = Counter()

    def send(self, partition: int, *times: int, late: bool = False) -> None:
        options = {"value": b"page", "key": "ann", "partition": partition}
        clicks = [{**options, "timestamp": self.us(time) // 1000} for time in times]
        self._pipeline.kafka.produce_each(self._pipeline.source, clicks)
        self.truth.update(() if late else [time // 10 * 10 for time in times])

    def us(self, time: int) -> int:
        return (self.START_S + time * self.UNIT_S) * 1_000_000

    def closed(self) -> dict[int, int]:
        """Where each window begins that gave its result, and how many clicks; none gave two."""
        values = self._pipeline.values()
        found = {(value["start_s"] - self.START_S) // self.UNIT_S: value["n"] for value in values}
        assert len(found) == len(values)
        return found

    def newest(self, report: dict[str, Any]) -> dict[str, int]:
        """By partition, as the checkpoint of a report has it."""
        found: dict[str, int] = report["time"]["sources"]["clicks"]["newest_us"]
        return found

    def named(self, *times: int) -> dict[str, int]:
        """These times of the first partitions, in the same form."""
        source = self._pipeline.source
        return {partition_name([source, number]): self.us(time) for number, time in enumerate(times)}


@pytest.fixture(scope="module")
def spark_connector(request: pytest.FixtureRequest) -> Connector:
    """Which one it is stands in the output of the run."""
    try:
        found = connector()
    except JarsMissingError as missing:
        pytest.skip(f"no Kafka connector to test with: {missing}")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(f"\n{found.story}")
    return found


@pytest.fixture(scope="module")
def jobs(spark_connector: Connector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """One for the module: each would start a Spark."""
    made = Jobs(spark_connector, tmp_path_factory.mktemp("jobs") / "errors.txt", os.environ)
    yield made
    made.kill()


@pytest.fixture
def pipeline(kafka: KafkaBroker, tmp_path: Path, jobs: Jobs) -> Pipeline:
    return Pipeline(kafka, tmp_path, jobs)


def test_kafka_to_kafka_with_a_kill_in_between(
    pipeline: Pipeline, spark_connector: Connector, tmp_path: Path
) -> None:
    """A job that begins with the latest, fails before its first checkpoint, and is killed later, loses nothing that came after its start.

    Each result is there once, also of a partition that was added meanwhile.
    """
    as_users_have_it = quick_spark.without(os.environ)  # one job with Java and Python as they are
    killed = Jobs(spark_connector, tmp_path / "errors.txt", as_users_have_it)
    pipeline.kafka.produce(pipeline.source, [b"before the job"], key="nobody", partition=0)
    killed.begin(pipeline.order("until killed"))
    try:
        killed.wait_for(pipeline.has_begun)
        pipeline.send([f"user-{number}" for number in range(20)], partition=0)
        pipeline.send([f"guest-{number}" for number in range(20)], partition=1)
        killed.wait_for(pipeline.results)
        admin = pipeline.kafka.admin()
        admin.create_partitions([NewPartitions(pipeline.source, 3)])[pipeline.source].result(PATIENCE_S)
        pipeline.send([f"late-{number}" for number in range(30)], partition=2)
        killed.wait_for(lambda: any(user.startswith("late") for user, _ in pipeline.results()))
        pipeline.send(["last"], partition=1)  # so that something is left to do, however fast the job was
    finally:
        killed.kill()
    assert pipeline.results() < pipeline.expected()
    pipeline.send(["user-0", "late-0"], partition=0)
    report = pipeline.run()
    assert pipeline.results() == pipeline.expected()
    assert report["guarantee"] == "exactly-once"
    assert report["positions"] == {pipeline.source: {"0": 221, "1": 210, "2": 300}}


def test_a_source_topic_that_was_deleted(pipeline: Pipeline) -> None:
    """The job ends with one error that names the topic, what follows and what to do, and does so until it is told to go on without."""
    pipeline.send(["ann"], partition=0)
    pipeline.run()
    admin = pipeline.kafka.admin()
    admin.delete_topics([pipeline.source])[pipeline.source].result(PATIENCE_S)
    gone = pipeline.failure()
    assert gone.startswith("penstock.errors.JobFailedError: job kafka-job failed for good: ")
    assert (
        f"Kafka does not know a topic that the job reads (topics of its sources: {pipeline.source})" in gone
    )
    assert "create it again" in gone
    admin.create_topics([NewTopic(pipeline.source, 2)])[pipeline.source].result(PATIENCE_S)
    lost = pipeline.failure()
    assert lost.startswith(
        "penstock.errors.SourceLostError: Kafka no longer has messages that were not read yet"
    )
    assert f"{pipeline.source}-0 offset was changed from 10 to 0" in lost
    assert "failOnDataLoss" in lost
    assert pipeline.results() == pipeline.expected()
    pipeline.run("without lost")
    pipeline.send(["bob"], partition=0)
    pipeline.run()
    assert pipeline.results() == pipeline.expected()


def test_event_time_by_partition(pipeline: Pipeline) -> None:
    """The slowest partition decides, however far ahead the others are and over restarts; one that is silent does not hold time for ever."""
    windows = Windows(pipeline)
    windows.send(0, 1, 12, 23, 90)
    windows.send(1, 2, 13, 31)
    report = pipeline.run(kafka_job.WINDOWS)
    assert windows.closed() == {0: 2, 10: 2, 20: 1}
    assert report["time"]["watermarks_us"] == {"counts": windows.us(31) - 1}
    assert windows.newest(report) == windows.named(90, 31)
    windows.send(1, 32, 45)  # in time, although the other partition is far ahead
    windows.send(1, 5, late=True)
    report = pipeline.run(kafka_job.WINDOWS)
    assert windows.closed() == {0: 2, 10: 2, 20: 1, 30: 2}
    assert report["late_rows"] == {"counts": 1}

    admin = pipeline.kafka.admin()
    admin.create_partitions([NewPartitions(pipeline.source, 3)])[pipeline.source].result(PATIENCE_S)
    pipeline.jobs.begin(pipeline.order(kafka_job.WINDOWS, until=1, idle_after="1s"))

    def goes_on_without_the_others() -> bool:
        windows.send(0, 90)  # which closes nothing by itself
        return 40 in windows.closed()

    pipeline.jobs.wait_for(goes_on_without_the_others)
    report = pipeline.answer()
    assert windows.newest(report) == windows.named(90, 45)
    windows.send(2, 101)
    report = pipeline.run(kafka_job.WINDOWS, drain=True)
    assert windows.closed() == windows.truth
    assert windows.newest(report) == windows.named(90, 45, 101)
    assert report["late_rows"] == {"counts": 1}


def test_positions_by_choice(pipeline: Pipeline) -> None:
    """What Kafka has at the start is skipped with 'latest', once; with offsets, and from its start, it is read again."""
    pipeline.send(["ann"], partition=0)
    pipeline.run()
    pipeline.kafka.produce(pipeline.source, [b"page"] * 5, key="skipped", partition=1)
    pipeline.run(positions={"clicks": "latest"})
    pipeline.send(["bob"], partition=1)
    report = pipeline.run(positions={"clicks": "latest"})  # as a supervisor does
    assert report["positions"] == {pipeline.source: {"0": 10, "1": 15}}
    assert pipeline.results() == pipeline.expected()
    pipeline.run(positions={"clicks": {pipeline.source: {"0": 7, "1": 15}}})
    pipeline.sent["ann"] += 3
    assert pipeline.results() == pipeline.expected()
    pipeline.run(positions={"clicks": "start"})
    pipeline.sent.update({"ann": 10, "bob": 10, "skipped": 5})
    assert pipeline.results() == pipeline.expected()
