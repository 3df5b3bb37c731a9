"""`sinks.Kafka` at a broker that asks for a password: the right one works, a wrong one is an error that does not show it."""

from __future__ import annotations

import base64
import json
import logging
import time
from pathlib import Path
from typing import Any

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


def token(_: str) -> tuple[str, float]:
    """An unsigned token, which this broker takes, and until when it is valid."""
    until = time.time() + 3600
    claims = {"sub": "me", "iat": until - 3600, "exp": until}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""]), until


@pytest.mark.parametrize(
    "options",
    [
        {"oauth_cb": token},
        {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": "principal=me"},
    ],
)
def test_a_token(kafka: KafkaBroker, tmp_path: Path, options: dict[str, Any]) -> None:
    """All clients of the sink log in with it: those that look at topics, produce, and read the record."""
    topic = kafka.new_topic()
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **options}
    for number in (1, 2):
        sink = Kafka(
            kafka.guarded_address, topic, staging=tmp_path, options=login, commits_topic=f"of-{topic}"
        )
        sink.validate(SCHEMA)
        context = TransactionContext(job="token", sink="out", run=1, checkpoint=number, subtask=0, attempt=0)
        transaction = sink.begin_transaction(context)
        sink.write(transaction, pa.RecordBatch.from_pylist([{"n": number}], schema=SCHEMA))
        sink.commit(sink.pre_commit(transaction))
    assert [message.value() for message in kafka.read(topic)] == [b'{"n":1}', b'{"n":2}']


def test_a_wrong_password(kafka: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused before the query starts, with the address and what to check, and is shown nowhere."""
    caplog.set_level(logging.DEBUG)
    sink = sink_with(kafka, kafka.new_topic(), tmp_path, "hunter2-hunter2")
    with pytest.raises(ConfigError, match=f"{kafka.guarded_address} refuse the login") as refused:
        sink.validate(SCHEMA)
    assert "user" in str(refused.value)
    assert "hunter2" not in f"{refused.value} {refused.value.facts} {refused.value.__cause__!r} {caplog.text}"
