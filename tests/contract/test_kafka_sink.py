"""The sink `Kafka` against a real broker: the contract of all sinks, and what is its own."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from kafka_target import KafkaTarget

from penstock.errors import BadRecordError, CommitLostError, ConfigError, CorruptStateError, UnavailableError
from penstock.sinks import Kafka
from penstock.sinks.staging import StagedTransaction
from penstock.testing.sink_contract import JOB, SINK
from services.kafka_broker import KafkaBroker


@pytest.fixture
def suite(kafka: KafkaBroker, tmp_path: Path) -> KafkaTarget:
    return KafkaTarget().use(kafka, tmp_path)


class TestKafkaJson(KafkaTarget):
    pass


class TestKafkaBytes(KafkaTarget):
    """Raw bytes, without a key: the values are whatever the user serialised."""

    settings: ClassVar[dict[str, Any]] = {"value": "value", "format": "bytes"}
    schema = pa.schema([("value", pa.binary())])
    partitions = 1

    def row(self, number: int) -> dict[str, Any]:
        return {"value": b"\x00\xff\n%d" % number}

    def row_of(self, message: Any) -> dict[str, Any]:
        assert message.key() is None
        return {"value": message.value()}


# What a message is made of


def written(suite: KafkaTarget, rows: list[dict[str, Any]], schema: pa.Schema, **settings: Any) -> list[Any]:
    suite.settings, suite.schema = settings, schema
    sink = suite.sink()
    transaction = sink.begin_transaction(suite.context())
    sink.write(transaction, pa.RecordBatch.from_pylist(rows, schema=schema))
    suite.sink().commit(sink.pre_commit(transaction))
    return suite.broker.read(suite.topic)


COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("n", pa.int64()),
        ("raw", pa.binary()),
        ("place", pa.int32()),
        ("trace", pa.string()),
    ]
)


def test_key_headers_and_partition(suite: KafkaTarget) -> None:
    """Key, headers and partition come from their columns; a null header is left out, a null key is no key."""
    rows = [
        {"user": "ann", "n": 1, "raw": b"\x01", "place": 2, "trace": "t1"},
        {"user": None, "n": 2, "raw": None, "place": 0, "trace": None},
    ]
    headers = {"trace-id": "trace", "raw": "raw"}
    seen = written(suite, rows, COLUMNS, key="user", value=["n"], headers=headers, partition="place")
    assert [(m.partition(), m.key(), m.value(), m.headers()) for m in seen] == [
        (0, None, b'{"n":2}', None),
        (2, b"ann", b'{"n":1}', [("trace-id", b"t1"), ("raw", b"\x01")]),
    ]


def test_one_column_as_the_value(suite: KafkaTarget) -> None:
    """One column is the value itself; null is a tombstone."""
    rows = [{"user": "a", "n": 1}, {"user": "b", "n": None}]
    seen = written(suite, rows, COLUMNS, key="user", value="n")
    assert {(m.key(), m.value()) for m in seen} == {(b"a", b"1"), (b"b", None)}


def test_raw_key_and_value_with_headers(suite: KafkaTarget) -> None:
    """With format='bytes' key and value arrive byte by byte, and strings as UTF-8."""
    rows = [{"user": "\u00e9", "raw": bytes(range(256)), "trace": "x"}]
    seen = written(suite, rows, COLUMNS, key="user", value="raw", format="bytes", headers=["trace"])
    assert [(m.key(), m.value(), m.headers()) for m in seen] == [
        ("\u00e9".encode(), bytes(range(256)), [("trace", b"x")])
    ]


def test_a_key_goes_where_java_sends_it(suite: KafkaTarget) -> None:
    """Messages without a partition are placed by murmur2, so that topics can be joined with those of other producers."""
    rows = [{"user": f"user-{number}", "n": number} for number in range(20)]
    seen = written(suite, rows, COLUMNS, key="user")
    assert {m.key(): m.partition() for m in seen} == {
        row["user"].encode(): murmur2_of(row["user"]) % 3 for row in rows
    }


def murmur2_of(text: str) -> int:
    """Kafka's own hash, as its clients in Java compute it."""
    data, mask = text.encode(), 0xFFFFFFFF
    m, h = 0x5BD1E995, (0x9747B28C ^ len(text.encode())) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ (k >> 24)) * m & mask)
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("row", "settings", "said"),
    [
        ({"place": 3}, {"partition": "place"}, "partition 3"),
        ({"place": -1}, {"partition": "place"}, "partition -1"),
        ({"user": "x" * 2_000_000}, {}, "larger than the topic accepts"),
        ({"user": "x" * 60_000}, {"options": {"message.max.bytes": "50000"}}, r"accepts \(50000 bytes"),
    ],
)
def test_what_the_topic_would_refuse(
    suite: KafkaTarget, row: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    """A row that can never be committed is refused in the task, before a checkpoint promises it."""
    with pytest.raises(BadRecordError, match=said):
        written(suite, [row], COLUMNS, **settings)


def test_a_limit_of_the_user_and_the_proof(suite: KafkaTarget) -> None:
    """A low message.max.bytes holds for rows, not for the proof of many transactions, which is larger."""
    suite.settings = {**suite.settings, "options": {"message.max.bytes": 1000}}
    suite.sink().commit_all([suite.staged([number], checkpoint=number) for number in range(100)])
    suite.assert_visible(*range(100))


@pytest.mark.parametrize("options", [{}, {"batch.size": 500_000}, {"batch.size": "5000"}])
def test_a_topic_that_takes_only_small_batches(suite: KafkaTarget, options: dict[str, Any]) -> None:
    """Many rows that are small enough one by one are committed: no batch is larger than the topic takes."""
    suite.topic = suite.broker.new_topic(max_message_bytes="20000")
    rows = [{"n": number, "user": "x" * 15_000 if number % 100 == 0 else "small"} for number in range(3000)]
    seen = written(suite, rows, COLUMNS, value=["n", "user"], options=options)
    assert [json.loads(m.value())["n"] for m in seen] == list(range(3000))


# What is refused before anything starts


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": "nobody"}, "no column 'nobody'"),
        ({"value": ["n", "nobody"]}, "no column 'nobody'"),
        ({"headers": ["n"]}, "column 'n' has type long"),
        ({"partition": "user"}, "column 'user' has type string"),
        ({"format": "bytes", "value": "n"}, "column 'n' has type long"),
        ({"format": "bytes", "value": "raw", "key": "n"}, "column 'n' has type long"),
    ],
)
def test_columns_that_do_not_fit(suite: KafkaTarget, settings: dict[str, Any], said: str) -> None:
    """A column that is missing or of the wrong type is named before the job starts."""
    suite.settings = {}
    with pytest.raises(ConfigError, match=said):
        suite.make_sink(**settings).validate(COLUMNS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "avro"}, "format 'avro'"),
        ({"format": "bytes"}, "needs value="),
        ({"value": []}, "must name columns"),
        ({"staging": "s3://bucket/x"}, "scheme"),
        ({"commit_timeout": "0s"}, "commit_timeout"),
        ({"transactional_id": "a.b"}, "transactional_id"),
        ({"options": {"transactional.id": "x"}}, "transactional.id"),
        ({"options": {"transaction.timeout.ms": 1000}}, "a commit may take 300000 ms"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    """A setting that cannot work is refused when the sink is made."""
    with pytest.raises(ConfigError, match=said):
        Kafka("127.0.0.1:1", "t", **{"staging": tmp_path, **settings})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression.type": "zipp"}, "zipp"),
        ({"message.timeout.ms": 600_000}, "message.timeout.ms"),
        ({"batch.size": "many"}, "batch.size"),
        ({"message.max.bytes": "many"}, "message.max.bytes"),
    ],
)
def test_options_that_no_producer_takes(suite: KafkaTarget, options: dict[str, Any], said: str) -> None:
    """A wrong option of the producer is refused before the job starts, not at every commit."""
    with pytest.raises(ConfigError, match=said):
        suite.make_sink(options=options).validate(suite.schema)


