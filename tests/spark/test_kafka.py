"""From Kafka to Kafka on Spark: positions, a kill -9 in between, a partition that is added, a topic that is deleted."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_job
import pytest
from confluent_kafka.admin import NewPartitions

from services import maven
from services.kafka_broker import KafkaBroker

pytestmark = pytest.mark.spark
PATIENCE_S = 180
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
VERSIONS = ("4.3.0", "4.2.0")
"""The one of this Spark, then the one before: some mirrors of Maven Central are late."""


class Pipeline:
    """The job of `kafka_job` between two topics."""

    def __init__(self, kafka: KafkaBroker, folder: Path, connector: str) -> None:
        self.kafka, self.folder, self.connector = kafka, folder, connector
        self.source, self.target = kafka.new_topic(2), kafka.new_topic(3)
        self.sent: Counter[str] = Counter()

    def send(self, users: list[str], partition: int) -> None:
        """Write clicks into one partition of the source."""
        for user in users:
            self.kafka.produce(self.source, [b"page"] * 10, key=user, partition=partition)
            self.sent[user] += 10

    def start(self, mode: str) -> subprocess.Popen[str]:
        """Run the job in a process of its own."""
        script = Path(kafka_job.__file__)
        places = [self.source, self.target, str(self.folder), str(maven.ivy_dir()), self.connector]
        with (self.folder / "errors.txt").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, str(script), self.kafka.address, *places, mode],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(os.environ),
            )

    def run(self) -> dict[str, Any]:
        """Run the job to the end of the input known now."""
        process = self.start("available_now")
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, self.errors()
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report

    def errors(self) -> str:
        return (self.folder / "errors.txt").read_text()

    def results(self) -> Counter[tuple[str, int]]:
        """What a reader with read_committed sees."""
        values = [json.loads(message.value()) for message in self.kafka.read(self.target)]
        return Counter((value["user"], value["n"]) for value in values)

    def expected(self) -> Counter[tuple[str, int]]:
        return Counter((user, n) for user, clicks in self.sent.items() for n in range(1, clicks + 1))

    def wait_for(
        self, process: subprocess.Popen[str], seen: Callable[[Counter[tuple[str, int]]], bool]
    ) -> None:
        """Wait until the running job has made something visible."""
        deadline = time.monotonic() + PATIENCE_S
        while not seen(self.results()):
            assert process.poll() is None, self.errors()
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.2)


@pytest.fixture
def pipeline(kafka: KafkaBroker, tmp_path: Path) -> Pipeline:
    return Pipeline(kafka, tmp_path, connector())


@functools.cache
def connector() -> str:
    """The newest connector that can be fetched."""
    reasons = []
    for version in VERSIONS:
        try:
            maven.resolve(*CONNECTOR.split(":"), version)
        except maven.JarsMissingError as missing:
            reasons.append(str(missing))
        else:
            return f"{CONNECTOR}:{version}"
    pytest.skip(f"no Kafka connector to test with: {'; '.join(reasons)}")


def test_kafka_to_kafka_with_a_kill_in_between(pipeline: Pipeline) -> None:
    """A job that is killed with -9 goes on from its offsets: each result is there once, also of a partition added meanwhile."""
    pipeline.send([f"user-{number}" for number in range(20)], partition=0)
    pipeline.send([f"guest-{number}" for number in range(20)], partition=1)
    process = pipeline.start("until killed")
    try:
        pipeline.wait_for(process, bool)
        admin = pipeline.kafka.admin()
        admin.create_partitions([NewPartitions(pipeline.source, 3)])[pipeline.source].result(30)
        pipeline.send([f"late-{number}" for number in range(30)], partition=2)
        pipeline.wait_for(process, lambda results: any(user.startswith("late") for user, _ in results))
    finally:
        process.kill()
        process.wait()
    assert pipeline.results() < pipeline.expected()
    pipeline.send(["user-0", "late-0"], partition=0)
    report = pipeline.run()
    assert pipeline.results() == pipeline.expected()
    assert report["guarantee"] == "exactly-once"
    assert report["positions"] == {pipeline.source: {"0": 220, "1": 200, "2": 300}}


def test_a_source_topic_that_was_deleted(pipeline: Pipeline) -> None:
    """When the source lost messages that were not read yet, the job ends with an error that names the topic."""
    pipeline.send(["ann"], partition=0)
    pipeline.run()
    admin = pipeline.kafka.admin()
    admin.delete_topics([pipeline.source])[pipeline.source].result(30)
    process = pipeline.start("available_now")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert pipeline.source in pipeline.errors()
    assert pipeline.results() == pipeline.expected()
