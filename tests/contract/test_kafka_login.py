"""`sinks.Kafka` at a broker that asks for a password: the right one works, a wrong one is an error that does not show it."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.sinks import Kafka, TransactionContext
from services.kafka_broker import PASSWORD, KafkaBroker

SCHEMA = pa.schema([("n", pa.int64())])


def sink_with(kafka: KafkaBroker, topic: str, staging: Path, password: str) -> Kafka:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    return Kafka(kafka.guarded_address, topic, staging=staging, options={**login, "sasl.password": password})


def test_the_right_password(kafka: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows are committed through the login; neither what is staged nor what a checkpoint would keep has the password in it."""
    caplog.set_level(logging.DEBUG)
    topic = kafka.new_topic()
    sink = sink_with(kafka, topic, tmp_path / "staging", PASSWORD)
    sink.validate(SCHEMA)
    context = TransactionContext(job="login", sink="out", run=1, checkpoint=1, subtask=0, attempt=0)
    transaction = sink.begin_transaction(context)
    sink.write(transaction, pa.RecordBatch.from_pylist([{"n": 1}], schema=SCHEMA))
    prepared = sink.pre_commit(transaction)
    staged = b"".join(path.read_bytes() for path in (tmp_path / "staging").rglob("*") if path.is_file())
    sink.commit(prepared)
    assert [message.value() for message in kafka.read(topic)] == [b'{"n":1}']
    assert PASSWORD.encode() not in staged
    assert PASSWORD not in f"{prepared} {sink!r} {caplog.text}"


def test_a_wrong_password(kafka: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused before the query starts, with the address and what to check, and is shown nowhere."""
    caplog.set_level(logging.DEBUG)
    sink = sink_with(kafka, kafka.new_topic(), tmp_path, "hunter2-hunter2")
    with pytest.raises(ConfigError, match=f"{kafka.guarded_address} refuse the login") as refused:
        sink.validate(SCHEMA)
    assert "user" in str(refused.value)
    assert "hunter2" not in f"{refused.value} {refused.value.facts} {refused.value.__cause__!r} {caplog.text}"