def test_a_missing_topic(suite: KafkaTarget) -> None:
    """A topic that does not exist is refused, and looking for it does not create it."""
    suite.topic = "no-such-topic"
    for _ in range(2):
        with pytest.raises(ConfigError, match="'no-such-topic' does not exist"):
            suite.make_sink().validate(suite.schema)


def test_a_transaction_longer_than_the_brokers_allow(suite: KafkaTarget) -> None:
    """A time-out above the broker's limit is refused with both numbers."""
    with pytest.raises(ConfigError, match=r"3600000.* 900000"):
        suite.make_sink(commit_timeout="1h").validate(suite.schema)


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact"])
def test_a_topic_of_commits_that_forgets(suite: KafkaTarget, policy: str) -> None:
    """A topic from which Kafka deletes the proofs, be it after a while, is refused."""
    forgetting = suite.broker.new_topic(cleanup_policy=policy)
    with pytest.raises(ConfigError, match=r"cleanup\.policy=compact"):
        suite.make_sink(commits_topic=forgetting).validate(suite.schema)


def test_a_commit_while_kafka_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says that Kafka is down and why, long before the time of a commit is over; the client's own lines fill no log."""
    monkeypatch.setattr("penstock.sinks.kafka.commit_session._STEP_S", 0.3)
    where = {"topic": "t", "commits_topic": "c", "transactional_id": "penstock"}
    transaction = StagedTransaction.begin(KafkaTarget().context()).as_transaction()
    with pytest.raises(UnavailableError, match=r"Kafka is down.*127\.0\.0\.1:1 failed: Connection refused"):
        Kafka("127.0.0.1:1", "t", staging=tmp_path).commit({**transaction, **where})
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_a_compacted_topic_needs_keys(suite: KafkaTarget) -> None:
    """Without a key column it is refused before the job starts; a null in it is refused in the task."""
    suite.topic = suite.broker.new_topic(cleanup_policy="compact,delete")
    with pytest.raises(ConfigError, match="compacted"):
        suite.make_sink(key=None).validate(suite.schema)
    suite.settings = {"key": "name", "value": "id"}
    sink = suite.sink()
    transaction = sink.begin_transaction(suite.context())
    with pytest.raises(BadRecordError, match="'name', the key of the messages, is null in 1 row,"):
        sink.write(transaction, pa.RecordBatch.from_pylist([{"id": 1, "name": None}], schema=suite.schema))


def test_a_topic_that_is_compacted_after_the_messages_were_staged(suite: KafkaTarget) -> None:
    """A commit that the topic will never take ends the job with the broker's own words; changed back, it takes it."""
    suite.settings = {"key": None}
    prepared = suite.staged([1])
    driver = suite.sink()
    suite.broker.set_topic(suite.topic, "cleanup.policy", "compact")
    with pytest.raises(CommitLostError, match=r"failed to validate record.*stay staged"):
        driver.commit(prepared)
    suite.broker.set_topic(suite.topic, "cleanup.policy", "delete")
    suite.row_of = lambda message: json.loads(message.value())  # type: ignore[method-assign]
    suite.sink().commit(prepared)
    suite.assert_visible(1)


def test_brokers_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker the error names the address, and that nobody answered."""
    monkeypatch.setattr("penstock.sinks.kafka.cluster.REQUEST_TIMEOUT_S", 1.0)
    sink = Kafka("127.0.0.1:1", "t", staging=tmp_path)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        sink.validate(KafkaTarget.schema)


def test_passwords_are_never_shown(
    suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither repr nor errors nor logs show a password, also when an option beside it is wrong."""
    monkeypatch.setattr("penstock.sinks.kafka.cluster.REQUEST_TIMEOUT_S", 1.0)
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-hunter2"
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "me", "sasl.password": secret}
    said = []
    for options in (
        {**login, "sasl.mechanism": "PLAIN"},
        {**login, "sasl.mechanism": secret},
        {**login, "no.such.option": secret},
    ):
        sink = suite.make_sink(options=options)
        said += [repr(sink), repr(sink.cluster)]
        with pytest.raises((ConfigError, UnavailableError)) as raised:
            sink.validate(suite.schema)
        said += [str(raised.value), repr(raised.value.facts), repr(raised.value.__cause__)]
    assert secret not in "\n".join([*said, caplog.text])


def test_without_confluent_kafka(suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where confluent-kafka is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[kafka\]'"):
        suite.make_sink().validate(suite.schema)


# What files and topic prove


def test_staged_messages_that_somebody_deleted(suite: KafkaTarget) -> None:
    """Commit without staged messages and without a proof is an error that names the transaction and the rows missing."""
    prepared = suite.staged([1, 2, 3])
    for staged in suite.staging.rglob("*.arrow"):
        staged.unlink()
    with pytest.raises(CommitLostError, match=r"contract\.out\.1\.1\.0\.0.* 3 rows"):
        suite.sink().commit(prepared)


def test_staged_messages_that_were_damaged(suite: KafkaTarget) -> None:
    """Half of a staged file is not committed, and neither is what stands before it in the same commit."""
    prepared = [suite.staged([1], checkpoint=1), suite.staged(range(1000), checkpoint=2)]
    damaged = max(suite.staging.rglob("*.arrow"), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(CommitLostError, match="damaged"):
        suite.sink().commit_all(prepared)
    suite.assert_visible()


def test_nonsense_from_a_checkpoint(suite: KafkaTarget) -> None:
    """A transaction that was changed in storage becomes no path: it is refused as corrupt."""
    nonsense = {**suite.staged([1]), "token": "../../../x"}
    for call in (suite.sink().commit, suite.sink().abort):
        with pytest.raises(CorruptStateError):
            call(nonsense)


def test_a_transaction_that_does_not_say_where_it_goes(suite: KafkaTarget) -> None:
    """What is only found in the staging folder can be aborted; a commit does not guess its topic."""
    suite.staged([1])
    (found,) = suite.sink().find_transactions(JOB, SINK)
    with pytest.raises(CorruptStateError, match="topic"):
        suite.sink().commit(found)
    suite.sink().abort(found)
    assert suite.unfinished() == []


def test_a_second_life_of_the_job(suite: KafkaTarget) -> None:
    """When storage and staging were deleted and the numbers start again, new rows are not taken for old ones."""
    suite.sink().commit(suite.staged([1]))
    shutil.rmtree(suite.staging)
    suite.sink().commit(suite.staged([2]))
    suite.assert_visible(1, 2)


def test_a_record_that_nobody_understands(suite: KafkaTarget) -> None:
    """When something else wrote under our key, nothing is committed on a guess."""
    prepared = suite.staged([1])
    suite.broker.produce(suite.commits, [b"nonsense"], key=f"penstock.{JOB}.{SINK}")
    with pytest.raises(CommitLostError, match="cannot be read"):
        suite.sink().commit(prepared)
    suite.assert_visible()


def test_many_transactions_in_several_proofs(suite: KafkaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """More transactions than one proof holds are committed in several Kafka transactions, each once."""
    monkeypatch.setattr("penstock.sinks.kafka.sink._MOST_IN_ONE_PROOF", 2)
    prepared = [suite.staged([number], checkpoint=number) for number in range(5)]
    suite.sink().commit_all(prepared)
    suite.sink().commit_all(prepared)
    suite.assert_visible(*range(5))


def test_a_commit_larger_than_the_queue(suite: KafkaTarget) -> None:
    """A commit waits for room in the queue of the producer, and leaves out nothing and repeats nothing."""
    suite.settings = {**suite.settings, "options": {"queue.buffering.max.messages": 10}}
    suite.sink().commit(suite.staged(range(200)))
    suite.assert_visible(*range(200))


def test_a_sink_that_has_committed_can_be_sent_to_tasks(suite: KafkaTarget) -> None:
    """An open session stays on the driver; the copy in a task stages, and the driver goes on committing."""
    driver = suite.sink()
    driver.commit(suite.staged([1], checkpoint=1))
    task = pickle.loads(pickle.dumps(driver))
    transaction = task.begin_transaction(suite.context(checkpoint=2))
    task.write(transaction, suite.batch([2]))
    driver.commit(task.pre_commit(transaction))
    suite.assert_visible(1, 2)
